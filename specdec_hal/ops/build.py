"""Short forms for OpSpecs."""

from __future__ import annotations

import inspect
from dataclasses import replace

from specdec_hal.ops.spec import AttrSpec, Operand, OpSpec, Relation, Role, When
from specdec_hal.ops.vocabulary import tensor


def _operands(role: Role, names: tuple[str, ...], optional: bool, when: When | None) -> tuple[Operand, ...]:
    return tuple(Operand(tensor(name), role, optional, when) for name in names)


def inp(*names: str, optional: bool = False, when: When | None = None) -> tuple[Operand, ...]:
    """Tensors that are read."""
    return _operands(Role.IN, names, optional, when)


def out(*names: str) -> tuple[Operand, ...]:
    """Tensors that are only written."""
    return _operands(Role.OUT, names, False, None)


def out_per_row(name: str, doc: str) -> tuple[Operand, ...]:
    """An optional output with one entry per output row."""
    return (Operand(replace(tensor(name), shape=("R_cap",), doc=doc), Role.OUT, optional=True),)


def inout(*names: str, optional: bool = False, when: When | None = None) -> tuple[Operand, ...]:
    """Tensors that are read and written."""
    return _operands(Role.INOUT, names, optional, when)


def op(
    name: str,
    section: int,
    summary: str,
    doc: str,
    *operands: tuple[Operand, ...],
    attrs: tuple[AttrSpec, ...] = (),
    relations: tuple[Relation, ...] = (),
) -> OpSpec:
    """An OpSpec with operand groups joined in positional order. B <= M holds wherever both occur."""
    joined = tuple(operand for group in operands for operand in group)
    spec = OpSpec(name, section, summary, inspect.cleandoc(doc), joined, attrs, relations)
    return replace(spec, relations=(Relation("B", "M"), *relations)) if {"B", "M"} <= {*spec.symbols} else spec
