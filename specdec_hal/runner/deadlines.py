"""Deadlines of requests, and a limit on the queue."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from weakref import ref

from specdec_hal.config.schema import RunnerSettings
from specdec_hal.errors import QueueFullError
from specdec_hal.runner.sequence import Sequence

_ENDINGS = 32
"""Number of ended requests averaged for retry_after_s."""


class Deadlines:
    """Deadlines of each request for its end, its first token and its slot, in seconds of `clock`, which is
    ``time.monotonic``, from its arrival.
    """

    def __init__(self, settings: RunnerSettings, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue_timeout_s, self._longest = settings.queue_timeout_s, settings.max_waiting_requests
        self._due: list[tuple[float, int, str, float, ref[Sequence]]] = []
        self._numbers = count()
        self._endings = deque([clock()], maxlen=_ENDINGS)

    def admit(self, name: str, waiting: int) -> None:
        """QueueFullError if `waiting` requests fill the queue."""
        if self._longest is None or waiting < self._longest:
            return
        mean = (self._clock() - self._endings[0]) / len(self._endings)
        raise QueueFullError(
            f"{name}: expected at most {self._longest} waiting requests (runner.max_waiting_requests), got one more; "
            f"try again in {mean:.3g} s",
            retry_after_s=mean,
        )

    def watch(self, sequence: Sequence) -> None:
        """A request has been queued."""
        request = sequence.request
        for kind, seconds in (
            ("timeout_s", request.timeout_s),
            ("ttft_timeout_s", request.ttft_timeout_s),
            ("runner.queue_timeout_s", self._queue_timeout_s),
        ):
            if seconds is not None:
                due_s = sequence.arrived_s + seconds
                heapq.heappush(self._due, (due_s, next(self._numbers), kind, seconds, ref(sequence)))

    def ended(self) -> None:
        """A request has ended."""
        self._endings.append(self._clock())

    def passed(self) -> Iterator[tuple[Sequence, str]]:
        """Expired requests with the reason."""
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            _, _, kind, seconds, reference = heapq.heappop(self._due)
            sequence = reference()
            if sequence is None or sequence.finish_reason is not None:
                continue
            done = {"ttft_timeout_s": sequence.generated > 0, "runner.queue_timeout_s": sequence.queue_s is not None}
            if not done.get(kind, False):
                yield sequence, f"{kind} of {seconds:g} s has passed"
