"""A device that allocates nothing and counts what would have been."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.tensors.device import Device
from specdec_hal.tensors.transfer import Arrays, Field, Fields, Inputs, Outputs


class MeasuringDevice(Device):
    """Counts the bytes of what is allocated on it, and allocates nothing: its tensors are one element each."""

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

    def inputs(self, fields: Fields) -> Inputs:
        """Counted."""
        return _Group({name: self.zeros(field.shape, field.dtype) for name, field in fields.items()})

    def outputs(self, fields: Fields) -> Outputs:
        """Counted."""
        return _Group({name: self.zeros(field.shape, field.dtype) for name, field in fields.items()})


class _Group(Inputs, Outputs):
    def __init__(self, tensors: Arrays) -> None:
        self.host = self.tensors = tensors

    def upload(self, rows: int | None = None) -> None:
        """Nothing."""

    def fetch(self, names: Collection[str] | None = None) -> Any:
        """The zeros."""
        return lambda: self.host
