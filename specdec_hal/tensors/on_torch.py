"""PyTorch: tensors on a CUDA device, an engine's stream, and another on which steps are captured as CUDA graphs."""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from specdec_hal.tensors.device import Device, DeviceGraph
from specdec_hal.tensors.graph_capture import capturing, refuse_in_capture
from specdec_hal.tensors.transfer import RING, Arrays, Fetched, Fields, Inputs, Outputs
from specdec_hal.tensors.views import Framework, Stream, TensorInfo, dtype_name

_ALIGNMENT = 256
"""Bytes that the tensors of a group lie at multiples of in their buffer."""
_capture_lock = threading.RLock()
"""PyTorch's bookkeeping of graphs is not thread-safe."""
_unused: defaultdict[int, list[Any]] = defaultdict(list)
"""By device, capture streams of engines that are gone."""
_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: not ordered with the default stream."""


class TorchFramework(Framework):
    """PyTorch."""

    def describe(self, tensor: Any) -> TensorInfo:
        """See Framework."""
        dtype = dtype_name(tensor.dtype)
        device = "cpu" if tensor.is_cpu else str(tensor.device)
        shape = tuple(tensor.shape)
        return TensorInfo(
            dtype, shape, device, tensor.is_contiguous(), not tensor.requires_grad, tensor.data_ptr(), tensor.nbytes
        )

    def bits(self, tensor: Any) -> Any:
        """See Framework."""
        import torch

        return tensor.view(torch.int16)

    def current_stream(self, index: int) -> Stream:
        """In 30 ns; torch.cuda.current_stream() takes a microsecond."""
        from torch._C import _cuda_getCurrentRawStream as raw

        return lambda: int(raw(index))

    def on_host(self, array: NDArray[Any]) -> Any:
        """See Framework."""
        import torch

        return torch.tensor(array)


def _is_basic(index: Any) -> bool:
    """Whether what it picks is a view."""
    return all(isinstance(one, (int, slice)) for one in (index if isinstance(index, tuple) else (index,)))


class TorchDevice(Device):
    """PyTorch on a CUDA device."""

    framework = "torch"

    def __init__(self, name: str) -> None:
        import torch

        super().__init__(name)
        self._torch = torch
        self._device = torch.device(name)
        self._work: Any = None
        self._pool: Any = None

    def free_bytes(self) -> int | None:
        """Free memory of the GPU and in PyTorch's allocator."""
        cuda = self._torch.cuda
        unused = cuda.memory_reserved(self._device) - cuda.memory_allocated(self._device)
        return int(cuda.mem_get_info(self._device)[0] + unused)

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """As torch.zeros."""
        return self._torch.zeros(tuple(shape), dtype=getattr(self._torch, dtype), device=self._device)

    def upload(self, array: NDArray[Any]) -> Any:
        """Does not wait: for pageable memory, the call returns once the array was read."""
        if array.dtype == np.uint16:
            return self.upload(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.tensor(array).to(self._device, non_blocking=True)

    def write(self, tensor: Any, index: Any, values: Any) -> None:
        """A number is a kernel argument. An array is copied directly to a view, otherwise through a temporary."""
        refuse_in_capture("written")
        if isinstance(values, self._torch.Tensor):
            values = values.to(tensor)
        elif isinstance(values, np.ndarray) and values.dtype != np.uint16 and _is_basic(index):
            source = self._torch.from_numpy(np.require(values, requirements=("C", "W")))
            tensor[index].copy_(source, non_blocking=True)  # returns when pageable memory has been read
            return
        elif not isinstance(values, (bool, int, float)):
            values = self.upload(np.asarray(values)).to(tensor.dtype)
        tensor[index] = values

    def assign(self, tensor: Any, source: Any) -> None:
        """As torch.Tensor.copy_."""
        tensor.copy_(source, non_blocking=True)

    def copy(self, tensor: Any) -> Any:
        """As torch.clone."""
        return tensor.clone()

    def add_entries(self, tensor: Any, slots: Any, columns: Any, values: Any) -> None:
        """By gather and scatter."""
        slots = slots.clamp(min=0)
        at = columns.index_select(0, slots)
        tensor.scatter_(1, at, tensor.gather(1, at) + values.index_select(0, slots))

    def gather_rows(self, tensor: Any, starts: Any, slots: Any, offsets: Any) -> Any:
        """As torch.index_select."""
        rows = starts.index_select(0, slots) + offsets
        return tensor.index_select(0, rows.clamp(max=len(tensor) - 1))

    def inputs(self, fields: Fields) -> Inputs:
        """One buffer, one copy from pinned memory."""
        return TorchInputs(self.name, fields)

    def outputs(self, fields: Fields) -> Outputs:
        """One buffer, one copy to pinned memory."""
        return TorchOutputs(self.name, fields)

    @contextmanager
    def working(self) -> Iterator[None]:
        """A stream of PyTorch's pool; no gradients."""
        with self._torch.inference_mode():
            if self._device.type != "cuda":
                yield
                return
            if self._work is None:
                self._work = self._torch.cuda.Stream(self._device)
                self._work.wait_stream(self._torch.cuda.current_stream(self._device))
            with self._torch.cuda.stream(self._work):
                yield

    @cached_property
    def _capture_stream(self) -> Any:
        """A stream of this engine's own, on which nothing ever runs.

        PyTorch's pool has 32 streams, which others share. Whatever they launch on a captured one would enter the graph,
        and freed pinned memory that was used on it records an event there, which fails when it is queried.
        """
        streams = _unused[self.index]
        stream = streams.pop() if streams else _new_stream(self._torch, self._device)
        finalize(self, streams.append, stream)
        return stream

    def capture(self, launch: Callable[[], None]) -> DeviceGraph | None:
        """One CUDA graph of the model's kernels and the ops."""
        if self._device.type != "cuda":
            return None
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with _capture_lock, torch.cuda.stream(self._capture_stream), capturing(self.stream()) as capture:
            # thread_local: other threads may allocate and copy meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                launch()
            finally:
                graph.capture_end()

        def free() -> None:
            with _capture_lock:
                graph.reset()

        captured = DeviceGraph(graph.replay, free)
        for graphs in capture.users:
            graphs.add(captured)
        return captured


def _new_stream(torch: Any, device: Any) -> Any:
    """A CUDA stream outside PyTorch's pool. Called on a thread that has used the device."""
    handle = ctypes.c_void_p()
    status = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING)
    if status:
        raise RuntimeError(f"{device}: cuStreamCreate failed with CUresult {status}")
    return torch.cuda.ExternalStream(handle.value, device=device)


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
        """One asynchronous copy. Waits only if RING uploads are pending."""
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
    """A device buffer for a group's tensors, and alternating pinned buffers of the same layout."""

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
        """The next pinned buffer, after its previous copy."""
        turn = self._next
        self._next = (turn + 1) % RING
        if self._events[turn] is not None:
            self._events[turn].synchronize()
        return turn

    def enqueued(self, turn: int) -> Callable[[], None]:
        """Called after the copy was enqueued: returns a function that waits for it."""
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


FRAMEWORK, DEVICE = TorchFramework(), TorchDevice
