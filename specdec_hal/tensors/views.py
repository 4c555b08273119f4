"""Looking at tensors of any framework without importing one.

NumPy, Paddle and PyTorch are recognised by their type; anything else that speaks DLPack is read through tvm-ffi.
NumPy has no bfloat16: an array of dtype uint16 is read as one (Paddle's convention too; no op takes unsigned 16-bit).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class TensorInfo(NamedTuple):
    """What validation needs to know of a tensor. `device` is "cpu" or, say, "cuda:0"; `address` is in bytes."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    contiguous: bool
    writeable: bool
    address: int
    nbytes: int

    @property
    def aligned(self) -> bool:
        """Whether elements lie at multiples of their size, as processors want them."""
        return self.address % _ITEMSIZE.get(self.dtype, 1) == 0


_NUMPY_DTYPES = {
    np.dtype(name): name
    for name in ("int64", "int32", "int16", "int8", "uint8", "float32", "float16", "float64", "bool")
} | {np.dtype("uint16"): "bfloat16"}
_ITEMSIZE = {name: dtype.itemsize for dtype, name in _NUMPY_DTYPES.items()}


def numpy_dtype_name(dtype: np.dtype[Any]) -> str:
    """The contract's name for a NumPy dtype, byte order included if it is foreign."""
    return _NUMPY_DTYPES.get(dtype) or dtype.str


def _numpy_info(array: NDArray[Any]) -> TensorInfo:
    flags = array.flags
    address = array.__array_interface__["data"][0]
    dtype = numpy_dtype_name(array.dtype)
    return TensorInfo(dtype, array.shape, "cpu", flags.c_contiguous, flags.writeable, address, array.nbytes)


_dtype_names: dict[Any, str] = {}


def _dtype_name(dtype: Any) -> str:
    """``torch.int64`` and ``paddle.int64`` -> ``int64``."""
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).rpartition(".")[2]
    return name


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    # Other dtypes are refused by every op; their size does not matter.
    count = _ITEMSIZE.get(dtype, 0)
    for extent in shape:
        count *= extent
    return count


def _torch_info(tensor: Any) -> TensorInfo:
    dtype = _dtype_name(tensor.dtype)
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    shape = tuple(tensor.shape)
    return TensorInfo(
        dtype, shape, device, tensor.is_contiguous(), not tensor.requires_grad, tensor.data_ptr(), tensor.nbytes
    )


def _paddle_info(tensor: Any) -> TensorInfo:
    dtype = _dtype_name(tensor.dtype)
    place = tensor.place
    device = "cpu" if place.is_cpu_place() else f"cuda:{place.gpu_device_id()}" if place.is_gpu_place() else str(place)
    shape = tuple(tensor.shape)
    size = _bytes(dtype, shape)
    contiguous = size == 0 or tensor.is_contiguous()  # Paddle denies it of reshaped tensors without elements
    return TensorInfo(dtype, shape, device, contiguous, tensor.stop_gradient, tensor.data_ptr(), size)


class _Unsynchronised:
    """Exports a CUDA tensor without a stream to wait for: launches go to a stream that the caller names."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self) -> Any:
        return self.tensor.__dlpack__(stream=-1)


_CUDA = 2  # kDLCUDA


def dlpack_view(tensor: Any) -> Any:
    """The memory of any DLPack tensor as a tvm_ffi.Tensor. Synchronises nothing, so that it works in graph captures."""
    import tvm_ffi

    on_device = hasattr(tensor, "__dlpack_device__") and tensor.__dlpack_device__()[0] == _CUDA
    exchanges = hasattr(type(tensor), "__dlpack_c_exchange_api__")  # tvm-ffi reads these without asking for streams
    return tvm_ffi.from_dlpack(_Unsynchronised(tensor) if on_device and not exchanges else tensor)


def _dlpack_info(tensor: Any) -> TensorInfo:
    view = dlpack_view(tensor)
    dtype, shape = str(view.dtype), tuple(view.shape)
    dtype = "bfloat16" if dtype == "uint16" else dtype
    device = "cpu" if str(view.device).startswith("cpu") else str(view.device)
    return TensorInfo(dtype, shape, device, view.is_contiguous(), True, view.data_ptr(), _bytes(dtype, shape))


_DESCRIBE: dict[type, Callable[[Any], TensorInfo]] = {np.ndarray: _numpy_info}


def framework_of(kind: type) -> str:
    """The framework whose tensors are of this type: "numpy", "torch", "paddle", "cupy", or "" for any other."""
    for base in kind.__mro__:
        if base is np.ndarray:
            return "numpy"
        root = base.__module__.partition(".")[0]
        if (root, base.__name__) in _TENSORS:
            return root
    return ""


_TENSORS = {("torch", "Tensor"), ("paddle", "Tensor"), ("cupy", "ndarray")}
_ADAPTERS = {"numpy": _numpy_info, "torch": _torch_info, "paddle": _paddle_info}


def _adapter(kind: type) -> Callable[[Any], TensorInfo] | None:
    return _ADAPTERS.get(framework_of(kind)) or (_dlpack_info if hasattr(kind, "__dlpack__") else None)


_DISGUISED = {
    "matrix": "pass numpy.asarray(x).ravel(), or what else has the declared shape",
    "MaskedArray": "pass x.filled(value); no op reads a mask",
}
"""NumPy's subclasses whose shape or values are not those of their memory, and what to pass instead."""


def disguised(kind: type) -> str | None:
    """How to get a plain array from tensors of this type; None if they are plain."""
    names = (base.__name__ for base in kind.__mro__ if base.__module__.partition(".")[0] == "numpy")
    return next((_DISGUISED[name] for name in names if name in _DISGUISED), None)


def describe(tensor: Any) -> TensorInfo | None:
    """Facts about a tensor of any framework, or None if it is no tensor."""
    kind = type(tensor)
    adapter = _DESCRIBE.get(kind)
    if adapter is None:
        adapter = _adapter(kind)
        if adapter is None:
            return None
        _DESCRIBE[kind] = adapter
    return adapter(tensor)


def as_numpy(tensor: Any) -> NDArray[Any]:
    """A NumPy view of a CPU tensor: the same memory, bfloat16 as uint16. Writes are seen by the owner."""
    if isinstance(tensor, np.ndarray):
        return tensor if type(tensor) is np.ndarray else tensor.view(np.ndarray)
    if getattr(tensor, "requires_grad", False) or not getattr(tensor, "stop_gradient", True):
        tensor = tensor.detach()  # frameworks refuse to export what they differentiate; the memory is the same
    dtype = getattr(tensor, "dtype", None)
    if dtype is not None and _dtype_name(dtype) == "bfloat16":
        adapter = _adapter(type(tensor))
        if adapter is _torch_info:
            import torch

            return as_numpy(tensor.view(torch.int16)).view(np.uint16)
        if adapter is _paddle_info:
            return as_numpy(tensor.view("int16")).view(np.uint16)
    array: NDArray[Any] = np.from_dlpack(tensor)
    if not array.flags.writeable:  # NumPy says so of every unversioned capsule, which knows no such thing
        import tvm_ffi

        array = np.from_dlpack(tvm_ffi.from_dlpack(tensor))
    return array


class _Writable:
    """Says of an array's memory that it may be written; keeps the array alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def shareable(array: NDArray[Any]) -> NDArray[Any]:
    """The array, or if it is read-only a view that DLPack can express: for inputs, which nobody writes."""
    return array if array.flags.writeable else np.asarray(_Writable(array))
