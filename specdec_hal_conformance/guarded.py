"""Guarded tensors of the backend under test.

Cases are NumPy. A :class:`GuardedDevice` makes a tensor of each, inside a larger buffer whose margins hold a known
pattern, and reads both back. It can capture a launch for replay and detect host reads of device values.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import BackendUnavailableError
from specdec_hal.plugin.backend import Backend, BoundOp

Array = NDArray[Any]

MARGIN = 256
"""Bytes on both sides of every tensor, a multiple of every required alignment."""
SENTINEL = 0x5C
_WHOLE = bytes([SENTINEL]) * MARGIN


@dataclass
class Placed:
    """A tensor on the device and how to read the buffer around it, as bytes."""

    tensor: Any
    like: Array
    read: Callable[[], NDArray[np.uint8]]

    def value(self) -> Array:
        """The tensor's elements."""
        inside = self.read()[MARGIN : MARGIN + self.like.nbytes]
        array: Array = inside.view(self.like.dtype).reshape(self.like.shape)
        return array

    def damage(self) -> str | None:
        """A message about a written margin, or None."""
        buffer = self.read()
        margins = {"before its start": buffer[:MARGIN], "after its end": buffer[MARGIN + self.like.nbytes :]}
        for where, margin in margins.items():
            if margin.tobytes() != _WHOLE:
                wrong = np.flatnonzero(margin != SENTINEL)
                distance = MARGIN - int(wrong[-1]) if where.startswith("before") else int(wrong[0]) + 1
                return f"{len(wrong)} bytes written {where}, the nearest {distance} byte(s) away"
        return None


class GuardedDevice(Protocol):
    """A device for tensors with margins."""

    def place(self, array: Array) -> Placed:
        """A copy of the array, with margins."""

    def assign(self, placed: Placed, array: Array) -> None:
        """Overwrite the tensor's elements in place."""

    def stream(self) -> int:
        """The stream handle for launches."""

    def synchronize(self) -> None:
        """Wait for every launch."""

    def capture(self, plan: BoundOp) -> Callable[[], None]:
        """Replays the plan: a graph if the device has them, else the plan itself."""

    def no_host_reads(self) -> AbstractContextManager[Any]:
        """A context in which a host read of a device value is an error, if that can be detected."""


def _guarded(array: Array) -> NDArray[np.uint8]:
    buffer = np.full(array.nbytes + 2 * MARGIN, SENTINEL, np.uint8)
    buffer[MARGIN : MARGIN + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return buffer


class GuardedHost:
    """Tensors are NumPy arrays; there is one stream, and plans replay themselves."""

    def place(self, array: Array) -> Placed:
        """A view into a guarded buffer."""
        buffer = _guarded(array)
        inside = buffer[MARGIN : MARGIN + array.nbytes].view(array.dtype).reshape(array.shape)
        return Placed(inside, array, lambda: buffer)

    def assign(self, placed: Placed, array: Array) -> None:
        """Copy into the view."""
        placed.tensor[...] = array

    def stream(self) -> int:
        """The only one."""
        return 0

    def synchronize(self) -> None:
        """Launches are done when they return."""

    def capture(self, plan: BoundOp) -> Callable[[], None]:
        """The plan."""
        return lambda: plan(0)

    def no_host_reads(self) -> AbstractContextManager[Any]:
        """All reads are on the host."""
        return nullcontext()


class GuardedTorch:
    """Tensors are PyTorch's; on CUDA, launches run on a stream of their own and are captured in graphs."""

    def __init__(self, name: str) -> None:
        try:
            import torch
        except ImportError as error:
            raise BackendUnavailableError(
                f"tensors on '{name}' need PyTorch, which is not installed; pip install 'specdec-hal[torch]'"
            ) from error
        self.torch = torch
        self.device = torch.device(name)
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def place(self, array: Array) -> Placed:
        """A view into a guarded uint8 tensor."""
        torch = self.torch
        buffer = torch.from_numpy(_guarded(array)).to(self.device)
        kind = torch.bfloat16 if array.dtype == np.uint16 else getattr(torch, str(array.dtype))
        inside = buffer[MARGIN : MARGIN + array.nbytes].view(kind).reshape(array.shape)

        def read() -> NDArray[np.uint8]:
            self.synchronize()
            host: NDArray[np.uint8] = buffer.cpu().numpy()
            return host

        return Placed(inside, array, read)

    def assign(self, placed: Placed, array: Array) -> None:
        """Upload into the same memory."""
        torch = self.torch
        raw = torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).to(self.device)
        placed.tensor.reshape(-1).view(torch.uint8).copy_(raw)
        self.synchronize()

    def stream(self) -> int:
        """The stream's handle."""
        return 0 if self._stream is None else int(self._stream.cuda_stream)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self._stream is not None:
            self.torch.cuda.synchronize(self.device)

    def capture(self, plan: BoundOp) -> Callable[[], None]:
        """A CUDA graph of one launch; capturing fails if the launch allocates or waits."""
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self._stream):
            plan(self.stream())

        def replay() -> None:
            graph.replay()
            self.synchronize()

        return replay

    def no_host_reads(self) -> AbstractContextManager[Any]:
        """PyTorch's check of its own reads; :meth:`capture` detects others."""
        torch = self.torch

        class Checked:
            def __enter__(self) -> None:
                torch.cuda.set_sync_debug_mode("error")

            def __exit__(self, *failure: object) -> None:
                torch.cuda.set_sync_debug_mode("default")

        return Checked()


def check_device(backend: Backend, name: str | None) -> str:
    """The device's name for a backend; BackendUnavailableError if it is of another kind."""
    wanted = name or backend.device
    if not wanted.startswith(backend.device):
        raise BackendUnavailableError(
            f"backend '{backend.name}' works on {backend.device}, not on '{wanted}'; leave the device out or change it"
        )
    return wanted


def device_for(backend: Backend, name: str | None = None) -> GuardedDevice:
    """The device for a backend's tensors. `name`: such as "cuda:1"; None: the first of the backend's kind."""
    wanted = check_device(backend, name)
    if backend.device == "cpu":
        return GuardedHost()
    if backend.device == "cuda":
        return GuardedTorch(wanted if ":" in wanted else "cuda:0")
    raise BackendUnavailableError(
        f"no way to put tensors on '{wanted}' (backend '{backend.name}'); known devices: cpu, cuda"
    )
