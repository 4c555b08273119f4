"""Valid calls in which every operand of an op takes part, for tests that break one thing at a time."""

from __future__ import annotations

from typing import Any

from specdec_hal.ops import OPS, get_op
from specdec_hal.ops.generate import generate
from tests.support.running import BACKEND

# Every extent at least 2, so that each tensor can be strided, and no two alike, so that none passes for another.
SIZES = {
    "M": 4, "B": 3, "S": 5, "L": 16, "V": 11, "D": 2, "C": 6, "E": 2, "W": 7, "N": 8, "I_cap": 9,
    "T_cap": 40, "R_cap": 30, "A_cap": 20,
}  # fmt: skip
OPERANDS = [(op, operand.name) for op, spec in OPS.items() for operand in spec.operands]


def _workspace(op: str, **sizes: int) -> Any:
    """The backend's; ops that do not know the n-gram sizes get those of one small index."""
    if "max_ngram_size" not in get_op(op).attr_by_name:
        sizes.update(max_ngram_size=2, min_ngram_size=1)
    return BACKEND.workspace(op, **sizes)


def valid_call(op: str, operand: str = "", seed: int = 1, **options: Any) -> dict[str, Any]:
    """Arguments of a valid call that passes `operand`, optional or conditional as it may be."""
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
    return generate(op, seed, workspace=_workspace, **{**fixed, **options})
