"""Rows of logits or probabilities for benchmarks, and a check of some rows against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec_hal.bench.case import Array, OpCall, WrongResult
from specdec_hal.ops import get_op
from specdec_hal.ops.inputs.rows import to_logits
from specdec_hal.ops.spec import Role

WIDTH = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a logit."""


@dataclass(frozen=True)
class LogitRows:
    """Independent normal logits. `spread`: their standard deviation; `peaks`: tokens that stand out."""

    rows: int
    vocabulary: int
    dtype: str = "float32"
    spread: float = 2.0
    peaks: int = 0

    def logits(self, seed: int) -> Array:
        """[rows, vocabulary]; bfloat16 as uint16."""
        rng = np.random.default_rng([seed, 7])
        values = rng.standard_normal((self.rows, self.vocabulary), np.float32)
        values *= np.float32(self.spread)
        if self.peaks:
            columns = rng.integers(0, self.vocabulary, (self.rows, self.peaks))
            heights = rng.uniform(10, 16, columns.shape).astype(np.float32) * np.float32(self.spread)
            np.put_along_axis(values, columns, heights, axis=1)
        return to_logits(values, self.dtype)

    def probabilities(self, seed: int) -> Array:
        """[rows, vocabulary] float32, each row summing to about 1."""
        probs = np.exp(LogitRows(self.rows, self.vocabulary, "float32", self.spread, self.peaks).logits(seed))
        probs /= probs.sum(axis=1, keepdims=True)
        return probs

    @property
    def bytes(self) -> int:
        """All of it, once."""
        return self.rows * self.vocabulary * WIDTH[self.dtype]

    @property
    def params(self) -> Mapping[str, Any]:
        """For the record."""
        return {
            "rows": self.rows,
            "V": self.vocabulary,
            "dtype": self.dtype,
            "spread": self.spread,
            "peaks": self.peaks,
        }

    def __str__(self) -> str:
        kind = f"{self.peaks} peaks" if self.peaks else f"spread {self.spread:g}"
        return f"{self.rows} x {self.vocabulary:,} {self.dtype}, {kind}"


def check_some_rows(by_row: Sequence[str]) -> Callable[[Sequence[OpCall], Mapping[int, Array]], None]:
    """A check that compares six rows with the reference; `by_row` names the operands that have those rows."""

    def check(calls: Sequence[OpCall], outputs: Mapping[int, Array]) -> None:
        from specdec_hal.backends.reference.backend import ReferenceBackend

        call = calls[0]
        rows = np.unique(np.linspace(0, len(call.inputs[by_row[0]]) - 1, 6).astype(int))
        inputs = {name: value[rows] if name in by_row else value for name, value in call.inputs.items()}
        if "cu_batch_token_offset" in inputs:
            inputs["cu_batch_token_offset"] = np.array([0, len(rows)], np.int32)
        getattr(ReferenceBackend(), call.op)(**inputs)
        for name, operand in get_op(call.op).by_name.items():
            if operand.role is Role.IN or inputs.get(name) is None:
                continue
            actual = outputs[id(call.inputs[name])][rows]
            if actual.tobytes() != np.ascontiguousarray(inputs[name]).tobytes():
                raise WrongResult(f"{call.op}: '{name}' of rows {rows.tolist()} is not the reference's: not measured")

    return check
