"""Tensors of a runner's state on a device, in the framework that already holds memory there.

Host backends work on NumPy arrays. On a GPU, tensors come from the model's framework (PyTorch or Paddle), so that
there is one allocator and one current stream. Each has a module of its own beside this one. Nothing here knows an op.
The conformance suite has tensors of its own, with margins around them: :mod:`specdec_hal_conformance.guarded`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import CaptureError, UnsupportedError
from specdec_hal.tensors.transfer import Fetched, Fields, Inputs, Outputs
from specdec_hal.tensors.views import ON_CUDA, Stream, download, framework, module


class DeviceGraph:
    """A captured step; a call enqueues it on the current stream."""

    def __init__(self, replay: Callable[[], None], free: Callable[[], None] | None = None) -> None:
        self._replay, self._free = replay, free

    def __call__(self) -> None:
        """Enqueue it."""
        self._replay()

    def release(self) -> None:
        """Free it, as required by communicators of its collectives. Later calls raise CaptureError."""
        free, self._free, self._replay = self._free, None, _refuse_released
        if free is not None:
            free()


def _refuse_released() -> None:
    raise CaptureError("expected a captured step, got one that was released with its runner; make another runner")


class Device(ABC):
    """Memory of one device ("cpu", "cuda:0") in one framework. Dtypes are the contract's; NumPy's bfloat16 is uint16.

    Everything is ordered by the framework's current stream; only `download` waits for it.
    """

    framework = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self.index = int(name.partition(":")[2] or 0)

    @cached_property
    def _stream(self) -> Stream:
        return framework("" if self.name == "cpu" else self.framework).current_stream(self.index)

    def stream(self) -> int:
        """The framework's current stream on this device."""
        return self._stream()

    def free_bytes(self) -> int | None:
        """Free memory; None if unknown."""
        return None

    @abstractmethod
    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """A new tensor of zeros."""

    @abstractmethod
    def upload(self, array: NDArray[Any]) -> Any:
        """A new tensor with the array's values."""

    def download(self, tensor: Any) -> NDArray[Any]:
        """The tensor's values on the host; on a host, the tensor's own memory. Waits for the current stream."""
        return download(tensor)

    @abstractmethod
    def write(self, tensor: Any, index: Any, values: Any) -> None:
        """``tensor[index] = values`` with values of the host (a number, a list, an array), or a tensor from here."""

    @abstractmethod
    def assign(self, tensor: Any, source: Any) -> None:
        """``tensor[...] = source`` with a tensor of the same shape in memory of this device; waits for nothing."""

    @abstractmethod
    def copy(self, tensor: Any) -> Any:
        """A copy."""

    @abstractmethod
    def add_entries(self, tensor: Any, slots: Any, columns: Any, values: Any) -> None:
        """``tensor[r, columns[s, i]] += values[s, i]`` for each i, where s = slots[r]; rows of slot -1 are undefined.

        `tensor` [R, V] and `values` [M, W] are float32, `slots` int32 [R], `columns` int64 [M, W]. A column may be
        named twice by a slot, with the same value: it is added once. Can be captured.
        """

    @abstractmethod
    def gather_rows(self, tensor: Any, starts: Any, slots: Any, offsets: Any) -> Any:
        """The rows ``tensor[starts[slots[r]] + offsets[r]]`` of a tensor [T, D], the last one for rows beyond it.

        All index tensors are int32.
        """

    def inputs(self, fields: Fields) -> Inputs:
        """A group of tensors written by the host."""
        return TensorInputs(self, fields)

    def outputs(self, fields: Fields) -> Outputs:
        """A group of tensors read by the host."""
        return TensorOutputs(self, fields)

    def working(self) -> AbstractContextManager[Any]:
        """Context that makes an engine's stream current, around all of its launches."""
        return nullcontext()

    def capture(self, launch: Callable[[], None]) -> DeviceGraph | None:
        """The launches of `launch` as one device graph; None without graphs.

        Runs inside :meth:`working`. Nothing is executed; `launch` must have run once before, to compile and allocate.
        The captured stream is current during `launch`; host reads and writes of tensors, and ops on other streams, are
        refused. Other threads are not affected.
        """
        return None


class TensorInputs(Inputs):
    """For frameworks without views into a buffer: one copy per tensor."""

    def __init__(self, device: Device, fields: Fields) -> None:
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
    """For frameworks without asynchronous copies: a fetch waits."""

    def __init__(self, device: Device, fields: Fields) -> None:
        self._device = device
        self.tensors = {name: device.zeros(field.shape, field.dtype) for name, field in fields.items()}

    def fetch(self, names: Collection[str] | None = None) -> Fetched:
        """Downloads the tensors one by one."""
        values = {
            name: np.array(self._device.download(self.tensors[name]))
            for name in (self.tensors if names is None else names)
        }
        return lambda: values


def get_device(name: str, held_by: str) -> Device:
    """A device by its name, in a framework; UnsupportedError if the framework does not support it."""
    if name != "cpu" and not (name.startswith("cuda:") and held_by in ON_CUDA):
        raise UnsupportedError(
            f"expected a framework that holds memory on {name} ({', '.join(ON_CUDA)}), got '{held_by}'; choose one of "
            "them, whose from_dlpack takes tensors of another without a copy, or another backend"
        )
    device: Device = module("host" if name == "cpu" else held_by).DEVICE(name)
    return device
