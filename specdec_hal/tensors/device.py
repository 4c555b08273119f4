"""Tensors on a device, in the framework that already holds memory there: what a runner's state is made of.

Host backends work on NumPy arrays. On a GPU, tensors come from the model's framework (PyTorch, Paddle or CuPy), so that
there is one allocator and one current stream. Nothing here knows an op. The conformance suite has tensors of its own,
with margins around them: :mod:`specdec_hal.conformance.guarded`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import CaptureError, UnsupportedError
from specdec_hal.tensors.graph_capture import capturing, refuse_in_capture
from specdec_hal.tensors.memory import host_free
from specdec_hal.tensors.transfer import (
    Fields,
    HostInputs,
    HostOutputs,
    Inputs,
    Outputs,
    TensorInputs,
    TensorOutputs,
    TorchInputs,
    TorchOutputs,
)
from specdec_hal.tensors.views import as_numpy, dlpack_view, framework_of

Stream = Callable[[], int]
"""Asks for the current stream, as the integer that a launch takes."""

_capture_lock = threading.RLock()
"""PyTorch keeps books of graphs that it does not guard against captures and ends of graphs on several threads."""
_working: defaultdict[tuple[int, int], threading.RLock] = defaultdict(threading.RLock)
"""By device and stream. PyTorch hands out 32 streams in turn, so that engines may share one: what one of them launched
while another captures would be part of that graph."""


class DeviceGraph:
    """A captured step; a call enqueues it again, on the current stream."""

    def __init__(self, replay: Callable[[], None], free: Callable[[], None] | None = None) -> None:
        self._replay, self._free = replay, free

    def __call__(self) -> None:
        """Enqueue it."""
        self._replay()

    def release(self) -> None:
        """Free it, which the communicators of its collectives wait for. A later call is a CaptureError."""
        free, self._free, self._replay = self._free, None, _refuse_released
        if free is not None:
            free()


def _refuse_released() -> None:
    raise CaptureError("expected a captured step, got one that was released with its runner; make another runner")


class Device(ABC):
    """Memory of one place ("cpu", "cuda:0") in one framework. Dtypes are the contract's; NumPy's bfloat16 is uint16.

    Everything is ordered by the framework's current stream; only `download` waits for it.
    """

    framework = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self.index = int(name.partition(":")[2] or 0)

    @cached_property
    def _stream(self) -> Stream:
        return current_stream_of("" if self.name == "cpu" else self.framework, self.index)

    def stream(self) -> int:
        """The framework's current stream on this device."""
        return self._stream()

    def free_bytes(self) -> int | None:
        """Memory that can still be allocated here; None where that cannot be asked."""
        return None

    @abstractmethod
    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """A new tensor of zeros."""

    @abstractmethod
    def upload(self, array: NDArray[Any]) -> Any:
        """A tensor with the array's values, in memory of its own."""

    @abstractmethod
    def download(self, tensor: Any) -> NDArray[Any]:
        """The tensor's values on the host; on a host, the tensor's own memory."""

    @abstractmethod
    def write(self, tensor: Any, index: Any, values: Any) -> None:
        """``tensor[index] = values`` with values of the host (a number, a list, an array), or a tensor from here."""

    @abstractmethod
    def assign(self, tensor: Any, source: Any) -> None:
        """``tensor[...] = source`` with a tensor of the same shape in memory of this place; waits for nothing."""

    @abstractmethod
    def copy(self, tensor: Any) -> Any:
        """A tensor with the same values in memory of its own."""

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
        """Tensors that the host writes together."""
        return TensorInputs(self, fields)

    def outputs(self, fields: Fields) -> Outputs:
        """Tensors that the host reads together."""
        return TensorOutputs(self, fields)

    def working(self) -> AbstractContextManager[Any]:
        """Entered around everything that an engine enqueues: the stream that its steps run on is the current one."""
        return nullcontext()

    def capture(self, launch: Callable[[], None]) -> DeviceGraph | None:
        """What `launch` enqueues as one device graph to be replayed; None where this place has no graphs.

        Runs inside :meth:`working`. Nothing is executed, and `launch` must have run before, so that whatever compiles
        or allocates on first use has done so. The current stream is the captured one while `launch` runs; a read or
        write of a tensor by the host in it, and an op on another stream, is refused. Other threads go on meanwhile.
        """
        return None


class HostDevice(Device):
    """NumPy."""

    def __init__(self) -> None:
        super().__init__("cpu")

    def free_bytes(self) -> int | None:
        """Of the machine, or of this process's control group."""
        return host_free()

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """As numpy.zeros."""
        return np.zeros(shape, _numpy_dtype(dtype))

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

    def outputs(self, fields: Fields) -> Outputs:
        """The ops' own memory, copied when it is fetched."""
        return HostOutputs(fields)


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
        """Of the GPU, and what PyTorch's allocator holds and nobody uses."""
        cuda = self._torch.cuda
        unused = cuda.memory_reserved(self._device) - cuda.memory_allocated(self._device)
        return int(cuda.mem_get_info(self._device)[0] + unused)

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """As torch.zeros."""
        return self._torch.zeros(tuple(shape), dtype=getattr(self._torch, dtype), device=self._device)

    def upload(self, array: NDArray[Any]) -> Any:
        """Waits for nothing: from pageable memory, the copy to the device starts when the array has been read."""
        if array.dtype == np.uint16:
            return self.upload(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.tensor(array).to(self._device, non_blocking=True)

    def download(self, tensor: Any) -> NDArray[Any]:
        """Waits for the current stream."""
        refuse_in_capture("read")
        return as_numpy(tensor.cpu())

    def write(self, tensor: Any, index: Any, values: Any) -> None:
        """A number is an argument of the kernel that writes it. An array goes right to a part that is a view, and is
        copied first for any other."""
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
        """A stream of the engine's own, since the default one cannot be captured; no gradients."""
        with self._torch.inference_mode():
            if self._device.type != "cuda":
                yield
                return
            if self._work is None:
                self._work = self._torch.cuda.Stream(self._device)
                self._work.wait_stream(self._torch.cuda.current_stream(self._device))
            with _working[self.index, self._work.cuda_stream], self._torch.cuda.stream(self._work):
                yield

    def capture(self, launch: Callable[[], None]) -> DeviceGraph | None:
        """One CUDA graph, of the model's kernels and the ops' alike."""
        if self._device.type != "cuda":
            return None
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with _capture_lock, capturing(self.stream()) as capture:
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


class PaddleDevice(Device):
    """Paddle on a CUDA device."""

    framework = "paddle"

    def __init__(self, name: str) -> None:
        import paddle

        super().__init__(name)
        self._paddle = paddle
        self._place = paddle.CUDAPlace(self.index)

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """Through the host: paddle.zeros knows no place."""
        return self.upload(np.zeros(shape, _numpy_dtype(dtype)))

    def upload(self, array: NDArray[Any]) -> Any:
        """As paddle.to_tensor."""
        if array.dtype == np.uint16:
            return self.upload(array.view(np.int16)).view("bfloat16")
        return self._paddle.to_tensor(array, place=self._place)

    def download(self, tensor: Any) -> NDArray[Any]:
        """Waits for the current stream."""
        return as_numpy(tensor.cpu())

    def write(self, tensor: Any, index: Any, values: Any) -> None:
        """Assignment to an index writes in place. Numbers are uploaded too: Paddle (3.3.1) rounds large integers."""
        dtype = str(tensor.dtype).rpartition(".")[2]
        if isinstance(values, self._paddle.Tensor):
            tensor[index] = values.to(self._place).astype(dtype)
        else:
            tensor[index] = self.upload(np.asarray(values, _numpy_dtype(dtype)))

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


class CupyDevice(Device):
    """CuPy, which has no bfloat16: uint16 stands for it, as in NumPy."""

    framework = "cupy"

    def __init__(self, name: str) -> None:
        import cupy

        super().__init__(name)
        self._cupy = cupy
        self._device = cupy.cuda.Device(self.index)

    def free_bytes(self) -> int | None:
        """Of the GPU, and what CuPy's pool holds and nobody uses."""
        with self._device:
            pool = self._cupy.get_default_memory_pool()
            return int(self._cupy.cuda.runtime.memGetInfo()[0] + pool.free_bytes())

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """As cupy.zeros."""
        with self._device:
            return self._cupy.zeros(tuple(shape), _numpy_dtype(dtype))

    def upload(self, array: NDArray[Any]) -> Any:
        """As cupy.array."""
        with self._device:
            return self._cupy.array(array, order="C")

    def download(self, tensor: Any) -> NDArray[Any]:
        """Waits for the current stream."""
        array: NDArray[Any] = self._cupy.asnumpy(tensor)
        return array

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


_ON_CUDA: dict[str, Callable[[str], Device]] = {"torch": TorchDevice, "paddle": PaddleDevice, "cupy": CupyDevice}


def get_device(name: str, framework: str) -> Device:
    """The memory of a place, held by a framework; UnsupportedError if that framework holds none there."""
    if name == "cpu":
        return HostDevice()
    make = _ON_CUDA.get(framework) if name.startswith("cuda:") else None
    if make is None:
        raise UnsupportedError(
            f"expected a framework that holds memory on {name} ({', '.join(_ON_CUDA)}), got '{framework}'; choose "
            "another model.framework, or another backend"
        )
    return make(name)


def current_stream_of(framework: str, index: int) -> Stream:
    """How a framework is asked for its current stream on CUDA device `index`; for others, the default stream."""
    if framework == "torch":
        from torch._C import _cuda_getCurrentRawStream as raw  # 30 ns; torch.cuda.current_stream() takes a microsecond

        return lambda: int(raw(index))
    if framework == "paddle":
        import paddle

        return lambda: int(paddle.device.current_stream(f"gpu:{index}").__cuda_stream__()[1])
    if framework == "cupy":
        from cupy.cuda import get_current_stream

        return lambda: int(get_current_stream().ptr)
    return lambda: 0


def hand_over(array: NDArray[Any], framework: str) -> Any:
    """A copy of host values as a CPU tensor of a framework; NumPy's for those that have none."""
    if framework == "torch":
        import torch

        return torch.tensor(array)
    if framework == "paddle":
        import paddle

        return paddle.to_tensor(array, place=paddle.CPUPlace())
    return array.copy()


def contiguous(tensor: Any) -> Any:
    """The tensor, or a C-contiguous copy of it in its framework."""
    if hasattr(tensor, "contiguous"):
        return tensor.contiguous()
    if framework_of(type(tensor)) == "cupy":
        import cupy

        return cupy.ascontiguousarray(tensor)
    return np.ascontiguousarray(tensor)


def download(tensor: Any) -> NDArray[Any]:
    """The values of a tensor of any framework and place, as NumPy; waits for the device that holds them."""
    if isinstance(tensor, np.ndarray):
        return tensor
    refuse_in_capture("read")
    framework = framework_of(type(tensor))
    if framework in ("torch", "paddle"):
        return as_numpy(tensor.cpu())
    if framework == "cupy":
        array: NDArray[Any] = tensor.get()
        return array
    return as_numpy(dlpack_view(tensor))


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)
