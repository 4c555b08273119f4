"""Names the op, model or proposer that has not returned.

One thread for the process looks at all runners that ask for it, and only logs: what hangs in a driver or in somebody's
code cannot be stopped from outside, but whoever reads the log knows where to look.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from weakref import WeakSet

from specdec_hal.plugin.backend import BoundOp

_log = logging.getLogger("specdec_hal")


class Activity:
    """What a runner is doing now. `names`: what stages other than ops stand for; `limit_s` None: unwatched."""

    def __init__(self, limit_s: float | None = None, names: Mapping[str, str] | None = None) -> None:
        self.limit_s, self.names = limit_s, names or {}
        self.doing: tuple[str, object, float] | None = None
        """Stage, call, and since when (:func:`time.perf_counter`). Assigned as a whole, since another thread looks."""
        self._reported: object = None
        if limit_s is not None:
            _watch(self)

    def overdue(self, now: float) -> str | None:
        """What has not returned in time; once for each time."""
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
