"""Shrink failing inputs: fewer slots, shorter rows, zeros, default attributes, while the check still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import numpy as np

from specdec_hal.ops import OpSpec, get_op
from specdec_hal.ops.spec import Role
from specdec_hal.ops.vocabulary import MINIMUM
from specdec_hal_conformance.case import Inputs

_ORDER = ("B", "M", "S", "V", "L", "C", "N", "D", "W", "E", "I_cap", "T_cap", "R_cap", "A_cap")


def shrink(op: str, inputs: Inputs, fails: Callable[[Inputs], bool], budget: int = 400) -> Inputs:
    """The smallest inputs found within `budget` runs of `fails`, which must be true of `inputs`."""
    spec = get_op(op)
    best, left = inputs, budget
    improved = True
    while improved and left > 0:
        improved = False
        for candidate in _smaller(spec, best):
            left -= 1
            if left < 0:
                break
            if fails(candidate):
                best, improved = candidate, True
                break
    return best


def _smaller(spec: OpSpec, inputs: Inputs) -> Iterator[Inputs]:
    """Simpler inputs, largest reductions first: valid calls if the relations between sizes hold, with any values."""
    attrs = {name: inputs[name] for name in spec.attr_by_name if name in inputs}
    sizes: dict[str, int] = {}
    for operand in spec.operands:
        if isinstance(inputs.get(operand.name), np.ndarray):
            for dim, extent in zip(operand.dims(attrs), inputs[operand.name].shape, strict=False):
                if dim.symbol is not None:
                    sizes[dim.symbol] = extent - dim.offset
    for symbol in (s for s in _ORDER if s in sizes):
        least = MINIMUM.get(symbol, 0)
        for size in dict.fromkeys((least, max(sizes[symbol] // 2, least), sizes[symbol] - 1)):
            if least <= size < sizes[symbol]:
                yield _cut(spec, inputs, attrs, symbol, size)
    for attr in spec.attrs:
        simplest = attr.default if attr.default is not None else attr.minimum
        value = inputs.get(attr.name)
        shown_mode = isinstance(value, Enum) and attr.default is None
        if simplest is not None and value != simplest and not shown_mode:
            yield {**inputs, attr.name: simplest}
    for operand in spec.operands:
        array = inputs.get(operand.name)
        if operand.role is Role.OUT or not isinstance(array, np.ndarray) or not array.any():
            continue
        yield {**inputs, operand.name: np.zeros_like(array)}
        flat = array.reshape(-1)
        used = np.flatnonzero(flat)
        if len(used) > 1:
            for part in np.array_split(used, 2 if len(used) > 8 else len(used)):
                changed = flat.copy()
                changed[part] = 0
                yield {**inputs, operand.name: changed.reshape(array.shape)}


def _cut(spec: OpSpec, inputs: Inputs, attrs: dict[str, Any], symbol: str, size: int) -> Inputs:
    """The inputs with `symbol` reduced to `size`: the leading entries of every axis that has it."""
    cut = dict(inputs)
    for operand in spec.operands:
        array = inputs.get(operand.name)
        if not isinstance(array, np.ndarray):
            continue
        slices = tuple(slice(size + dim.offset) if dim.symbol == symbol else slice(None) for dim in operand.dims(attrs))
        cut[operand.name] = np.ascontiguousarray(array[slices])
    return cut
