"""Inputs by hand; unspecified ones are neutral (zeros, false, penalties off)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import get_op
from specdec_hal.ops.inputs.generate import poison
from specdec_hal.ops.inputs.rows import numpy_dtype, to_logits
from specdec_hal.ops.spec import Role
from specdec_hal.tensors.views import numpy_dtype_name

_NEUTRAL = {"repetition": 1, "top_p": 1, "row_top_p": 1, "row_temperature": 1, "temperature": 1, "max_dec_len": 1000}


def build(op: str, sizes: Mapping[str, int] | None = None, **given: Any) -> dict[str, Any]:
    """Arguments of a call: `given` values as arrays of the declared dtype, outputs poisoned, the rest neutral.

    Sizes follow from the given values; `sizes` sets the others. Raises LookupError for an unknown name, ValueError if
    two values disagree about a size.
    """
    spec = get_op(op)
    size = dict(sizes or {})
    attrs = {a.name: given.pop(a.name, a.default) for a in spec.attrs if a.name in given or a.default is not None}
    wanted = [o for o in spec.operands if o.when is None or (o.when.attr in attrs and o.wanted(attrs))]
    arrays: dict[str, Any] = {}
    for operand in wanted:
        if operand.name in given:
            value = given.pop(operand.name)
            dtype = numpy_dtype(operand.tensor.dtypes[0])
            array = value if isinstance(value, np.ndarray) else np.array(value, dtype)
            arrays[operand.name] = array
            for dim, extent in zip(operand.dims(attrs), array.shape, strict=True):
                if dim.symbol is not None and size.setdefault(dim.symbol, extent - dim.offset) != extent - dim.offset:
                    known = size[dim.symbol] + dim.offset
                    raise ValueError(f"build('{op}'): '{operand.name}' has {dim} = {extent}, others say {known}")
    if given:
        raise LookupError(f"build('{op}'): no argument {', '.join(given)}")
    for operand in wanted:
        if operand.name not in arrays and not operand.optional:
            shape = tuple(dim.value(size) for dim in operand.dims(attrs))
            like = arrays.get(operand.tensor.dtype_of)
            name = operand.tensor.dtypes[0] if like is None else numpy_dtype_name(like.dtype)
            fill = poison(name) if operand.role is Role.OUT else _NEUTRAL.get(operand.name, 0)
            arrays[operand.name] = np.full(shape, fill, numpy_dtype(name))
    return {**arrays, **attrs}


def logits(rows: Any, dtype: str = "float32") -> NDArray[Any]:
    """Rows of logits in any of the dtypes."""
    return to_logits(np.array(rows, np.float32), dtype)
