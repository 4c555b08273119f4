"""NumPy arrays: what host backends work on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.tensors.device import Device
from specdec_hal.tensors.memory import host_free
from specdec_hal.tensors.transfer import Fields, Inputs, numpy_dtype
from specdec_hal.tensors.views import as_numpy


class HostDevice(Device):
    """NumPy."""

    def __init__(self, name: str = "cpu") -> None:
        super().__init__(name)

    def free_bytes(self) -> int | None:
        """Of the machine, or of this process's control group."""
        return host_free()

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """As numpy.zeros."""
        return np.zeros(shape, numpy_dtype(dtype))

    def upload(self, array: NDArray[Any]) -> Any:
        """A copy."""
        return np.array(array, order="C")

    def download(self, tensor: Any) -> NDArray[Any]:
        """A view."""
        return as_numpy(tensor)

    def write(self, tensor: Any, index: Any, values: Any) -> None:
        """As NumPy assigns."""
        tensor[index] = values

    def assign(self, tensor: Any, source: Any) -> None:
        """From any framework on the host."""
        tensor[...] = as_numpy(source)

    def copy(self, tensor: Any) -> Any:
        """A NumPy copy of a tensor of any framework."""
        return np.array(as_numpy(tensor))

    def add_entries(self, tensor: Any, slots: Any, columns: Any, values: Any) -> None:
        """By take_along_axis and put_along_axis."""
        slots = np.maximum(slots, 0)
        at = columns[slots]
        np.put_along_axis(tensor, at, np.take_along_axis(tensor, at, 1) + values[slots], 1)

    def gather_rows(self, tensor: Any, starts: Any, slots: Any, offsets: Any) -> Any:
        """As NumPy indexes."""
        return tensor[np.minimum(starts[slots] + offsets, len(tensor) - 1)]

    def inputs(self, fields: Fields) -> Inputs:
        """The ops' own memory."""
        return HostInputs(fields)


class HostInputs(Inputs):
    """One memory for both sides."""

    def __init__(self, fields: Fields) -> None:
        self.host = self.tensors = {name: np.zeros(field.shape, field.numpy_dtype) for name, field in fields.items()}

    def upload(self, rows: int | None = None) -> None:
        """Nothing to do."""


DEVICE = HostDevice
