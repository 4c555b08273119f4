"""Number of drafts per request that maximises tokens per second, by measurements so far.

A step's expected tokens are one per request plus, for each draft, the probability that it and those before it are
accepted. Its expected time is that of recent steps with as many requests and drafts. Both are measured while decoding.
The drafts of all requests are ranked by probability, and the number with the largest ratio is used
(native/draft_length.cc, which also counts acceptance).

Repetition comes in runs, so acceptance is counted separately for steps after fully accepted ones. Few observations
weigh little against the prior, so that a position is not abandoned after one rejection. If the best number is 0,
drafting is retried after a pause that doubles with each failure.

What a method costs besides its drafts (a pass of a module, say) shows only in steps without: now and then one is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, finalize

import numpy as np
from numpy.typing import NDArray

from specdec_hal.runner.slot_table import Ints
from specdec_hal.runner.step_cost import Cost
from specdec_hal.tensors.native import load_library

Floats = NDArray[np.float64]

FIRST_PAUSE, LONGEST_PAUSE, PROBE = 4, 64, 1
"""Steps without drafts before a retry, and its number of drafts. An unsuccessful retry doubles the next pause, a
successful one halves it.
"""
RETRY_STEPS, RETRY_SHARE, LONGEST_IDLE = 2, 0.015, 128
"""Steps with rows for drafts that a retry takes where no request drafts, what they may add to the time, and the most
steps between two.
"""
FIRST_PLAIN, LONGEST_PLAIN, PLAIN_GROWTH = 4, 256, 4
"""Steps with drafts before one without is taken to measure it, and by what that number grows each time."""
PLAIN_WAIT, PLAIN_SETTLING = 4, 3
"""Most steps until one has no drafts, since some are proposed already; and until one has drafts again."""
PROPOSAL_SPREAD = 0.05
"""Weight of :data:`~specdec_hal.runner.step_cost.PRIOR_SLOPE` in the cost of a host proposer."""


class DraftLengths:
    """Chooses the draft length of every request between 0 and `k`. Requests are rows of arrays, see :meth:`rows`."""

    def __init__(self, k: int) -> None:
        self._k, self._native = k, load_library("specdec_common")
        self.steps, self._plain_steps = Cost(), Cost()
        """Of steps with drafts, and without."""
        self._proposals = Cost(PROPOSAL_SPREAD, of_steps=False)
        self._known: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._free = list[int]()
        self._slots, self._asks = 1, False
        self._until_plain = self._interval = FIRST_PLAIN
        self._plain = self._settling = 0
        """Steps that wait for one without drafts, and then for one with drafts."""
        self.requests = np.zeros(0, [(name, np.int64) for name in ("kind", "limit", "pause", "next_pause")])
        """The kind of the next step: 1 after a fully accepted one; the most drafts in it; remaining steps without
        drafts; the next pause.
        """
        self.seen: Floats = np.zeros((0, 2 * k + 4))
        """Decayed counts of a request in steps of either kind, at twice its row and after it: steps with drafts
        allowed, and found; drafts verified, and accepted, at all positions but the first; those by position, [K] each.
        """
        self.pooled: Floats = np.zeros((2, 2 * k + 4))
        """Such counts of all requests, in steps of either kind."""
        self._step = np.zeros(0, np.int64)
        """A step's rows, drafts and accepted drafts."""
        self._addresses = self._find()
        self.forget()

    def forget(self) -> None:
        """Forget acceptance, for later requests."""
        self.pooled[:] = 0
        self._idle = 0
        """Steps since a request might draft."""

    def begin(self, requests: Iterable[Any]) -> Ints:
        """The rows of requests that get a slot."""
        return self.rows(requests)

    def rows(self, requests: Iterable[Any]) -> Ints:
        """The rows of these requests, of any type: valid while they exist."""
        requests = list(requests)
        if new := dict.fromkeys(one for one in requests if one not in self._known):
            limit = self._limit_of_new()
            for one in new:
                self._known[one] = self._new_row(one, limit)
        return np.array([self._known[one] for one in requests], np.int64)

    def limits(self, rows: Ints) -> Ints:
        """The most drafts that these requests get in their next step."""
        return np.zeros(len(rows), np.int64) if self._plain else self.requests["limit"][rows]

    def retry(self) -> None:
        """Let every request draft in its next step."""
        limits = self.requests["limit"]
        limits[limits == 0] = min(PROBE, self._k)

    def proposed(self, longest: int, seconds: float) -> None:
        """Record a host proposer's time for drafts of up to `longest` tokens."""
        self._asks = True
        self._proposals.add(longest, seconds)

    def stepped(
        self, rows: Ints, drafted: Ints, accepted: Ints, seconds: float | None, *, narrow: bool | None = None
    ) -> bool:
        """Record a decode step's time, without a host proposer's, and choose again. Returns whether it has chosen.

        `rows`, `drafted`, `accepted`: decoding requests, and their drafts. `seconds` None: they say nothing of drafts.
        `narrow`: whether the step had no room for drafts; None if every step has the rows that it needs.
        """
        if len(rows):
            self._choose(rows, drafted, accepted, seconds, narrow)
        return bool(len(rows))

    def _choose(self, rows: Ints, drafted: Ints, accepted: Ints, seconds: float | None, narrow: bool | None) -> None:
        total, changed = int(drafted.sum()), len(rows) != self._slots
        plain = not total and narrow is not False
        if seconds is not None:
            if self._is_plain(plain, len(rows), seconds):
                return
            (self._plain_steps if plain else self.steps).add(total, seconds, len(rows))
        elif not self.steps and not self._plain_steps:
            return
        self._slots = len(rows)
        np.concatenate((rows, drafted, accepted), out=self._step[: 3 * len(rows)])
        due = self._idle > 0 and bool(self._idle + 1 >= self._retry_after())
        pauses = min(PROBE, self._k), FIRST_PAUSE, LONGEST_PAUSE
        drafting = self._native.choose_draft_lengths(
            *self._addresses, len(rows), self._k, due, bool(narrow), changed, *pauses, *self._costs()
        )
        self._idle = 0 if drafting else self._idle + 1

    def _retry_after(self) -> float:
        """Steps until one of requests that all draft nothing may draft again: all pay for the rows of its drafts."""
        plain, start = self._plain_steps(0, self._slots), self.steps.line(self._slots).start
        return min(RETRY_STEPS * (start / plain - 1) / RETRY_SHARE, LONGEST_IDLE) if plain else 0

    def _is_plain(self, plain: bool, slots: int, seconds: float) -> bool:
        """Whether the step belongs to the measurement of one without drafts; begins that where it is due."""
        if plain and (self._plain or self._settling):
            self._plain_steps.add(0, seconds, slots)
        if self._plain:
            self._plain -= 1
            if plain:
                self._plain, self._settling = 0, PLAIN_SETTLING
            return True
        if self._settling:
            self._settling = self._settling - 1 if plain else 0
            return plain
        self._until_plain = self._interval if plain else self._until_plain - 1
        if self._until_plain <= 0:
            self._interval = min(self._interval * PLAIN_GROWTH, LONGEST_PLAIN)
            self._until_plain, self._plain = self._interval, PLAIN_WAIT
        return False

    def _costs(self) -> tuple[float, ...]:
        """Seconds of a step by its drafts, start and slope; of one without; of a host proposer by its longest draft."""
        start, slope = (self.steps or self._plain_steps).line(self._slots)
        plain = self._plain_steps(0, self._slots) if self._plain_steps else start
        return (start, slope, plain, *(self._proposals.line(1) if self._asks else (0.0, 0.0)))

    def _new_row(self, request: Any, limit: int) -> int:
        if not self._free:
            size = len(self.requests)
            self.requests, self.seen = (
                np.concatenate([some, np.zeros_like(some, shape=(more, *some.shape[1:]))])
                for some, more in ((self.requests, size or 16), (self.seen, 2 * (size or 16)))
            )
            self._free += range(size, len(self.requests))
            self._step = np.zeros(3 * len(self.requests), np.int64)
            self._addresses = self._find()
        row = self._free.pop()
        finalize(request, self._free.append, row).atexit = False
        self.requests[row], self.seen[2 * row : 2 * row + 2] = (0, limit, 0, FIRST_PAUSE), 0
        return row

    def _limit_of_new(self) -> int:
        if not self.steps and not self._plain_steps:
            return min(PROBE, self._k)
        return int(self._native.draft_length_of_new(self._addresses[2], self._slots, self._k, *self._costs()))

    def _find(self) -> list[int]:
        """The arrays' addresses, which take 7 us each to get."""
        return [one.ctypes.data for one in (self.requests, self.seen, self.pooled, self._step)]
