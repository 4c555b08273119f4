"""Groups of tensors written or read by the host: one copy each way, without waiting.

The host fills :attr:`Inputs.host` and calls :meth:`Inputs.upload`; the device's tensors change in the order of the
stream. :meth:`Outputs.fetch` starts a copy from the device, and :meth:`Fetched.wait` returns it, one step later if
steps overlap. On a host both sides share memory, and only outputs are copied.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RING = 4
"""Most concurrent copies; an engine one step ahead has two."""


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The dtype on the host; uint16 stands for bfloat16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


@dataclass(frozen=True)
class Field:
    """Shape and contract dtype of one tensor of a group."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype on the host."""
        return numpy_dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize


Fields = Mapping[str, Field]
Arrays = Mapping[str, NDArray[Any]]
Fetched = Callable[[], Arrays]
"""Waits for a copy and returns its values, valid until RING - 1 more copies of the group were started."""


class Inputs(ABC):
    """A group written by the host: NumPy arrays `host`, and `tensors` for ops."""

    tensors: Mapping[str, Any]
    host: Arrays

    @abstractmethod
    def upload(self, rows: int | None = None) -> None:
        """Copy `host` to the device in the order of the current stream. `host` may change at once.

        `rows`: rows of the last tensor to copy; default: all.
        """


class Outputs(ABC):
    """A group read by the host: `tensors` for ops."""

    tensors: Mapping[str, Any]

    @abstractmethod
    def fetch(self, names: Collection[str] | None = None) -> Fetched:
        """Start to copy the values of all or of the named tensors, as of now in the order of the current stream."""
