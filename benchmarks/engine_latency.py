"""The part `latency` of `engine.py`: long prompts beside decoding requests, step by step.

A decoding request's latency is the time between two ends of `step()`. A call launches one step and, with overlap, reads
the previous one; stages are those of the step read (`wait`: for the device), and `rest` is the other work: scheduling
and launching the next step, callbacks. Without overlap, `wait` is the device's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

from specdec_hal import hookimpl
from specdec_hal.plugin.registry import Registry
from specdec_hal.plugin.step_record import StepRecord
from specdec_hal.runner import ModelRunner, Request, SamplingParams
from specdec_hal.tensors.memory import freeze_heap

SAMPLES = 7
WARM_UP = 2  # in the first a plan is compiled, in the second it is captured
QUIET_STEPS = 20


class Call(NamedTuple):
    """A call of `step()`: seconds since the end of the call before, or since the long prompt came, and what it read."""

    seconds: float
    record: StepRecord | None

    @property
    def mixed(self) -> bool:
        """Whether the step that it read took part of a prompt."""
        return self.record is not None and self.record.prefill_slots > 0


class Sample(NamedTuple):
    """Long prompts. Seconds: to take them over, to the last first token; gaps between tokens of each of the others."""

    added: float
    first_token: float
    quiet: list[float]
    gaps: list[float]
    quiet_calls: list[Call]
    calls: list[Call]


class Observed:
    """A runner, and the records of the steps that it has read."""

    def __init__(self, runner: ModelRunner, registry: Registry) -> None:
        self.runner = runner
        self._registry = registry
        self._records: list[StepRecord] = []
        self.ended = 0.0
        """End of the last call, from which the next one counts."""

    @hookimpl
    def specdec_step_finished(self, record: StepRecord) -> None:
        """Keep it."""
        self._records.append(record)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the steps that are observed."""
        plugin = self._registry.register(self, "latency")
        try:
            yield
        finally:
            self._registry.unregister(plugin)

    def step(self) -> Call:
        """Have the runner make a step."""
        self._records.clear()
        before = self.ended
        self.runner.step()
        self.ended = time.perf_counter()
        return Call(self.ended - before, self._records[-1] if self._records else None)


def sample(observed: Observed, prompts: list[list[int]], long: list[int], count: int = 1) -> Sample:
    """The way of `count` long prompts to their first tokens, while the others decode."""
    runner = observed.runner
    quiet, gaps, arrived = list[float](), list[float](), list[float]()
    into, last = quiet, [0.0] * len(prompts)

    def between(i: int) -> Callable[[Any], None]:
        def note(delta: Any) -> None:
            now = time.perf_counter()
            into.append(now - last[i])
            last[i] = now

        return note

    for i, prompt in enumerate(prompts):
        runner.add_request(Request(f"other-{i}", prompt, SamplingParams(max_new_tokens=400), between(i)))
    while not all(last):  # a request has its first token when its prompt is done
        observed.step()
    quiet.clear()
    quiet_calls = [observed.step() for _ in range(QUIET_STEPS if prompts else 0)]
    into = gaps
    start = observed.ended = time.perf_counter()
    wanted = SamplingParams(max_new_tokens=1)
    for i in range(count):
        runner.add_request(Request(f"long-{i}", long, wanted, lambda delta: arrived.append(time.perf_counter())))
    added, calls = time.perf_counter() - start, list[Call]()
    while len(arrived) < count:
        calls.append(observed.step())
    into = []  # cancelling is no gap
    for i in range(len(prompts)):
        runner.cancel(f"other-{i}")
    runner.run()
    return Sample(added, arrived[-1] - start, quiet, gaps, quiet_calls, calls)


def measure(
    runner: ModelRunner, registry: Registry, prompts: list[list[int]], long: list[int]
) -> Iterator[dict[str, Any]]:
    """Figures of the engine idle, and with `prompts` decoding in all slots that one or four long ones leave."""
    observed = Observed(runner, registry)
    with observed.watching():
        for count, others in ((1, []), (1, prompts[1:]), (4, prompts[4:])):
            for _ in range(WARM_UP):
                sample(observed, others, long, count)
            freeze_heap()  # as a server does
            found = figures([sample(observed, others, long, count) for _ in range(SAMPLES)])
            yield {"long": count, "others": len(others), **found}


def figures(samples: list[Sample]) -> dict[str, Any]:
    """Medians over the samples; the worst gap is each sample's own."""
    row: dict[str, Any] = {
        "first_token_ms": 1e3 * median(one.first_token for one in samples),
        "add_request_ms": 1e3 * median(one.added for one in samples),
    }
    if samples[0].gaps:
        worst = [max(one.gaps) for one in samples]
        row["token_gap_ms"] = 1e3 * median(gap for one in samples for gap in one.quiet)
        row["worst_gap_during_prefill_ms"] = 1e3 * median(worst)
        row["all_worst_gaps_ms"] = [1e3 * gap for gap in worst]
        row["gap_ratio"] = row["worst_gap_during_prefill_ms"] / row["token_gap_ms"]
        row["us_of_pure_calls"] = stages([call for one in samples for call in one.quiet_calls])
        slowest = sorted(samples, key=lambda one: max(one.gaps))[len(samples) // 2]
        at, call = max(enumerate(slowest.calls), key=lambda entry: entry[1].seconds)
        row["worst_call"] = {"call": at, "of": len(slowest.calls), "mixed": call.mixed, **stages([call])}
    row["us_of_first_calls"] = stages([one.calls[0] for one in samples])
    row["us_of_mixed_calls"] = stages([call for one in samples for call in one.calls[1:] if call.mixed])
    return row


def stages(calls: list[Call]) -> dict[str, Any]:
    """Microseconds of calls, by stage of the steps that they read: medians. `buckets`: how many read which."""
    if not calls:
        return {}
    records = [call.record.seconds if call.record is not None else {} for call in calls]
    names = dict.fromkeys(name for seconds in records for name in seconds)
    by_stage = {name: 1e6 * median(seconds.get(name, 0.0) for seconds in records) for name in names}
    rest = (
        call.seconds - sum(seconds.get(name, 0.0) for name in ("wait", "host", "output", "propose"))
        for call, seconds in zip(calls, records, strict=True)
    )
    buckets: dict[str, int] = {}
    for call in calls:
        if call.record is not None:
            name = "x".join(map(str, call.record.bucket))
            buckets[name] = buckets.get(name, 0) + 1
    total = 1e6 * median(call.seconds for call in calls)
    return {"call": total, **by_stage, "rest": 1e6 * median(rest), "calls": len(calls), "buckets": buckets}
