"""Ops as data.

An :class:`OpSpec` alone states an op's tensors, dtypes, shapes, attributes and value rules. Validation, help, the
contract's page, C++ headers and test inputs derive from it; a backend only supplies the computation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property
from typing import Any

import numpy as np

Symbols = Mapping[str, int]
Values = Mapping[str, Any]

FLOATS = ("float32", "float16", "bfloat16")


class Role(Enum):
    """Whether an op reads a tensor, writes it, or both."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"


@dataclass(frozen=True)
class Dim:
    """One extent of a shape: a number, a symbol, or a symbol plus a number (``B+1``, ``S-1``)."""

    symbol: str | None
    offset: int

    @classmethod
    def parse(cls, text: str | int) -> Dim:
        """Read ``4``, ``"M"``, ``"B+1"`` or ``"S-1"``."""
        if isinstance(text, int):
            return cls(None, text)
        match = re.fullmatch(r"([A-Z][A-Za-z_]*)([+-]\d+)?", text)
        if match is None:
            raise ValueError(f"bad dimension {text!r}: expected a symbol such as 'M', or 'B+1'")
        return cls(match[1], int(match[2] or 0))

    def value(self, symbols: Symbols) -> int:
        """The extent once every symbol is known."""
        return self.offset + (symbols[self.symbol] if self.symbol is not None else 0)

    def __str__(self) -> str:
        if self.symbol is None:
            return str(self.offset)
        return self.symbol + (f"{self.offset:+d}" if self.offset else "")


@dataclass(frozen=True)
class ValueRule:
    """A rule on the values of a tensor, checked only in debug mode: ops clamp and never trust inputs.

    `check` takes the NumPy array and the bound symbols, and returns the first violation as text, or None.
    """

    doc: str
    check: Callable[[Any, Symbols], str | None]


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor of the vocabulary. A name has the same meaning in every op."""

    name: str
    dtypes: tuple[str, ...]
    shape: tuple[str | int, ...]
    doc: str
    values: ValueRule | None = None
    dtype_of: str = ""
    """Name of the operand whose dtype this one must have."""

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The shape, parsed."""
        return tuple(Dim.parse(extent) for extent in self.shape)


@dataclass(frozen=True)
class When:
    """An operand is needed only for some values of an attribute."""

    attr: str
    values: tuple[Any, ...]

    def holds(self, attrs: Values) -> bool:
        """Whether the attribute has one of the values."""
        return attrs[self.attr] in self.values

    def __str__(self) -> str:
        names = ", ".join(v.name if isinstance(v, Enum) else str(v) for v in self.values)
        return f"{self.attr} in ({names})"


@dataclass(frozen=True)
class Operand:
    """A tensor in an op's signature.

    `optional`: may be None. `when`: required for those attribute values, refused for others.
    `shape_by`: (attribute, value -> shape) if the shape depends on an attribute.
    """

    tensor: TensorSpec
    role: Role
    optional: bool = False
    when: When | None = None
    shape_by: tuple[str, Mapping[Any, tuple[str | int, ...]]] | None = None

    @property
    def name(self) -> str:
        """The name of the tensor and the argument."""
        return self.tensor.name

    def dims(self, attrs: Values) -> tuple[Dim, ...]:
        """The parsed shape for these attributes."""
        if self.shape_by is None:
            return self.tensor.dims
        attr, shapes = self.shape_by
        return tuple(Dim.parse(extent) for extent in shapes[attrs[attr]])

    @property
    def every_dims(self) -> tuple[tuple[Dim, ...], ...]:
        """The parsed shapes for all attributes."""
        if self.shape_by is None:
            return (self.tensor.dims,)
        attr, shapes = self.shape_by
        return tuple(self.dims({attr: value}) for value in shapes)

    def wanted(self, attrs: Values) -> bool:
        """Whether the op uses this operand under these attributes."""
        return self.when is None or self.when.holds(attrs)


@dataclass(frozen=True)
class AttrSpec:
    """A keyword attribute. An IntEnum accepts its members or their names in any case.

    `default` None means required, unless `from_backend`: then the backend's property of the same name is the default.
    """

    name: str
    kind: type[bool] | type[int] | type[IntEnum]
    doc: str
    default: Any = None
    minimum: int | None = None
    maximum: int | None = None
    from_backend: bool = False

    def named(self, value: Any) -> Any:
        """The member of that name; other values are unchanged."""
        if issubclass(self.kind, IntEnum) and isinstance(value, str):
            return self.kind.__members__.get(value.upper(), value)
        return value

    def allowed(self) -> str:
        """The allowed values, for messages and docs."""
        if issubclass(self.kind, IntEnum):
            return " | ".join(member.name for member in self.kind)
        if self.kind is bool:
            return "bool"
        low = "-inf" if self.minimum is None else str(self.minimum)
        high = "inf" if self.maximum is None else str(self.maximum)
        return f"int in [{low}, {high}]"


@dataclass(frozen=True)
class Relation:
    """An inequality between bound symbols or attributes, such as ``B <= M``."""

    left: str
    right: str

    def holds(self, known: Symbols) -> bool:
        """Whether left <= right; unbound sides impose no limit."""
        left, right = known.get(self.left), known.get(self.right)
        return left is None or right is None or left <= right

    def __str__(self) -> str:
        return f"{self.left} <= {self.right}"


@dataclass(frozen=True)
class OpSpec:
    """One op of the contract. `doc` states the semantics; each statement ends in its rule id, ``[#id]``."""

    name: str
    section: int
    summary: str
    doc: str
    operands: tuple[Operand, ...]
    attrs: tuple[AttrSpec, ...] = ()
    relations: tuple[Relation, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Operand]:
        """Operands by argument name."""
        return {operand.name: operand for operand in self.operands}

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the operands' shapes, in order of appearance."""
        shapes = [dims for operand in self.operands for dims in operand.every_dims]
        return tuple(dict.fromkeys(dim.symbol for dims in shapes for dim in dims if dim.symbol is not None))

    @cached_property
    def rules(self) -> Mapping[str, str]:
        """The statements of `doc` by rule id: ``Tails are -1 [#tails].``"""
        return parse_rules(self.doc)

    @cached_property
    def accepted(self) -> dict[Any, tuple[Mapping[str, int], Mapping[str, str]]]:
        """Cache of `validate`: (device, attributes, tensors' properties) -> (symbols, dtypes)."""
        return {}

    @cached_property
    def attr_by_name(self) -> Mapping[str, AttrSpec]:
        """Attributes by name."""
        return {attr.name: attr for attr in self.attrs}


RULE_MARK = re.compile(r"\s*\[#([a-z0-9-]+)\]")


def parse_rules(doc: str) -> dict[str, str]:
    """Statements by rule id: the text between marks ``[#id]``. ValueError for a duplicate id."""
    rules: dict[str, str] = {}
    start = 0
    for mark in RULE_MARK.finditer(doc):
        if mark[1] in rules:
            raise ValueError(f"rule id '{mark[1]}' marks two statements; rename one")
        rules[mark[1]] = " ".join(doc[start : mark.start()].split()).lstrip(".,;: ")
        start = mark.end()
    return rules


def between(low: int, high: str | int | None) -> ValueRule:
    """Every value in [low, high]; `high` may be a symbol expression such as ``S`` or ``V-1``."""
    top = None if high is None else Dim.parse(high)

    def check(array: Any, symbols: Symbols) -> str | None:
        limit = None
        if top is not None and (top.symbol is None or top.symbol in symbols):
            limit = top.value(symbols)
        bad = ~(array >= low)  # NaN must fail
        if limit is not None:
            bad = bad | (array > limit)
        if not bad.any():
            return None
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        return f"{array[where]} at {list(where)}"

    return ValueRule(f"in [{low}, {'inf' if top is None else top}]", check)


def _check_offsets(array: Any, symbols: Symbols) -> str | None:
    if array.size and array[0] != 0:
        return f"{array[0]} at [0]"
    drop = np.flatnonzero(np.diff(array) < 0)
    return f"{array[drop[0] + 1]} after {array[drop[0]]} at [{drop[0] + 1}]" if drop.size else None


def _check_no_nan(array: Any, symbols: Symbols) -> str | None:
    values = array.astype(np.uint32) << 16 if array.dtype == np.uint16 else array
    nan = np.isnan(values.view(np.float32) if array.dtype == np.uint16 else values)
    rows = np.flatnonzero(nan.any(axis=-1))
    return f"NaN in row {rows[0]}" if rows.size else None


OFFSETS = ValueRule("non-decreasing, starting at 0", _check_offsets)
NO_NAN = ValueRule("no NaN", _check_no_nan)
