"""CuPy: tensors on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.tensors.device import Device
from specdec_hal.tensors.transfer import numpy_dtype
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

    def contiguous(self, tensor: Any) -> Any:
        """See Framework."""
        import cupy

        return cupy.ascontiguousarray(tensor)


class CupyDevice(Device):
    """CuPy, with uint16 for bfloat16, as in NumPy."""

    framework = "cupy"

    def __init__(self, name: str) -> None:
        import cupy

        super().__init__(name)
        self._cupy = cupy
        self._device = cupy.cuda.Device(self.index)

    def free_bytes(self) -> int | None:
        """Free memory of the GPU and in CuPy's pool."""
        with self._device:
            pool = self._cupy.get_default_memory_pool()
            return int(self._cupy.cuda.runtime.memGetInfo()[0] + pool.free_bytes())

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """As cupy.zeros."""
        with self._device:
            return self._cupy.zeros(tuple(shape), numpy_dtype(dtype))

    def upload(self, array: NDArray[Any]) -> Any:
        """As cupy.array."""
        with self._device:
            return self._cupy.array(array, order="C")

    def write(self, tensor: Any, index: Any, values: Any) -> None:
        """As CuPy assigns."""
        with self._device:
            if not isinstance(values, (bool, int, float)):
                values = self._cupy.asarray(values)
            if isinstance(index, tuple):
                index = tuple(self._cupy.asarray(i) if isinstance(i, np.ndarray) else i for i in index)
            tensor[index] = values

    def assign(self, tensor: Any, source: Any) -> None:
        """From any framework on the device."""
        with self._device:
            tensor[...] = self._cupy.from_dlpack(source)

    def copy(self, tensor: Any) -> Any:
        """A CuPy copy of a tensor of any framework."""
        with self._device:
            return self._cupy.array(self._cupy.from_dlpack(tensor))

    def add_entries(self, tensor: Any, slots: Any, columns: Any, values: Any) -> None:
        """As CuPy indexes."""
        with self._device:
            slots = self._cupy.maximum(slots, 0)
            at = self._cupy.arange(len(slots))[:, None], columns[slots]
            tensor[at] = tensor[at] + values[slots]

    def gather_rows(self, tensor: Any, starts: Any, slots: Any, offsets: Any) -> Any:
        """As CuPy indexes."""
        with self._device:
            return tensor[self._cupy.minimum(starts[slots] + offsets, len(tensor) - 1)]


FRAMEWORK, DEVICE = CupyFramework(), CupyDevice
