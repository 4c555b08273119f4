"""Calls of libraries without a limit, on another thread with one.

A thread inside a library cannot be stopped: one that exceeds its limit is left behind, and another thread makes the
remaining calls. It ends when its call returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any
from weakref import finalize

from specdec_hal.structured.backend import GrammarTimeoutError

Call = Callable[[], Any]


class BoundedCalls:
    """Makes calls in order on another thread, each within `limit_s`; None: without a limit. For one caller at a time.

    A call must change nothing that anything else uses, since it may return after its limit.
    """

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self._inbox: SimpleQueue[_Job | None] | None = None

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Their results; in place of a result, the exception that a call raised, or GrammarTimeoutError."""
        results: list[Any] = []
        while len(results) < len(calls):
            results += self._results(_Job(calls[len(results) :]))
        return results

    def _results(self, job: _Job) -> list[Any]:
        """Those up to the end, or to the first call that takes too long."""
        if self._inbox is None:
            self._inbox = _new_thread(self)
        self._inbox.put(job)
        wait_s = self.limit_s
        while True:
            try:
                job.done.get(timeout=wait_s)
                return job.results
            except Empty:
                assert self.limit_s is not None
            wait_s = job.left(self.limit_s)
            if wait_s is None:
                self._inbox = None
                return [*job.results, GrammarTimeoutError()]


class _Job:
    """Calls in order. `done`: has an item at the end."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.results: list[Any] = []
        self.done: SimpleQueue[None] = SimpleQueue()
        self._calls, self._began_s, self._abandoned = calls, time.perf_counter(), False
        self._lock = threading.Lock()

    def work(self) -> bool:
        """Make the calls; False once they were abandoned."""
        for call in self._calls:
            try:
                result = call()
            except Exception as error:
                result = error
            with self._lock:
                if self._abandoned:
                    return False
                self.results.append(result)
                self._began_s = time.perf_counter()
        self.done.put(None)
        return True

    def left(self, limit_s: float) -> float | None:
        """Seconds left to the current call; None, after which there are no more results, without any."""
        with self._lock:
            left = self._began_s + limit_s - time.perf_counter()
            if left > 0 or len(self.results) == len(self._calls):
                return max(left, 0.001)
            self._abandoned = True
            return None


def _new_thread(owner: BoundedCalls) -> SimpleQueue[_Job | None]:
    inbox: SimpleQueue[_Job | None] = SimpleQueue()
    threading.Thread(target=_work, args=(inbox,), name="specdec-grammars", daemon=True).start()
    finalize(owner, inbox.put, None)
    return inbox


def _work(inbox: SimpleQueue[_Job | None]) -> None:
    while (job := inbox.get()) is not None and job.work():
        del job
