"""Tensors that the host writes, and tensors that it reads, as groups: one copy each way, and no wait in between.

The host fills :attr:`Inputs.host` and calls :meth:`Inputs.upload`; the device's tensors change in the order of the
stream. :meth:`Outputs.fetch` starts a copy of what the device wrote, and :meth:`Fetched.wait` returns it, one step
later where steps overlap. On a host both sides are the same memory, and nothing is copied but a snapshot of the
outputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

RING = 4
"""Copies that may be under way at the same time; an engine one step ahead has two."""

_ALIGNMENT = 256


@dataclass(frozen=True)
class Field:
    """Shape and contract dtype of one tensor of a group."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype on the host; uint16 stands for bfloat16."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize


Fields = Mapping[str, Field]
Arrays = Mapping[str, NDArray[Any]]
Fetched = Callable[[], Arrays]
"""Waits for a copy and returns its values, which hold until RING - 1 further copies of the group were started."""


class Inputs(ABC):
    """A group that the host writes. `host` are its NumPy arrays, `tensors` what ops are bound to."""

    tensors: Mapping[str, Any]
    host: Arrays

    @abstractmethod
    def upload(self, rows: int | None = None) -> None:
        """Make the device see `host` as it is now, in the order of the current stream. `host` may change at once.

        `rows`: how many of the last tensor's are to be seen; all by default.
        """


class Outputs(ABC):
    """A group that the host reads. `tensors` are what ops are bound to."""

    tensors: Mapping[str, Any]

    @abstractmethod
    def fetch(self, names: Collection[str] | None = None) -> Fetched:
        """Start to copy the values of all or of the named tensors, as of now in the order of the current stream."""


class Memory(Protocol):
    """What a group needs of a :class:`~specdec_hal.tensors.device.Device`."""

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """A new tensor of zeros."""

    def write(self, tensor: Any, index: Any, values: Any) -> None:
        """``tensor[index] = values`` with values of the host."""

    def download(self, tensor: Any) -> NDArray[Any]:
        """The tensor's values on the host."""


class HostInputs(Inputs):
    """One memory for both sides."""

    def __init__(self, fields: Fields) -> None:
        self.host = self.tensors = {name: np.zeros(field.shape, field.numpy_dtype) for name, field in fields.items()}

    def upload(self, rows: int | None = None) -> None:
        """Nothing to do."""


class HostOutputs(Outputs):
    """NumPy arrays; a fetch is a snapshot."""

    def __init__(self, fields: Fields) -> None:
        self.tensors = {name: np.zeros(field.shape, field.numpy_dtype) for name, field in fields.items()}

    def fetch(self, names: Collection[str] | None = None) -> Fetched:
        """Copies the arrays."""
        values = {name: self.tensors[name].copy() for name in (self.tensors if names is None else names)}
        return lambda: values


class TensorInputs(Inputs):
    """For frameworks without views into one buffer: a copy a tensor."""

    def __init__(self, device: Memory, fields: Fields) -> None:
        self._device = device
        self.tensors = {name: device.zeros(field.shape, field.dtype) for name, field in fields.items()}
        self.host = {name: np.zeros(field.shape, field.numpy_dtype) for name, field in fields.items()}

    def upload(self, rows: int | None = None) -> None:
        """Writes every tensor."""
        *_, last = self.host
        for name, array in self.host.items():
            part = slice(rows if name == last else None)
            if array[part].size:
                self._device.write(self.tensors[name], part, array[part])


class TensorOutputs(Outputs):
    """For frameworks without copies that can be waited for: a fetch waits."""

    def __init__(self, device: Memory, fields: Fields) -> None:
        self._device = device
        self.tensors = {name: device.zeros(field.shape, field.dtype) for name, field in fields.items()}

    def fetch(self, names: Collection[str] | None = None) -> Fetched:
        """Downloads the tensors one by one."""
        values = {
            name: np.array(self._device.download(self.tensors[name]))
            for name in (self.tensors if names is None else names)
        }
        return lambda: values


class TorchInputs(Inputs):
    """One buffer of PyTorch's on the device, filled from pinned memory by one copy."""

    def __init__(self, device: str, fields: Fields) -> None:
        self._copies = _TorchRing(device, fields)
        self.tensors = self._copies.views()
        self._bytes = np.zeros(self._copies.nbytes, np.uint8)
        self.host = _arrays(self._bytes, fields)
        *_, (last, field) = fields.items()
        self._last, self._row_bytes = _layout(fields)[0][last], field.nbytes // max(field.shape[0], 1)

    def upload(self, rows: int | None = None) -> None:
        """One asynchronous copy. Waits only if RING uploads are still under way."""
        turn, part = self._copies.take(), slice(None if rows is None else self._last + rows * self._row_bytes)
        self._copies.bytes[turn][part] = self._bytes[part]
        self._copies.buffer[part].copy_(self._copies.pinned[turn][part], non_blocking=True)
        self._copies.enqueued(turn)


class TorchOutputs(Outputs):
    """One buffer of PyTorch's on the device, copied to pinned memory at once."""

    def __init__(self, device: str, fields: Fields) -> None:
        self._copies = _TorchRing(device, fields)
        self.tensors = self._copies.views()
        self._arrays = [_arrays(values, fields) for values in self._copies.bytes]

    def fetch(self, names: Collection[str] | None = None) -> Fetched:
        """One asynchronous copy of the whole buffer, which costs no more than of a part, with an event after it."""
        turn = self._copies.take()
        self._copies.pinned[turn].copy_(self._copies.buffer, non_blocking=True)
        wait, arrays = self._copies.enqueued(turn), self._arrays[turn]

        def values() -> Arrays:
            wait()
            return arrays if names is None else {name: arrays[name] for name in names}

        return values


class _TorchRing:
    """A device buffer for a group's tensors, and pinned buffers of the same layout that take turns."""

    def __init__(self, device: str, fields: Fields) -> None:
        import torch

        self._torch, self._fields = torch, fields
        self.nbytes = _layout(fields)[1]
        self.buffer = torch.zeros(self.nbytes, dtype=torch.uint8, device=device)
        self._cuda = self.buffer.is_cuda
        self.pinned = [torch.zeros(self.nbytes, dtype=torch.uint8, pin_memory=self._cuda) for _ in range(RING)]
        self.bytes = [pinned.numpy() for pinned in self.pinned]
        """The same memory for NumPy."""
        self._events: list[Any] = [None] * RING
        self._next = 0

    def views(self) -> dict[str, Any]:
        """The group's tensors inside the buffer."""
        offsets, _ = _layout(self._fields)
        tensors = {}
        for name, field in self._fields.items():
            part = self.buffer[offsets[name] : offsets[name] + field.nbytes]
            tensors[name] = part.view(getattr(self._torch, field.dtype)).view(field.shape)
        return tensors

    def take(self) -> int:
        """Whose turn it is among the pinned buffers; waits until its copy before is done."""
        turn = self._next
        self._next = (turn + 1) % RING
        if self._events[turn] is not None:
            self._events[turn].synchronize()
        return turn

    def enqueued(self, turn: int) -> Callable[[], None]:
        """To be called once the copy of this buffer is enqueued: returns how to wait for it."""
        if not self._cuda:
            return lambda: None
        event = self._events[turn] = self._events[turn] or self._torch.cuda.Event()
        event.record()
        synchronize: Callable[[], None] = event.synchronize
        return synchronize


def _layout(fields: Fields) -> tuple[dict[str, int], int]:
    """Byte offset of every tensor in a buffer, and the buffer's size."""
    offsets, end = {}, 0
    for name, field in fields.items():
        offsets[name] = end
        end += -(-field.nbytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, max(end, _ALIGNMENT)


def _arrays(buffer: NDArray[np.uint8], fields: Fields) -> dict[str, NDArray[Any]]:
    """Views of a buffer as the group's arrays."""
    offsets, _ = _layout(fields)
    return {
        name: buffer[offsets[name] : offsets[name] + field.nbytes].view(field.numpy_dtype).reshape(field.shape)
        for name, field in fields.items()
    }
