"""Timing: replayed graphs with events on a GPU, the clock on a host."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specdec_hal.errors import BackendUnavailableError

WARM_COPIES = 20
FLUSH_BYTES = 512 << 20
_HEAD_START = 300_000
"""Cycles that the device spins first, so that the whole measurement is enqueued before it starts."""


@dataclass(frozen=True)
class Figures:
    """Microseconds over `runs` measurements."""

    median: float
    minimum: float
    p10: float
    p90: float
    runs: int

    @classmethod
    def of(cls, microseconds: Sequence[float]) -> Figures:
        """Summarise."""
        p10, median, p90 = (float(x) for x in np.percentile(microseconds, (10, 50, 90)))
        return cls(median, min(microseconds), p10, p90, len(microseconds))

    def rounded(self) -> dict[str, float]:
        """For JSON, to 10 ns."""
        return {name: round(value, 2) for name, value in asdict(self).items()}


class Timer(ABC):
    """`launch(stream)` enqueues the work; `restore()` puts inputs back before every measurement, untimed."""

    cold_too = True

    @abstractmethod
    def time(self, launch: Callable[[int], None], *, cold: bool, restore: Callable[[], None] | None = None) -> Figures:
        """The time of a launch. Cold: caches hold nothing of its tensors."""


class GraphTimer(Timer):
    """One CUDA graph with 20 launches (warm) or 1 (cold), replayed and timed with events, divided by the launches.

    Cold: a buffer larger than the L2 cache is rewritten before every replay.
    """

    def __init__(self, device: int = 0, replays: int = 60) -> None:
        try:
            import torch
        except ImportError as error:
            raise BackendUnavailableError("expected PyTorch to take times, found none; pip install torch") from error
        self._torch: Any = torch
        self._replays = replays
        self._device = torch.device("cuda", device)
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self._device)

    def time(self, launch: Callable[[int], None], *, cold: bool, restore: Callable[[], None] | None = None) -> Figures:
        """See Timer."""
        torch = self._torch
        copies = 1 if cold else WARM_COPIES
        with torch.cuda.device(self._device):
            graph = self._graph(launch, copies)
            events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(self._replays + 3)]
            for i, (start, stop) in enumerate(events):
                if restore is not None:
                    restore()
                if cold:
                    self._flush.fill_(i & 127)
                torch.cuda._sleep(_HEAD_START)
                start.record()
                graph.replay()
                stop.record()
            torch.cuda.synchronize()
        return Figures.of([start.elapsed_time(stop) * 1000 / copies for start, stop in events[3:]])

    def _graph(self, launch: Callable[[int], None], copies: int) -> Any:
        torch = self._torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(copies):
                launch(stream.cuda_stream)
        torch.cuda.current_stream().wait_stream(stream)
        return graph


class HostTimer(Timer):
    """The wall clock around synchronous launches; cold caches cannot be enforced."""

    cold_too = False

    def __init__(self, seconds: float = 0.5, most: int = 10_000) -> None:
        self._seconds, self._most = seconds, most

    def time(self, launch: Callable[[int], None], *, cold: bool, restore: Callable[[], None] | None = None) -> Figures:
        """See Timer."""
        times: list[float] = []
        end = time.perf_counter() + self._seconds
        while len(times) < 3 or (time.perf_counter() < end and len(times) < self._most):
            if restore is not None:
                restore()
            start = time.perf_counter_ns()
            launch(0)
            times.append((time.perf_counter_ns() - start) / 1000)
        return Figures.of(times)


def call_cost(call: Callable[[], object], synchronise: Callable[[], None], calls: int = 10_000) -> Figures:
    """Host microseconds per enqueuing call, in blocks that do not fill the device's queue."""
    block, times = 100, []
    for _ in range(max(calls // block, 3)):
        synchronise()
        start = time.perf_counter_ns()
        for _ in range(block):
            call()
        times.append((time.perf_counter_ns() - start) / 1000 / block)
    synchronise()
    return Figures.of(times)
