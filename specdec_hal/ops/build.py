"""Short forms for writing OpSpecs."""

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
    """Tensors that are written, whatever they held."""
    return _operands(Role.OUT, names, False, None)


def out_per_row(name: str, doc: str) -> tuple[Operand, ...]:
    """A tensor of the vocabulary, one entry an output row, that is written if it is given."""
    return (Operand(replace(tensor(name), shape=("R_cap",), doc=doc), Role.OUT, optional=True),)


def inout(*names: str, optional: bool = False) -> tuple[Operand, ...]:
    """Tensors that are read and written."""
    return _operands(Role.INOUT, names, optional, None)


def op(
    name: str,
    section: int,
    summary: str,
    doc: str,
    *operands: tuple[Operand, ...],
    attrs: tuple[AttrSpec, ...] = (),
    relations: tuple[Relation, ...] = (),
) -> OpSpec:
    """An OpSpec whose operand groups are joined in the order given, which is the positional order of a call."""
    joined = tuple(operand for group in operands for operand in group)
    return OpSpec(name, section, summary, inspect.cleandoc(doc), joined, attrs, relations)
