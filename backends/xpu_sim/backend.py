"""The simulated XPU as a backend: binds the kernels of ``libspecdec_xpu_sim.so`` to the op contract."""

from __future__ import annotations

import ctypes

from specdec_hal.backends import native_ops
from specdec_hal.backends.host import HostBackend
from specdec_hal.backends.xpu_sim.options import LIBRARY, Options
from specdec_hal.errors import ConfigError
from specdec_hal.ops import TokenOrder
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Launch
from specdec_hal.tensors.native import library_path, load_library
from specdec_hal.tensors.views import shareable


class XpuSimBackend(HostBackend):
    """Kernels in the XPU dialect on the emulator. Launches are synchronous; there is one stream."""

    name = "xpu_sim"
    token_order = TokenOrder.PREFILL_FIRST

    def __init__(self, options: Options) -> None:
        super().__init__()
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
        self._exports = load_library(library)
        self.capabilities = native_ops.capabilities(self._exports)
        self._launch_options = options.arguments()

    def plan(self, call: Call) -> Launch:
        """A plan of the native library over the tensors' memory."""
        attrs = native_ops.attributes(call)
        arrays = [None if array is None else shareable(array) for array in self.arrays(call).values()]
        launch: Launch = self._exports[call.op.name](*arrays, *attrs, *self._launch_options)
        return launch
