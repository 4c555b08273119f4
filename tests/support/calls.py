"""Valid calls in which every operand of an op takes part, for tests that break one thing at a time."""

from __future__ import annotations

from typing import Any

from specdec_hal.ops import OPS
from specdec_hal_conformance import arguments
from tests.support.running import BACKEND

OPERANDS = [(op, operand.name) for op, spec in OPS.items() for operand in spec.operands]


def valid_call(op: str, operand: str = "", seed: int = 1, **options: Any) -> dict[str, Any]:
    """As the conformance suite makes them, on the reference."""
    return arguments.valid_call(op, BACKEND.workspace, operand, seed, **options)
