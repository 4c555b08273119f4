"""Counting what a runner does: steps, tokens, acceptance, and where the time goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class StepRecord:
    """One step of the runner, as observers see it (`specdec_step_finished`).

    `drafted` and `accepted` are by draft position (0 = the first draft): how many slots had a draft there, and how many
    accepted it. `decode_slots` and `decode_tokens` leave prefill out. `dropped_drafts` counts a proposer's lists of
    drafts that could not be used: too long, or a token outside the vocabulary. `seconds` is by stage.
    """

    input_tokens: int = 0
    output_rows: int = 0
    prefill_slots: int = 0
    decode_slots: int = 0
    decode_tokens: int = 0
    emitted: int = 0
    dropped_drafts: int = 0
    drafted: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start  # type: ignore[assignment]


_COUNTS = (
    "input_tokens",
    "output_rows",
    "prefill_slots",
    "decode_slots",
    "decode_tokens",
    "emitted",
    "dropped_drafts",
)


class Metrics:
    """Sums over the steps of a runner."""

    def __init__(self) -> None:
        self.steps = 0
        self.failed_steps = 0
        self.total = StepRecord()
        self.requests: Counter[str] = Counter()
        """Finished requests by finish reason."""

    def add(self, record: StepRecord) -> None:
        """Count one step."""
        self.steps += 1
        total = self.total
        for name in _COUNTS:
            setattr(total, name, getattr(total, name) + getattr(record, name))
        for name in ("drafted", "accepted", "seconds"):
            getattr(total, name).update(getattr(record, name))

    def summary(self) -> dict[str, Any]:
        """Everything, ready for JSON.

        `tokens_per_step`: tokens a request gains per decode step it takes part in (1 without speculation; None before
        the first). `acceptance_rate`: accepted / drafted. `acceptance_by_position`: per draft position.
        `tokens_per_second`: emitted tokens over the time of all stages.
        """
        total = self.total
        drafted, accepted = total.drafted.total(), total.accepted.total()
        seconds = float(total.seconds.total())
        return {
            "steps": self.steps,
            "failed_steps": self.failed_steps,
            "input_tokens": total.input_tokens,
            "emitted_tokens": total.emitted,
            "drafted_tokens": drafted,
            "accepted_tokens": accepted,
            "dropped_drafts": total.dropped_drafts,
            "tokens_per_step": total.decode_tokens / total.decode_slots if total.decode_slots else None,
            "acceptance_rate": accepted / drafted if drafted else None,
            "acceptance_by_position": [total.accepted[i] / total.drafted[i] for i in sorted(total.drafted)],
            "tokens_per_second": total.emitted / seconds if seconds else None,
            "seconds": seconds,
            "seconds_by_stage": {name: float(value) for name, value in total.seconds.items()},
            "finished": dict(self.requests),
        }
