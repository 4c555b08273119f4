"""Logs the op, model or proposer that has not returned, and knows of a step that has not.

One thread per process watches all runners with a limit and only logs: a hang in a driver or foreign code cannot be
stopped, but the log names it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakSet

from specdec_hal.plugin.backend import BoundOp

_log = logging.getLogger("specdec_hal")


class Activity:
    """A runner's current activity. `names`: descriptions of stages other than ops; `limit_s` None: unwatched."""

    def __init__(self, limit_s: float | None = None, names: Mapping[str, str] | None = None) -> None:
        self.limit_s, self.names = limit_s, names or {}
        self.doing: tuple[str, object, float] | None = None
        """Stage, call and start time (:func:`time.perf_counter`), assigned atomically for the other thread."""
        self.step_s: float | None = None
        """Start time of the step under way."""
        self._reported: object = None
        if limit_s is not None:
            _watch(self)

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step is under way."""
        self.step_s = time.perf_counter()
        try:
            yield
        finally:
            self.step_s = None

    @property
    def late(self) -> str:
        """That the step under way has not returned in time, or "". Any thread may ask."""
        began, limit = self.step_s, self.limit_s
        if began is None or limit is None or time.perf_counter() - began < limit:
            return ""
        return f"a step has not returned for {limit:g} s (runner.watchdog_s)"

    def overdue(self, now: float) -> str | None:
        """A message about an overdue call, once per call."""
        doing = self.doing
        if doing is None or self.limit_s is None or doing is self._reported or now - doing[2] < self.limit_s:
            return None
        self._reported = doing
        stage, call, _ = doing
        if isinstance(call, BoundOp):
            return f"op '{call.call.op.name}' of backend '{call.backend.name}'"
        return self.names.get(stage, f"stage '{stage}'")


_activities: WeakSet[Activity] = WeakSet()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def _watch(activity: Activity) -> None:
    global _thread
    with _lock:
        _activities.add(activity)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_look, name="specdec-watchdog", daemon=True)
            _thread.start()


def _look() -> None:
    while True:
        with _lock:
            activities = list(_activities)
        for activity in activities:
            what = activity.overdue(time.perf_counter())
            if what is not None:
                _log.warning("the %s has not returned for %g s (runner.watchdog_s)", what, activity.limit_s)
        limits = [activity.limit_s for activity in activities if activity.limit_s is not None]
        del activities[:]
        time.sleep(min(limits, default=10.0) / 4)
