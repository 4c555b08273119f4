"""CuPy: operands of ops on a CUDA device. It holds no tensors of a runner, so there is no device."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from specdec_hal.tensors.views import Framework, Stream


class CupyFramework(Framework):
    """CuPy."""

    def current_stream(self, index: int) -> Stream:
        """See Framework."""
        from cupy.cuda import get_current_stream

        return lambda: int(get_current_stream().ptr)

    def download(self, tensor: Any) -> NDArray[Any]:
        """See Framework."""
        array: NDArray[Any] = tensor.get()
        return array


FRAMEWORK = CupyFramework()
