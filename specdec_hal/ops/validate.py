"""Check a call against its OpSpec before the launch.

:func:`check_call` looks at names, dtypes, shapes, devices, layout, aliasing and attributes; it reads no tensor value.
:func:`check_values` (debug mode) reads them. Both raise :class:`~specdec_hal.errors.ArgumentError` for the first
violation; :func:`check_outputs` (debug mode, after the launch) raises OutputError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from numbers import Integral
from typing import Any, NoReturn

import numpy as np

from specdec_hal.errors import ArgumentError, OutputError
from specdec_hal.ops.spec import AttrSpec, Dim, Operand, OpSpec, Role, ValueRule
from specdec_hal.ops.vocabulary import MAXIMUM, MINIMUM
from specdec_hal.tensors.views import TensorInfo, as_numpy, describe, disguised
from specdec_hal.text import nearest, one_line, short

_MOST_ACCEPTED = 256
"""Combinations of shapes, dtypes and attributes cached per op; then the cache is cleared."""


@dataclass
class Call:
    """A checked call: tensors by name in signature order (None where absent), attributes typed, symbols bound."""

    op: OpSpec
    tensors: dict[str, Any]
    attrs: dict[str, Any]
    symbols: Mapping[str, int]
    dtypes: Mapping[str, str]


class _Raise:
    """Raises ArgumentError for one op on one backend."""

    def __init__(self, op: OpSpec, backend: str) -> None:
        self.op, self.backend = op, backend

    def __call__(self, argument: str, expected: str, got: str, hint: str) -> NoReturn:
        raise ArgumentError(
            op=self.op.name, backend=self.backend, argument=argument, expected=expected, got=got, hint=hint
        )


def check_call(
    op: OpSpec,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    backend: str,
    device: str = "cpu",
    attr_defaults: Mapping[str, Any] = {},
) -> Call:
    """Bind and check the arguments of `op`.

    `device` is the backend's kind of device ("cpu", "cuda"); all tensors must share one device of that kind.
    `attr_defaults` supplies backend attributes (`token_order`).
    """
    fail = _Raise(op, backend)
    if len(args) > len(op.operands):
        fail("*args", f"at most {len(op.operands)} positional tensors", str(len(args)), "pass attributes by keyword")
    given = dict(zip(op.by_name, args, strict=False))
    for name in kwargs:
        if name in given:
            fail(name, "one value", "two (by position and by keyword)", "pass it once")
        if name not in op.by_name and name not in op.attr_by_name:
            known = [*op.by_name, *op.attr_by_name]
            near = nearest(name, known)
            fail(name, f"one of {', '.join(known)}", "an unknown name", f"use '{near}'" if near else "remove it")
    given.update(kwargs)
    attrs = {spec.name: _check_attr(spec, given, attr_defaults, fail) for spec in op.attrs}
    return _check_tensors(op, given, attrs, device, fail)


def _check_attr(spec: AttrSpec, given: Mapping[str, Any], defaults: Mapping[str, Any], fail: _Raise) -> Any:
    name = spec.name
    if name not in given:
        value = defaults.get(name) if spec.from_backend else spec.default
        if value is None:
            fail(name, spec.allowed(), "nothing", "pass it by keyword")
        return value
    value = spec.named(given[name])
    kind = spec.kind
    if issubclass(kind, IntEnum):
        if type(value) is not kind:
            fail(name, spec.allowed(), short(value), f"pass a {kind.__name__} or its name")
        return value
    if kind is bool:
        if not isinstance(value, (bool, np.bool_)):
            fail(name, "bool", short(value), "pass True or False")
        return bool(value)
    low, high = spec.minimum, spec.maximum
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or (low is not None and value < low) or (high is not None and value > high):
        fail(name, spec.allowed(), short(value), "pass an int in range")
    return int(value)


def _check_tensors(op: OpSpec, given: dict[str, Any], attrs: dict[str, Any], device: str, fail: _Raise) -> Call:
    tensors: dict[str, Any] = {}
    infos: dict[str, TensorInfo | None] = {}
    looks: list[Any] = []
    owners: set[int] = set()
    clash = False
    for name in op.by_name:
        value = tensors[name] = given.get(name)
        if type(value) is np.ndarray:
            looks.append((value.dtype, value.shape, value.flags.num))
            base = value.base
            owner = id(value) if base is None else id(base)
            # Foreign owners (a DLPack capsule, a buffer) may share memory under different identities.
            if owner in owners or not (base is None or (type(base) is np.ndarray and base.base is None)):
                clash = True
            owners.add(owner)
        elif value is None:
            looks.append(None)
        else:
            if hint := disguised(type(value)):
                fail(name, "an array that is what its memory holds", f"a {type(value).__name__}", hint)
            try:
                info = infos[name] = describe(value)
            except Exception as error:  # any error of a tensor-like object
                got = f"a {type(value).__name__} that refuses ({one_line(error)})"
                fail(name, "a tensor that can be shared through DLPack", got, "pass a plain, dense tensor")
            looks.append(type(value) if info is None else info[:5])
            clash = True
    # Most calls resemble the previous one: cache accepted calls, never refused ones.
    key = (device, *attrs.values(), *looks)
    accepted = op.accepted.get(key)
    if accepted is None:
        accepted = _check_looks(op, tensors, infos, attrs, device, fail)
        if len(op.accepted) >= _MOST_ACCEPTED:
            op.accepted.clear()
        op.accepted[key] = accepted
    if clash:
        _check_aliasing(op, tensors, infos, fail)
    return Call(op, tensors, attrs, *accepted)


def _check_looks(
    op: OpSpec,
    tensors: Mapping[str, Any],
    infos: dict[str, TensorInfo | None],
    attrs: dict[str, Any],
    device: str,
    fail: _Raise,
) -> tuple[dict[str, int], dict[str, str]]:
    """All checks but aliasing; returns the bound symbols and the dtypes."""
    dtypes: dict[str, str] = {}
    symbols: dict[str, int] = {}
    bound_by: dict[str, str] = {}
    first = ""
    for operand in op.operands:
        name, value = operand.name, tensors[operand.name]
        if not operand.wanted(attrs):
            if value is not None:
                fail(name, f"nothing unless {operand.when}", "a tensor", "leave it out or change the attribute")
            continue
        if value is None:
            if not operand.optional:
                fail(name, f"a tensor ({_declared(operand, attrs)})", "nothing", "pass it")
            continue
        info = infos[name] if name in infos else describe(value)
        if info is None:
            expected = f"a tensor ({_declared(operand, attrs)})"
            fail(name, expected, type(value).__name__, "pass a NumPy or DLPack tensor")
        if info.dtype not in operand.tensor.dtypes:
            expected = f"dtype {' | '.join(operand.tensor.dtypes)}"
            fail(name, expected, info.dtype, "cast it; nothing is converted silently")
        if info.device != (first or info.device) or not info.device.startswith(device):
            expected = f"a tensor on {first or device}"
            fail(name, expected, f"one on {info.device}", "move it to the backend's device, or choose another backend")
        if not info.contiguous:
            fail(name, "a C-contiguous tensor", "a strided view", "pass a contiguous copy")
        if not info.aligned:
            fail(name, f"memory aligned for {info.dtype}", f"address {info.address:#x}", "pass a copy")
        if operand.role is not Role.IN and not info.writeable:
            expected = f"a writable tensor (role {operand.role.value})"
            fail(name, expected, "a read-only one, or one that tracks gradients", "pass a writable tensor")
        first, dtypes[name] = info.device, info.dtype
        _bind_shape(operand, operand.dims(attrs), info.shape, symbols, bound_by, fail)
    for operand in op.operands:
        like = operand.tensor.dtype_of
        if like and operand.name in dtypes and dtypes[operand.name] != dtypes.get(like):
            fail(operand.name, f"dtype {dtypes[like]}, that of '{like}'", dtypes[operand.name], "cast one of them")
    for name, minimum in MINIMUM.items():
        if symbols.get(name, minimum) < minimum:
            fail(bound_by[name], f"{name} >= {minimum}", f"{name} = {symbols[name]}", "pass a larger tensor")
    for name, maximum in MAXIMUM.items():
        if symbols.get(name, maximum) > maximum:
            fail(bound_by[name], f"{name} <= {maximum}", f"{name} = {symbols[name]}", "pass a smaller tensor")
    known = {**symbols, **attrs}
    for relation in op.relations:
        if not relation.holds(known):
            left, right = relation.left, relation.right
            argument = bound_by.get(left, left)
            fail(argument, str(relation), f"{left} = {known[left]}, {right} = {known[right]}", "make them agree")
    return symbols, dtypes


def _bind_shape(
    operand: Operand,
    dims: tuple[Dim, ...],
    shape: tuple[int, ...],
    symbols: dict[str, int],
    bound_by: dict[str, str],
    fail: _Raise,
) -> None:
    rank = len(dims)
    if len(shape) != rank and not (rank == 1 and len(shape) == 2 and shape[1] == 1):
        fail(operand.name, f"rank {rank} {_show(dims)}", f"rank {len(shape)} {list(shape)}", "reshape it")
    for dim, extent in zip(dims, shape, strict=False):
        symbol = dim.symbol
        if symbol is None:
            wanted = dim.offset
        elif symbol in symbols:
            wanted = symbols[symbol] + dim.offset
        else:
            wanted = extent
            symbols[symbol] = extent - dim.offset
            bound_by[symbol] = operand.name
            if extent < dim.offset:
                fail(operand.name, f"shape {_show(dims)}", str(list(shape)), f"{dim} cannot be {extent}")
        if extent != wanted:
            cause = f" ({symbol} = {symbols[symbol]} from '{bound_by[symbol]}')" if symbol else ""
            fail(operand.name, f"shape {_show(dims)}, so {dim} = {wanted}{cause}", str(list(shape)), "make them agree")


def _check_aliasing(
    op: OpSpec, tensors: Mapping[str, Any], infos: Mapping[str, TensorInfo | None], fail: _Raise
) -> None:
    spans = []
    for operand in op.operands:
        value = tensors[operand.name]
        info = None if value is None else infos[operand.name] if operand.name in infos else describe(value)
        if info is not None and not info.aligned:  # not cached for all tensors
            fail(operand.name, f"memory aligned for {info.dtype}", f"address {info.address:#x}", "pass a copy")
        if info is not None and info.nbytes:
            spans.append((info.address, info.address + info.nbytes, operand.role is not Role.IN, operand.name))
    spans.sort()
    # Sorted by start: a tensor can only overlap the furthest end so far, of all or of written tensors.
    reach: tuple[int, str] = (0, "")
    written_reach: tuple[int, str] = (0, "")
    for start, stop, written, name in spans:
        end, other = reach if written else written_reach
        if start < end:
            fail(
                name,
                f"memory of its own (one of the two is written), not shared with '{other}'",
                "an alias",
                "copy one",
            )
        reach = max(reach, (stop, name))
        if written:
            written_reach = max(written_reach, (stop, name))


def check_values(call: Call, backend: str, to_host: Any = as_numpy) -> None:
    """Check the value rules of inputs; `to_host` copies a device tensor to NumPy."""
    fail = _Raise(call.op, backend)
    for operand, rule, offence in _offences(call, (Role.IN, Role.INOUT), to_host):
        fail(operand.name, f"values {rule.doc}", offence, "fix the producer (debug mode checks values)")


def check_outputs(call: Call, backend: str, to_host: Any = as_numpy) -> None:
    """Check the value rules of an op's outputs. OutputError: its backend breaks the contract.

    Tensors updated in place are checked by the next op: inconsistent inputs may put them out of range.
    """
    for operand, rule, offence in _offences(call, (Role.OUT,), to_host):
        raise OutputError(
            f"{call.op.name} [{backend}]: output '{operand.name}': expected values {rule.doc}, got {offence}; the "
            f"backend breaks the contract, see specdec-hal conformance --backend {backend}"
        )


def _offences(call: Call, roles: tuple[Role, ...], to_host: Any) -> Iterator[tuple[Operand, ValueRule, str]]:
    for operand in call.op.operands:
        rule = operand.tensor.values
        tensor = call.tensors[operand.name]
        if tensor is None or rule is None or operand.role not in roles:
            continue
        array = to_host(tensor)
        if operand.tensor.dims and array.ndim > len(operand.tensor.dims):
            array = array[..., 0]
        offence = rule.check(array, call.symbols)
        if offence is not None:
            yield operand, rule, offence


def _show(dims: tuple[Dim, ...]) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"


def _declared(operand: Operand, attrs: Mapping[str, Any]) -> str:
    return f"{' | '.join(operand.tensor.dtypes)} {_show(operand.dims(attrs))}"
