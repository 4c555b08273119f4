"""Each op run twice, by the model on arrays and by the layer on tensors: both must agree after every call.

Where FastDeploy leaves memory undefined, the model writes ANY (NaN in floats): such cells are not compared, and the
model takes over what the layer has there.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

Array = NDArray[Any]

ANY = -(2**30) - 7
FORBIDDEN = -1e9
"""FastDeploy writes -1e10 where no token may come, the layer -inf: what is below this is the same."""


def memory(tensor: Any) -> Array | None:
    """A host tensor's memory; None for others."""
    if not tensor.place.is_cpu_place():
        return None
    dtype, shape = np.dtype(str(tensor.dtype).rpartition(".")[2]), tuple(tensor.shape)
    size = dtype.itemsize * math.prod(shape)
    if size == 0:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(tensor.data_ptr()), dtype).reshape(shape)


class Buffer:
    """One of FastDeploy's buffers: the model's array and the layer's tensor."""

    def __init__(self, array: Any, tensor: Any = None) -> None:
        self.array: Array = np.array(array) if tensor is None else array
        self.tensor = paddle.to_tensor(self.array) if tensor is None else tensor
        self._memory = memory(self.tensor)

    def first(self, count: int) -> Buffer:
        """A view of the first rows."""
        return self if count == self.array.shape[0] else Buffer(self.array[:count], self.tensor[:count])

    def values(self) -> Array:
        """The tensor's."""
        return self.tensor.numpy() if self._memory is None else self._memory  # type: ignore[no-any-return]

    def flush(self) -> None:
        """Write the array to the tensor: the host, or an op of FastDeploy's own, has changed it."""
        if self._memory is None:
            paddle.assign(paddle.to_tensor(self.array), self.tensor)
        else:
            self._memory[...] = self.array

    @property
    def flat(self) -> Array:
        """The array in one axis; writes go through."""
        return self.array.reshape(-1)


class Lockstep:
    """Calls ops by FastDeploy's names on both sides."""

    def __init__(self, kernels: Mapping[str, Callable[..., Any]], layer: Any) -> None:
        self.kernels, self.layer = kernels, layer

    def run(self, op: str, *args: Any) -> Any:
        """Run an op with FastDeploy's positional arguments; gives its result as a buffer, or several."""
        wanted = self.kernels[op](*(arg.array if isinstance(arg, Buffer) else arg for arg in args))
        got = getattr(self.layer, op)(*(arg.tensor if isinstance(arg, Buffer) else arg for arg in args))
        for i, arg in enumerate(args):
            if isinstance(arg, Buffer):
                agree(f"{op}, argument {i}", arg)
        if wanted is None:
            given = {id(arg.tensor) for arg in args if isinstance(arg, Buffer)}
            fresh = [out for out in (got if isinstance(got, list) else [got]) if id(out) not in {*given, id(None)}]
            assert not fresh, f"{op} returns {fresh} where FastDeploy's returns its outputs alone"
            return None
        several = isinstance(wanted, list)
        assert several == isinstance(got, (list, tuple)), f"{op} returns {type(got)}"
        arrays, tensors = (wanted, got) if several else ([wanted], [got])
        assert len(arrays) == len(tensors), f"{op} returns {len(tensors)} tensors, FastDeploy's {len(arrays)}"
        buffers = [Buffer(array, tensor) for array, tensor in zip(arrays, tensors, strict=True)]
        for i, buffer in enumerate(buffers):
            agree(f"{op}, result {i}", buffer)
        return buffers if several else buffers[0]


def agree(what: str, buffer: Buffer) -> None:
    """Fail unless the tensor has the array's shape, dtype and values; then fill the array's undefined cells."""
    array, values = buffer.array, buffer.values()
    assert values.shape == array.shape, f"{what}: shape {values.shape}, FastDeploy's {array.shape}"
    assert values.dtype == array.dtype, f"{what}: {values.dtype}, FastDeploy's {array.dtype}"
    if np.array_equal(values, array):
        return
    if array.dtype.kind == "f":
        one, other = np.maximum(values, FORBIDDEN), np.maximum(array, FORBIDDEN)
        same = np.isnan(array) | np.isclose(one, other, rtol=1e-5, atol=1e-5)
        array[...] = values
    else:
        undefined = array == ANY if array.dtype != np.bool_ else np.full(array.shape, False)
        same = undefined | (values == array)
        array[undefined] = values[undefined]
    assert same.all(), f"{what} at {np.argwhere(~same)[0].tolist()}: the layer has\n{values}\nFastDeploy\n{array}"
