"""Malformed op calls run, or are refused with an error of this project before anything is written."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import SpecDecError
from specdec_hal.ops import OPS, Strategy, TokenOrder
from specdec_hal.ops.inputs.generate import hostile
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.registry import get_backend
from specdec_hal.text import MESSAGE_LIMIT
from tests.support.fuzz import fuzz

Mutation = Callable[[random.Random, Any], Any]


class Subclass(np.ndarray):
    pass


class Rude:
    """Raises whatever it is asked."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Rude
        raise ZeroDivisionError(name)

    def __repr__(self) -> str:
        raise ZeroDivisionError

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    def __hash__(self) -> int:
        raise ZeroDivisionError


def exports(error: type[Exception] | None) -> Any:
    """Something that speaks DLPack, and fails at it, or gives no capsule."""

    def dlpack(self: object, **kwargs: Any) -> Any:
        if error is not None:
            raise error("no")
        return 7

    return type("Exports", (), {"__dlpack__": dlpack, "__dlpack_device__": lambda self: (1, 0)})()


def foreign(root: str, name: str, **attributes: Any) -> Any:
    """An object whose class looks like that of a framework's tensor."""
    return type(name, (), {"__module__": root, **attributes})()


def strided(array: np.ndarray[Any, Any]) -> Any:
    return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array


def misaligned(array: np.ndarray[Any, Any]) -> Any:
    data = np.zeros(array.nbytes + 1, np.uint8)
    view = data[1:].view(array.dtype) if array.nbytes else array
    result = view.reshape(array.shape)
    result[...] = array
    return result


def read_only(array: np.ndarray[Any, Any]) -> Any:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


TENSORS: list[Mutation] = [
    lambda r, x: None,
    lambda r, x: r.choice([0, 1.5, "x", b"x", [], [1], (), {}, True, 10**400, object(), np.ndarray, Ellipsis, len]),
    lambda r, x: x.tolist(),
    lambda r, x: np.asmatrix(x.reshape(-1, 1)) if x.size else np.asmatrix(np.zeros((0, 1), x.dtype)),
    lambda r, x: np.ma.masked_array(x.copy(), r.choice([False, True])),
    lambda r, x: x.copy().view(Subclass),
    lambda r, x: x.copy().view(np.recarray),
    lambda r, x: np.zeros(x.shape, r.choice(["int8", "uint32", "float64", "complex64", "object", "U3", "float16"])),
    lambda r, x: x.astype(x.dtype.newbyteorder()),
    lambda r, x: x.view(np.dtype([("a", x.dtype)])),
    lambda r, x: np.zeros(x.shape, r.choice(["datetime64[s]", "timedelta64[s]", "V8", "S4"])),
    lambda r, x: strided(x),
    lambda r, x: x[::-1],
    # Stacked as plain arrays: of matrices with one element, NumPy 2.4 reads memory that is not theirs.
    lambda r, x: np.asfortranarray(np.stack([np.asarray(x)] * 2, -1)[..., 0]),
    lambda r, x: misaligned(x),
    lambda r, x: read_only(x),
    lambda r, x: x[None],
    lambda r, x: x[..., None],
    lambda r, x: x.reshape(-1),
    lambda r, x: x.reshape(()) if x.size == 1 else x[..., 0] if x.ndim and x.shape[-1] else x,
    lambda r, x: x[: r.randrange(len(x) + 1)].copy() if x.ndim else x,
    lambda r, x: x[..., :0].copy() if x.ndim else x,
    lambda r, x: np.concatenate([x, x]) if x.ndim else x,
    lambda r, x: np.concatenate([x, x], -1) if x.ndim else x,
    lambda r, x: np.broadcast_to(np.zeros((), x.dtype), [r.choice([1, 2**9, 2**18]) for _ in x.shape]),
    lambda r, x: np.lib.stride_tricks.as_strided(x, x.shape, [0] * x.ndim),
    lambda r, x: memoryview(x.copy()) if x.size else x,
    lambda r, x: x.dtype.type(0),
    lambda r, x: Rude(),
    lambda r, x: exports(r.choice([None, ValueError, BufferError, ZeroDivisionError, KeyError, AttributeError])),
    lambda r, x: SimpleNamespace(__dlpack__=1, dtype=x.dtype, shape=x.shape),
    lambda r, x: foreign(r.choice(["torch", "paddle", "cupy"]), r.choice(["Tensor", "ndarray", "Parameter"])),
    lambda r, x: foreign("torch", "Tensor", dtype="int64", shape=(2,), is_cpu=True, nbytes="x"),
]

NUMBERS: list[Any] = [
    *(
        None,
        True,
        False,
        -1,
        0,
        1,
        2,
        3,
        2**31,
        2**63,
        2**64,
        -(2**63) - 1,
        10**5000,
        0.5,
        float("nan"),
        "x",
        "TOPP",
        b"",
    ),
    *(np.int64(3), np.bool_(True), np.array(3), np.array([1, 2]), np.float32(1), [], {}, object(), Strategy.TOPP),
    *(TokenOrder.SLOT, Strategy, Rude()),
]


def case(backend: Backend) -> Callable[[random.Random], tuple[str, dict[str, Any], list[Any], Any]]:
    ops = sorted(op for op in OPS if backend.capability(op) is not None)

    def generate(random: random.Random) -> tuple[str, dict[str, Any], list[Any], Any]:
        op = random.choice(ops)
        call: dict[str, Any] = hostile(op, random.randrange(50), workspace=backend.workspace)
        spec = OPS[op]
        for _ in range(random.choice([0, 1, 1, 1, 2, 3])):
            kind = random.randrange(12)
            tensors = [
                name
                for name, value in call.items()
                if name in spec.by_name and isinstance(value, np.ndarray) and value.nbytes < 1 << 20
            ]
            if kind == 0 and call:
                call.pop(random.choice(sorted(call)), None)
            elif kind == 1:
                call[random.choice(["x", "stream", "é", "", "logitz", "self", "op", *spec.attr_by_name])] = (
                    random.choice(NUMBERS)
                )
            elif kind == 2 and spec.attrs:
                call[random.choice(sorted(spec.attr_by_name))] = random.choice(NUMBERS)
            elif kind == 3 and len(tensors) > 1:
                one, other = random.sample(tensors, 2)
                call[one] = call[other]
            elif kind == 4 and tensors:
                name = random.choice(tensors)
                call[name] = call[random.choice(tensors)].reshape(-1)[: call[name].size].view()
            elif kind == 5:
                call[random.choice(sorted(spec.by_name))] = random.choice(NUMBERS)
            elif tensors:
                name = random.choice(tensors)
                with suppress(ValueError, TypeError, IndexError, AttributeError):  # not all apply to what others made
                    call[name] = random.choice(TENSORS)(random, call[name])
        args = [call.pop(name, None) for name in list(spec.by_name)[: random.choice([0, 0, 0, 2, len(spec.by_name)])]]
        args += [random.choice(NUMBERS)] * random.choice([0, 0, 0, 0, 1, 40])
        return op, call, args, random.choice([None] * 8 + NUMBERS)

    return generate


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_calls(name: str) -> None:
    backend = get_backend(name)

    def check(given: tuple[str, dict[str, Any], list[Any], Any]) -> str:
        op, call, args, stream = given
        arrays = [value for value in (*call.values(), *args) if isinstance(value, np.ndarray)]
        before = [value.tobytes() if value.nbytes < 1 << 20 and not value.dtype.hasobject else None for value in arrays]
        backend.debug = len(call) % 3 == 0
        try:
            if stream is None:
                getattr(backend, op)(*args, **call)
            else:
                backend.bind(op, *args, **call)(stream)
        except SpecDecError as error:
            assert len(str(error).encode()) <= MESSAGE_LIMIT
            after = [value.tobytes() if kept is not None else None for value, kept in zip(arrays, before, strict=True)]
            assert after == before, "written, and refused"
            return "refused"
        return "run"

    assert set(fuzz(case(backend), check)) == {"run", "refused"}
