"""Inputs written out by hand: what a test does not say is neutral (zeros, false, penalties off)."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_hal.ops import get_op
from specdec_hal.ops.generate import poison
from specdec_hal.ops.rows import numpy_dtype, to_logits
from specdec_hal.ops.spec import Role

_NEUTRAL = {"repetition": 1, "top_p": 1, "row_top_p": 1, "row_temperature": 1, "temperature": 1, "max_dec_len": 1000}


def build(op: str, sizes: dict[str, int] | None = None, **given: Any) -> dict[str, Any]:
    """Arguments of a call: `given` values as arrays of the declared dtype, outputs poisoned, the rest neutral.

    Sizes follow from the given values; `sizes` fixes those that do not.
    """
    spec = get_op(op)
    size = dict(sizes or {})
    attrs = {a.name: given.pop(a.name, a.default) for a in spec.attrs if a.name in given or a.default is not None}
    wanted = [o for o in spec.operands if o.when is None or (o.when.attr in attrs and o.wanted(attrs))]
    arrays: dict[str, Any] = {}
    for operand in wanted:
        if operand.name in given:
            dtype = operand.tensor.dtypes[0]
            value = given.pop(operand.name)
            array = value if isinstance(value, np.ndarray) else np.array(value, numpy_dtype(dtype))
            arrays[operand.name] = array
            for dim, extent in zip(operand.dims(attrs), array.shape, strict=True):
                if dim.symbol is not None:
                    assert size.setdefault(dim.symbol, extent - dim.offset) == extent - dim.offset, operand.name
    assert not given, f"{op} takes no {', '.join(given)}"
    for operand in wanted:
        if operand.name not in arrays and not operand.optional:
            shape = tuple(dim.value(size) for dim in operand.dims(attrs))
            dtype = operand.tensor.dtypes[0]
            fill = poison(dtype) if operand.role is Role.OUT else _NEUTRAL.get(operand.name, 0)
            arrays[operand.name] = np.full(shape, fill, numpy_dtype(dtype))
    return {**arrays, **attrs}


def logits(rows: Any, dtype: str = "float32") -> np.ndarray:
    """Rows of logits in any of the dtypes."""
    return to_logits(np.array(rows, np.float32), dtype)
