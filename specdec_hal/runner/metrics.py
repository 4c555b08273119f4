"""Metrics of a runner: steps, tokens, acceptance, and time by stage."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from specdec_hal.plugin.step_record import StepRecord
from specdec_hal.runner.watchdog import Activity


def clock() -> float:
    """Seconds, for differences."""
    return time.perf_counter()


class _Stage:
    """Times a block of a step. A class, since a step has many: a generator takes three times as long."""

    __slots__ = ("_call", "_name", "_record", "_start")

    def __init__(self, record: TimedStep, name: str, call: object) -> None:
        self._record, self._name, self._call = record, name, call

    def __enter__(self) -> None:
        self._start = time.perf_counter()
        self._record.activity.doing = self._name, self._call, self._start

    def __exit__(self, *error: object) -> None:
        record, name = self._record, self._name
        record.activity.doing = None
        seconds: dict[str, float] = record.seconds  # type: ignore[assignment]
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - self._start


@dataclass
class TimedStep(StepRecord):
    """A step's record while the runner makes it."""

    activity: Activity = field(default_factory=Activity, repr=False, compare=False)

    def count_drafts(self, drafted: ArrayLike, accepted: ArrayLike) -> None:
        """Count the drafts of this step: how many each decoding slot had, and accepted."""
        for counter, lengths in ((self.drafted, drafted), (self.accepted, accepted)):
            slots = np.bincount(np.asarray(lengths, np.int64))
            _add(counter, dict(enumerate(slots[:0:-1].cumsum()[::-1].tolist())))

    def stage(self, name: str, call: object = None) -> _Stage:
        """Time a stage, visible to the watchdog."""
        return _Stage(self, name, call)


def acceptance(num_drafts: int, drafted: int, accepted: int, by_position: Sequence[int] = ()) -> dict[str, Any]:
    """Draft statistics, with vLLM's names and definitions (vllm/v1/spec_decode/metrics.py), ready for JSON.

    `num_drafts`: how often a request had at least one draft token in a decode step; `drafted`, `accepted`: draft
    tokens; `by_position`: accepted ones, 0 the first draft. `mean_acceptance_length` = 1 + accepted / num_drafts, None
    without drafts; `acceptance_rate` = accepted / drafted; `acceptance_by_position` = accepted there / num_drafts.
    """
    return {
        "num_drafts": num_drafts,
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "mean_acceptance_length": 1 + accepted / num_drafts if num_drafts else None,
        "acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_by_position": [count / num_drafts for count in by_position] if num_drafts else [],
    }


class Load(NamedTuple):
    """A runner's load: running and waiting requests, and the used fraction of its KV cache. Totals: preemptions, and
    queried and found tokens of the prefix cache.
    """

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prefix_queries: int = 0
    prefix_hits: int = 0


@dataclass(frozen=True)
class Counts:
    """A snapshot of a runner's counts, as plain values for other processes. See :class:`Metrics`,
    :class:`TimedStep` and :class:`Load`."""

    load: Load
    drafted: dict[int, int]
    accepted: dict[int, int]
    emitted: int
    finished: dict[str, int]
    buckets: list[tuple[tuple[int, int, int], int]]
    fallback_calls: dict[str, int]
    seconds: dict[str, float]
    failed_steps: int
    failed_proposals: int
    dropped_drafts: int
    late: dict[str, int] = field(default_factory=dict)
    """Plans bound or captured, and kernels compiled, while requests waited."""
    methods: dict[str, int] = field(default_factory=dict)
    input_tokens: int = 0
    sizes: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, metrics: Metrics, load: Load, fallback_calls: Mapping[str, int], late: Mapping[str, int]) -> Counts:
        """Safe beside the running runner: dictionaries are copied atomically before reading."""
        total = metrics.total
        return cls(
            load, dict(total.drafted), dict(total.accepted), total.emitted, dict(metrics.requests),
            list(dict(metrics.buckets).items()), dict(fallback_calls), dict(total.seconds), metrics.failed_steps,
            metrics.failed_proposals, total.dropped_drafts, dict(late), dict(metrics.methods), total.input_tokens,
            dict(metrics.sizes),
        )  # fmt: skip


_COUNTS = (
    "input_tokens",
    "output_rows",
    "prefill_slots",
    "decode_slots",
    "decode_tokens",
    "emitted",
    "dropped_drafts",
)


def _add(total: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    """As Counter.update, in a third of the time."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


class Metrics:
    """Sums over the steps of a runner."""

    def __init__(self) -> None:
        self.steps = 0
        self.failed_steps = self.failed_proposals = 0
        self.total = TimedStep()
        self.buckets: Counter[tuple[int, int, int]] = Counter()
        """Steps by bucket."""
        self.methods: Counter[str] = Counter()
        """Steps by the method that drafts."""
        self.sizes: Counter[int] = Counter()
        """Steps by the least n for which they have at most 2**n input tokens."""
        self.requests: Counter[str] = Counter()
        """Finished requests by finish reason."""

    def add(self, record: TimedStep) -> None:
        """Count one step."""
        self.steps += 1
        self.buckets[record.bucket] += 1
        self.methods[record.method] += 1
        self.sizes[max(record.input_tokens - 1, 0).bit_length()] += 1
        total = self.total
        for name in _COUNTS:
            setattr(total, name, getattr(total, name) + getattr(record, name))
        for name in ("drafted", "accepted", "seconds"):
            _add(getattr(total, name), getattr(record, name))

    def summary(self) -> dict[str, Any]:
        """Everything, ready for JSON.

        `steps`: of the whole batch, with those that read prompts; `steps_by_method`: by what drafted.
        `tokens_per_step`: tokens a request gains per decode step it takes part in (1 without speculation; None before
        the first). What drafts did: see :func:`acceptance`.
        `tokens_per_second`: emitted tokens over the time of all stages.
        """
        total = self.total
        drafted, accepted = total.drafted, total.accepted
        seconds = float(total.seconds.total())
        return {
            "steps": self.steps,
            "steps_by_method": dict(self.methods),
            "failed_steps": self.failed_steps,
            "failed_proposals": self.failed_proposals,
            "input_tokens": total.input_tokens,
            "emitted_tokens": total.emitted,
            **acceptance(drafted[0], drafted.total(), accepted.total(), [accepted[i] for i in sorted(drafted)]),
            "dropped_drafts": total.dropped_drafts,
            "tokens_per_step": total.decode_tokens / total.decode_slots if total.decode_slots else None,
            "tokens_per_second": total.emitted / seconds if seconds else None,
            "seconds": seconds,
            "seconds_by_stage": {name: float(value) for name, value in total.seconds.items()},
            "finished": dict(self.requests),
        }
