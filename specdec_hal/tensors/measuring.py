"""A device that only counts allocations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.tensors.device import Device
from specdec_hal.tensors.transfer import Field


class MeasuringDevice(Device):
    """Counts the bytes of allocations; its tensors are views of one element."""

    framework = "numpy"

    def __init__(self) -> None:
        super().__init__("cpu")
        self.nbytes = 0

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """A view of one zero, not to be written."""
        field = Field(tuple(shape), dtype)
        self.nbytes += field.nbytes
        return np.broadcast_to(np.zeros((), field.numpy_dtype), field.shape)

    def upload(self, array: NDArray[Any]) -> Any:
        """The array itself, counted."""
        self.nbytes += array.nbytes
        return array

    def download(self, tensor: Any) -> NDArray[Any]:
        """The view."""
        return np.asarray(tensor)

    def write(self, tensor: Any, index: Any, values: Any) -> None:
        """Nothing."""

    def assign(self, tensor: Any, source: Any) -> None:
        """Nothing."""

    def copy(self, tensor: Any) -> Any:
        """The tensor itself, counted."""
        return self.upload(tensor)

    def add_entries(self, tensor: Any, slots: Any, columns: Any, values: Any) -> None:
        """Nothing."""

    def gather_rows(self, tensor: Any, starts: Any, slots: Any, offsets: Any) -> Any:
        """The tensor's first rows."""
        return tensor[: len(slots)]
