"""Paddle: tensors on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.tensors.device import Device
from specdec_hal.tensors.transfer import numpy_dtype
from specdec_hal.tensors.views import Framework, Stream, TensorInfo, byte_size, dtype_name


class PaddleFramework(Framework):
    """Paddle."""

    def describe(self, tensor: Any) -> TensorInfo:
        """See Framework."""
        dtype = dtype_name(tensor.dtype)
        place = tensor.place
        device = (
            "cpu" if place.is_cpu_place() else f"cuda:{place.gpu_device_id()}" if place.is_gpu_place() else str(place)
        )
        shape = tuple(tensor.shape)
        size = byte_size(dtype, shape)
        contiguous = size == 0 or tensor.is_contiguous()  # Paddle denies it of reshaped tensors without elements
        return TensorInfo(dtype, shape, device, contiguous, tensor.stop_gradient, tensor.data_ptr(), size)

    def bits(self, tensor: Any) -> Any:
        """See Framework."""
        return tensor.view("int16")

    def current_stream(self, index: int) -> Stream:
        """See Framework."""
        import paddle

        return lambda: int(paddle.device.current_stream(f"gpu:{index}").__cuda_stream__()[1])

    def on_host(self, array: NDArray[Any]) -> Any:
        """See Framework."""
        import paddle

        return paddle.to_tensor(array, place=paddle.CPUPlace())


class PaddleDevice(Device):
    """Paddle on a CUDA device."""

    framework = "paddle"

    def __init__(self, name: str) -> None:
        import paddle

        super().__init__(name)
        self._paddle = paddle
        self._place = paddle.CUDAPlace(self.index)

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """Through the host: paddle.zeros takes no place."""
        return self.upload(np.zeros(shape, numpy_dtype(dtype)))

    def upload(self, array: NDArray[Any]) -> Any:
        """As paddle.to_tensor."""
        if array.dtype == np.uint16:
            return self.upload(array.view(np.int16)).view("bfloat16")
        return self._paddle.to_tensor(array, place=self._place)

    def write(self, tensor: Any, index: Any, values: Any) -> None:
        """Assignment to an index writes in place. Numbers are uploaded too: Paddle (3.3.1) rounds large integers."""
        dtype = str(tensor.dtype).rpartition(".")[2]
        if isinstance(values, self._paddle.Tensor):
            tensor[index] = values.to(self._place).astype(dtype)
        else:
            tensor[index] = self.upload(np.asarray(values, numpy_dtype(dtype)))

    def assign(self, tensor: Any, source: Any) -> None:
        """Assignment to a slice writes in place."""
        tensor[:] = source

    def copy(self, tensor: Any) -> Any:
        """As Tensor.clone, without gradients."""
        return tensor.detach().clone()

    def add_entries(self, tensor: Any, slots: Any, columns: Any, values: Any) -> None:
        """By take_along_axis and put_along_axis."""
        paddle = self._paddle
        slots = slots.clip(min=0)
        at = paddle.index_select(columns, slots)
        entries = paddle.take_along_axis(tensor, at, 1) + paddle.index_select(values, slots)
        tensor[:] = paddle.put_along_axis(tensor, at, entries, 1)

    def gather_rows(self, tensor: Any, starts: Any, slots: Any, offsets: Any) -> Any:
        """As paddle.index_select."""
        rows = self._paddle.index_select(starts, slots) + offsets
        return self._paddle.index_select(tensor, rows.clip(max=len(tensor) - 1))


FRAMEWORK, DEVICE = PaddleFramework(), PaddleDevice
