"""The simulated XPU as a backend: binds the kernels of ``libspecdec_xpu_sim.so`` to the op contract."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from specdec_hal.backend import Capability, Launch
from specdec_hal.backends.host import HostBackend
from specdec_hal.backends.xpu_sim.options import LIBRARY, Options
from specdec_hal.errors import ConfigError
from specdec_hal.native import library_path, load_library
from specdec_hal.ops import TokenOrder
from specdec_hal.ops.validate import Call

MOST_DRAFT_WIDTH = 32767
"""The n-gram ops keep two counts up to S in one int32 between their launches (kernels_xpu_sim/ops/ops.h)."""

_PROPOSE = Capability(limits={"S": MOST_DRAFT_WIDTH})
_CAPABILITIES: Mapping[str, Capability] = {
    "prepare_inputs": Capability(),
    "adjust_batch": Capability(),
    "recover_batch": Capability(),
    "gather_next_token": Capability(),
    "build_sampling_params": Capability(),
    "apply_penalties": Capability(),
    "sample_target": Capability(),
    "processed_probs": Capability(),
    "top_p_candidates": Capability(),
    "verify_draft_tokens": Capability(),
    "update_model_status": Capability(),
    "ngram_match": _PROPOSE,
    "hybrid_mtp_ngram": _PROPOSE,
    "ngram_index_update": Capability(),
    "ngram_index_reset": Capability(),
    "gather_accepted": Capability(),
    "token_logprobs": Capability(),
    "schedule_slots": Capability(),
    "set_stop_sequences": Capability(),
}

_MOST_INT = 2**62
"""Larger integer attributes (a token budget, a window) mean the same as this one, and an export takes 64 bits."""


class XpuSimBackend(HostBackend):
    """Kernels in the XPU dialect on the emulator. Launches are synchronous; there is one stream."""

    name = "xpu_sim"
    token_order = TokenOrder.PREFILL_FIRST
    capabilities = _CAPABILITIES

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        library = LIBRARY if options.mode == "fast" else f"{LIBRARY}_{options.mode}"
        if library_path(library) is None:
            raise ConfigError(
                f"backend.options.mode: expected a mode whose library is installed, got '{options.mode}' without "
                f"lib{library}.so; leave the option out, or build that library"
            )
        if options.mode == "asan" and not hasattr(ctypes.CDLL(None), "__asan_init"):
            raise ConfigError(
                "backend.options.mode: expected a process with AddressSanitizer for 'asan', got one without; start "
                "Python with LD_PRELOAD=$(g++ -print-file-name=libasan.so)"
            )
        self._exports = load_library(library)
        self._launch_options = options.arguments()

    def plan(self, call: Call) -> Launch:
        """A plan of the native library over the tensors' memory."""
        attrs = [min(int(value), _MOST_INT) for value in call.attrs.values()]
        launch: Launch = self._exports[call.op.name](*self.arrays(call).values(), *attrs, *self._launch_options)
        return launch

    def index_bytes(self, row_width: int, min_ngram_size: int, max_ngram_size: int) -> int:
        """As the kernels lay it out."""
        return int(self._exports["ngram_index_bytes"](row_width, min_ngram_size, max_ngram_size))
