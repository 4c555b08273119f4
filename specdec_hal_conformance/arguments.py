"""Malformed calls: each wrong operand or attribute must be refused by name, and nothing be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np

from specdec_hal.errors import ArgumentError
from specdec_hal.ops import get_op
from specdec_hal.ops.bits import same_bits
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.spec import Role
from specdec_hal_conformance.case import Inputs, Workspace
from specdec_hal_conformance.guarded import GuardedHost
from specdec_hal_conformance.subject import Subject

# Extents of at least 2, so that each tensor can be strided, and all different, to detect swaps.
SIZES = {
    "M": 4, "B": 3, "S": 5, "L": 16, "V": 11, "D": 2, "C": 6, "E": 2, "W": 7, "N": 8, "Q": 10, "Z": 12, "I_cap": 9,
    "J": 13, "H": 14, "P": 17, "U": 18, "Y": 19, "T_cap": 40, "R_cap": 30, "A_cap": 20, "D_cap": 25,
    "V_draft": 21, "F_cap": 150, "R": 7, "Taps": 5, "H_k": 5, "H_v": 8, "D_k": 6, "D_v": 9, "C_draft": 15,
}  # fmt: skip


def valid_call(op: str, workspace: Workspace, operand: str = "", seed: int = 1, **options: Any) -> Inputs:
    """Arguments of a valid call that passes `operand`, even if it is optional or conditional."""
    spec = get_op(op)
    chosen = spec.by_name.get(operand)
    fixed: dict[str, Any] = {**SIZES, "nan": False}
    if "x" in spec.by_name:
        fixed["dtype"] = "float32"
    if chosen is not None and chosen.when is not None:
        fixed[chosen.when.attr] = chosen.when.values[0]
    for other in spec.operands:
        if other.optional:
            fixed[other.name] = other.name == operand

    def sized(name: str, **sizes: int) -> Any:
        if "max_ngram_size" not in spec.attr_by_name:  # ops without these sizes: those of one small index
            sizes.update(max_ngram_size=2, min_ngram_size=1)
        return workspace(name, **sizes)

    return generate(op, seed, workspace=sized, **{**fixed, **options})


@dataclass(frozen=True)
class Malformed:
    """One kind of malformed call: `spoil` changes placed arguments; the error must name one of `names`."""

    name: str
    operand: str
    names: tuple[str, ...]
    spoil: Callable[[dict[str, Any]], None]


def _set(name: str, value: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def spoil(call: dict[str, Any]) -> None:
        call[name] = value(call[name])

    return spoil


def _of_tensors(op: str, on_host: bool) -> Iterator[Malformed]:
    for operand in get_op(op).operands:
        name = operand.name
        yield Malformed(f"dtype:{name}", name, (name,), _set(name, lambda a: _cast(a)))
        yield Malformed(f"rank:{name}", name, (name,), _set(name, lambda a: a[..., None, None]))
        yield Malformed(f"not-a-tensor:{name}", name, (name,), _set(name, lambda a: "tensor"))
        yield Malformed(f"unknown:{name}_", name, (f"{name}_",), _renamed(name))
        if not operand.optional:
            yield Malformed(f"missing:{name}", name, (name,), _without(name))
        if not on_host:
            yield Malformed(f"on-the-host:{name}", name, (name,), _set(name, lambda tensor: tensor.cpu()))
        yield Malformed(f"strided:{name}", name, (name,), _set(name, _strided))
        if on_host and operand.role is not Role.IN:
            yield Malformed(f"read-only:{name}", name, (name,), _set(name, _read_only))
            for other, passing in _beside(op, name):
                yield Malformed(f"alias:{name}:{other}", passing, (name, other), _alias(name, other))


def _beside(op: str, name: str) -> Iterator[tuple[str, str]]:
    """The operands that can be passed with `name`, each with the operand to request for a valid call."""
    chosen = get_op(op).by_name[name]
    needy = chosen.optional or chosen.when is not None
    for other in get_op(op).operands:
        conditional = other.optional or other.when is not None
        if other.name != name and not (needy and conditional):
            yield other.name, other.name if conditional else name


def _cast(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return array.astype(np.float64)
    return array.double()


def _strided(array: Any) -> Any:
    if not isinstance(array, np.ndarray):
        return array.new_zeros(2, 2, 2) if tuple(array.shape) == (1,) else array.repeat_interleave(2, -1)[..., ::2]
    return np.repeat(array, 2, axis=-1)[..., ::2] if array.shape != (1,) else np.zeros((2, 2, 2), array.dtype)


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    frozen = array[...]
    frozen.setflags(write=False)
    return frozen


def _renamed(name: str) -> Callable[[dict[str, Any]], None]:
    def spoil(call: dict[str, Any]) -> None:
        call[f"{name}_"] = call[name]

    return spoil


def _alias(name: str, other: str) -> Callable[[dict[str, Any]], None]:
    """The two tensors share their last and first element."""

    def spoil(call: dict[str, Any]) -> None:
        a, b = call[name], call[other]
        step = max(a.itemsize, b.itemsize)
        start = -(-a.nbytes // step) * step - step
        memory = np.zeros(start + b.nbytes + a.nbytes, np.uint8)
        call[name] = memory[: a.nbytes].view(a.dtype).reshape(a.shape)
        call[other] = memory[start : start + b.nbytes].view(b.dtype).reshape(b.shape)

    return spoil


def _of_attributes(op: str) -> Iterator[Malformed]:
    for attr in get_op(op).attrs:
        name = attr.name
        wrong: dict[str, Any] = {"nonsense": "nonsense", "float": 1.5, "list": [1]}
        if issubclass(attr.kind, IntEnum):
            wrong["number"] = 0
        elif attr.kind is int:
            if attr.minimum is not None:
                wrong["below"] = attr.minimum - 1
            if attr.maximum is not None:
                wrong["above"] = attr.maximum + 1
        for kind, value in wrong.items():
            yield Malformed(f"{kind}:{name}", "", (name,), _set(name, partial(_instead, value)))
        if attr.default is None and not attr.from_backend:
            yield Malformed(f"missing:{name}", "", (name,), _without(name))


def _without(name: str) -> Callable[[dict[str, Any]], None]:
    def spoil(call: dict[str, Any]) -> None:
        del call[name]

    return spoil


def _instead(value: Any, given: Any) -> Any:
    return value


def malformed(op: str, subject: Subject) -> list[Malformed]:
    """All malformed calls of an op."""
    return [*_of_tensors(op, isinstance(subject.device, GuardedHost)), *_of_attributes(op)]


def not_claimed(op: str, subject: Subject, how: Malformed) -> str | None:
    """Why the original valid call is outside the backend's capabilities, or None."""
    return subject.refusal(op, valid_call(op, subject.workspace, how.operand))


def wrongly_refused(op: str, subject: Subject, how: Malformed) -> str | None:
    """What is wrong with the refusal of a malformed call, or None."""
    inputs = valid_call(op, subject.workspace, how.operand)
    placed, arguments = subject.place(inputs)
    how.spoil(arguments)
    try:
        getattr(subject.backend, op)(**arguments, stream=subject.device.stream())
    except ArgumentError as error:
        if error.op != op or not any(n == error.argument or f"'{n}'" in str(error) for n in how.names):
            return f"the error names '{error.argument}' of {error.op}, not {' or '.join(how.names)}: {error}"
    except Exception as error:
        return f"expected ArgumentError, got {type(error).__name__}: {error}"
    else:
        return "the call was not refused"
    for name, tensor in placed.items():
        if not same_bits(tensor.value(), inputs[name]).all():
            return f"'{name}' was written before the call was refused"
    return None
