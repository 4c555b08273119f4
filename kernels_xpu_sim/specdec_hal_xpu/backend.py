"""The simulated XPU as a backend: binds the kernels of ``libspecdec_xpu_sim.so`` to the op contract."""

from __future__ import annotations

import ctypes

from specdec_hal.backends.host import NativeHostBackend
from specdec_hal.errors import ConfigError
from specdec_hal.ops import TokenOrder
from specdec_hal.tensors.native import library_path
from specdec_hal_xpu.options import LIBRARY, Options


class XpuSimBackend(NativeHostBackend):
    """Kernels in the XPU dialect on the emulator."""

    name = "xpu_sim"
    token_order = TokenOrder.PREFILL_FIRST

    def __init__(self, options: Options) -> None:
        self.options = options
        library = LIBRARY if options.mode == "fast" else f"{LIBRARY}_{options.mode}"
        if library_path(library) is None:
            raise ConfigError(
                f"backend.options.mode: expected a mode whose library is installed, got '{options.mode}' without "
                f"lib{library}.so; leave the option out, or build that library with g++"
            )
        if options.mode == "asan" and not hasattr(ctypes.CDLL(None), "__asan_init"):
            raise ConfigError(
                "backend.options.mode: expected a process with AddressSanitizer for 'asan', got one without; start "
                "Python with LD_PRELOAD=$(g++ -print-file-name=libasan.so)"
            )
        super().__init__(library, options.arguments())
