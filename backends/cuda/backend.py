"""NVIDIA GPUs as a backend: binds the kernels of ``libspecdec_cuda.so`` to the op contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from specdec_hal.backends import native_ops
from specdec_hal.backends.cuda.options import Options
from specdec_hal.backends.cuda.probe import LIBRARY
from specdec_hal.backends.index import IndexBackend
from specdec_hal.ops import TokenOrder
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Launch
from specdec_hal.tensors.native import load_library
from specdec_hal.tensors.views import describe, dlpack_view, download, framework, framework_of

_NATIVE = ("torch", "paddle")
"""Frameworks whose tensors tvm-ffi reads without asking them to synchronise anything."""


class CudaBackend(IndexBackend):
    """CUDA kernels. Launches are asynchronous, on the given stream or the current one of the tensors' framework.

    Tensors of any framework, on any one device; the device need not be the current one.
    """

    name = "cuda"
    device = "cuda"
    asynchronous = True
    token_order = TokenOrder.SLOT
    native_library = LIBRARY

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.exports = load_library(self.native_library)
        self.capabilities = native_ops.capabilities(self.exports, graph_safe=True)

    @property
    def device_name(self) -> str:
        """The device of the options."""
        return f"cuda:{self.options.device}"

    def plan(self, call: Call) -> Launch:
        """A plan of the native library over the tensors' memory."""
        self.check_index(call)
        attrs = native_ops.attributes(call)
        launch: Launch = self.exports[call.op.name](*map(_exchangeable, call.tensors.values()), *attrs)
        return launch

    def stream_of(self, call: Call) -> Callable[[], int]:
        """Asks the framework of the first tensor."""
        tensor = next(tensor for tensor in call.tensors.values() if tensor is not None)
        info = describe(tensor)
        index = int(info.device.partition(":")[2] or 0) if info is not None else 0
        return framework(framework_of(type(tensor))).current_stream(index)

    def to_host(self, tensor: Any) -> NDArray[Any]:
        """A copy; waits for the device."""
        return download(tensor)


def _exchangeable(tensor: Any) -> Any:
    return tensor if tensor is None or framework_of(type(tensor)) in _NATIVE else dlpack_view(tensor)
