"""Inspect tensors of any framework without importing one.

NumPy, Paddle and PyTorch are recognised by their type; anything else that speaks DLPack is read through tvm-ffi.
NumPy has no bfloat16: an array of dtype uint16 is read as one (Paddle's convention too; no op takes unsigned 16-bit).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec_hal.tensors.graph_capture import refuse_in_capture

Stream = Callable[[], int]
"""Returns the current stream as an integer handle."""


class TensorInfo(NamedTuple):
    """A tensor's properties for validation. `device` is "cpu" or, for example, "cuda:0"; `address` is in bytes."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    contiguous: bool
    writeable: bool
    address: int
    nbytes: int

    @property
    def aligned(self) -> bool:
        """Whether elements are aligned to their size."""
        return self.address % _ITEMSIZE.get(self.dtype, 1) == 0


_NUMPY_DTYPES = {
    np.dtype(name): name
    for name in ("int64", "int32", "int16", "int8", "uint8", "float32", "float16", "float64", "bool")
} | {np.dtype("uint16"): "bfloat16"}
_ITEMSIZE = {name: dtype.itemsize for dtype, name in _NUMPY_DTYPES.items()}


def numpy_dtype_name(dtype: np.dtype[Any]) -> str:
    """The contract's name for a NumPy dtype, with a foreign byte order."""
    return _NUMPY_DTYPES.get(dtype) or dtype.str


def _numpy_info(array: NDArray[Any]) -> TensorInfo:
    flags = array.flags
    address = array.__array_interface__["data"][0]
    dtype = numpy_dtype_name(array.dtype)
    return TensorInfo(dtype, array.shape, "cpu", flags.c_contiguous, flags.writeable, address, array.nbytes)


_dtype_names: dict[Any, str] = {}


def dtype_name(dtype: Any) -> str:
    """``torch.int64`` and ``paddle.int64`` -> ``int64``."""
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).rpartition(".")[2]
    return name


def byte_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Of a tensor."""
    # All ops refuse other dtypes; their size does not matter.
    count = _ITEMSIZE.get(dtype, 0)
    for extent in shape:
        count *= extent
    return count


class _Unsynchronised:
    """Exports a CUDA tensor without synchronisation; the caller names the stream of launches."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self) -> Any:
        return self.tensor.__dlpack__(stream=-1)


_CUDA = 2  # kDLCUDA


def dlpack_view(tensor: Any) -> Any:
    """The memory of any DLPack tensor as a tvm_ffi.Tensor, without synchronisation, so it works in captures."""
    import tvm_ffi

    on_device = hasattr(tensor, "__dlpack_device__") and tensor.__dlpack_device__()[0] == _CUDA
    exchanges = hasattr(type(tensor), "__dlpack_c_exchange_api__")  # tvm-ffi reads these without asking for streams
    return tvm_ffi.from_dlpack(_Unsynchronised(tensor) if on_device and not exchanges else tensor)


class Framework:
    """What is asked of a tensor's framework. As it stands here: of NumPy, and of whatever speaks DLPack."""

    def describe(self, tensor: Any) -> TensorInfo:
        """Facts about a tensor."""
        view = dlpack_view(tensor)
        dtype, shape = str(view.dtype), tuple(view.shape)
        dtype = "bfloat16" if dtype == "uint16" else dtype
        device = "cpu" if str(view.device).startswith("cpu") else str(view.device)
        return TensorInfo(dtype, shape, device, view.is_contiguous(), True, view.data_ptr(), byte_size(dtype, shape))

    def bits(self, tensor: Any) -> Any:
        """A tensor of bfloat16 as int16, in the same memory."""
        return tensor

    def current_stream(self, index: int) -> Stream:
        """Asks for the current stream on CUDA device `index`: here, the default stream."""
        return lambda: 0

    def download(self, tensor: Any) -> NDArray[Any]:
        """The values on the host; waits for the device that holds them."""
        return as_numpy(tensor.cpu() if hasattr(tensor, "cpu") else dlpack_view(tensor))

    def contiguous(self, tensor: Any) -> Any:
        """The tensor, or a C-contiguous copy of it."""
        return tensor.contiguous() if hasattr(tensor, "contiguous") else np.ascontiguousarray(tensor)

    def on_host(self, array: NDArray[Any]) -> Any:
        """A copy of host values as a CPU tensor; NumPy's where the framework has none."""
        return array.copy()


ON_CUDA = ("torch", "paddle")
"""Frameworks that hold a runner's tensors on a GPU."""
_TENSORS = {("torch", "Tensor"), ("paddle", "Tensor"), ("cupy", "ndarray")}
_WITH_STREAMS = {name for name, _ in _TENSORS}
_ANY = Framework()


def framework_of(kind: type) -> str:
    """The framework whose tensors are of this type: "numpy", "torch", "paddle", "cupy", or "" for any other."""
    for base in kind.__mro__:
        if base is np.ndarray:
            return "numpy"
        root = base.__module__.partition(".")[0]
        if (root, base.__name__) in _TENSORS:
            return root
    return ""


@cache
def framework(name: str) -> Framework:
    """The framework of that name; for others, what DLPack has."""
    return module(name).FRAMEWORK if name in _WITH_STREAMS else _ANY


def module(name: str) -> Any:
    """What this package has for a framework: its FRAMEWORK and, for those of ON_CUDA, the DEVICE of a runner."""
    return import_module(f"specdec_hal.tensors.on_{name}")


_DISGUISED = {
    "matrix": "pass numpy.asarray(x).ravel(), or what else has the declared shape",
    "MaskedArray": "pass x.filled(value); no op reads a mask",
}
"""NumPy's subclasses whose shape or values differ from their memory, and hints."""


def disguised(kind: type) -> str | None:
    """A hint for tensors of this type, or None if they are plain."""
    names = (base.__name__ for base in kind.__mro__ if base.__module__.partition(".")[0] == "numpy")
    return next((_DISGUISED[name] for name in names if name in _DISGUISED), None)


_DESCRIBE: dict[type, Callable[[Any], TensorInfo]] = {np.ndarray: _numpy_info}
"""How tensors of the types met so far are described: validation asks for every operand of every call."""


def describe(tensor: Any) -> TensorInfo | None:
    """Properties of a tensor of any framework; None for other objects."""
    kind = type(tensor)
    adapter = _DESCRIBE.get(kind)
    if adapter is None:
        if not (framework_of(kind) or hasattr(kind, "__dlpack__")):
            return None
        held_by = framework_of(kind)
        adapter = _DESCRIBE[kind] = _numpy_info if held_by == "numpy" else framework(held_by).describe
    return adapter(tensor)


def download(tensor: Any) -> NDArray[Any]:
    """The values of a tensor of any framework and place, as NumPy; waits for the device that holds them."""
    if isinstance(tensor, np.ndarray):
        return tensor
    refuse_in_capture("read")
    return framework(framework_of(type(tensor))).download(tensor)


def as_numpy(tensor: Any) -> NDArray[Any]:
    """A NumPy view of a CPU tensor: shared memory, bfloat16 as uint16."""
    if isinstance(tensor, np.ndarray):
        return tensor if type(tensor) is np.ndarray else tensor.view(np.ndarray)
    if getattr(tensor, "requires_grad", False) or not getattr(tensor, "stop_gradient", True):
        tensor = tensor.detach()  # frameworks do not export tensors with gradients; the memory is the same
    dtype, held_by = getattr(tensor, "dtype", None), framework_of(type(tensor))
    if held_by and dtype is not None and dtype_name(dtype) == "bfloat16":
        return as_numpy(framework(held_by).bits(tensor)).view(np.uint16)
    array: NDArray[Any] = np.from_dlpack(tensor)
    if not array.flags.writeable:  # NumPy assumes this of every unversioned capsule
        import tvm_ffi

        array = np.from_dlpack(tvm_ffi.from_dlpack(tensor))
    return array


class _Writable:
    """Declares an array's memory writable; keeps the array alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def shareable(array: NDArray[Any]) -> NDArray[Any]:
    """The array or, if read-only, a view that DLPack can express, for inputs."""
    return array if array.flags.writeable else np.asarray(_Writable(array))
