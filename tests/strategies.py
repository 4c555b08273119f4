"""Hypothesis strategies over generated op inputs. They shrink towards few slots, short rows and small vocabularies."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from specdec_hal.ops import get_op
from specdec_hal.ops.generate import DEEP, generate

SIZES = {
    "M": st.integers(1, 6),
    "S": st.integers(1, 7),
    "L": st.integers(1, 40),
    "V": st.sampled_from([1, 2, 3, 7, 16, 40]),
}


@st.composite
def op_inputs(draw: st.DrawFn, op: str, **fixed: Any) -> dict[str, Any]:
    """Arguments of one call of `op`, about every other with the options that reach its deep branches."""
    options: dict[str, Any] = {name: draw(sizes) for name, sizes in SIZES.items()}
    if draw(st.booleans()):
        options.update(DEEP.get(op, {}))
    options.update(fixed)
    known = get_op(op).attr_by_name
    options = {n: v for n, v in options.items() if n in SIZES or n in fixed or n in known or n in ("states", "E", "C")}
    return generate(op, draw(st.integers(0, 2**32 - 1)), **options)
