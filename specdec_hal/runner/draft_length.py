"""Number of drafts per request that maximises tokens per second, by measurements so far.

A step's expected tokens are one per request plus, for each draft, the probability that it and those before it are
accepted. Its expected time is that of recent steps with as many requests and drafts. Both are measured while decoding.
The drafts of all requests are ranked by probability, and the number with the largest ratio is used.

Repetition comes in runs, so acceptance is counted separately for steps after fully accepted ones. Few observations
weigh little against the prior, so that a position is not abandoned after one rejection. If the best number is 0,
drafting is retried after a pause that doubles with each failure.

What a method costs besides its drafts (a pass of a module, say) shows only in steps without: now and then one is taken.
Where choosing takes a large part of a step's time, lengths rest between bursts of steps that choose.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, finalize

import numpy as np
from numpy.typing import NDArray

from specdec_hal.runner.slot_table import Ints
from specdec_hal.runner.step_cost import Cost

Floats = NDArray[np.float64]

PRIOR = np.array([[0.85, 0.6], [0.92, 0.9]])
"""Acceptance of a draft after an accepted one, and of the first: that of n-gram look-ups in code and prose. The second
row is for steps after a fully accepted one.
"""
PRIOR_STRENGTH = np.array([20.0, 4.0])
"""Its weight as a number of observations. An estimate from counts and a prior is

    (accepted + strength * acceptance) / (verified + strength)
"""
POOLED_STRENGTH = 8.0
"""Weight of all requests' acceptance in a new one's, as observations of the first draft or of the others."""
SHARED_STRENGTH = 24.0
"""Weight of all later positions' acceptance at each of them."""
REQUEST_DECAY, POOLED_DECAY = 0.98, 0.99
"""Decay of observations per step: of one request (some fifty count), and of all requests together."""
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
BURST, FIRST_REST, LONGEST_REST = 8, 8, 128
"""Steps that choose lengths, and the most steps afterwards that keep them: the first time, and later."""
CHOOSING_SHARE = 0.04
"""What choosing may take of the time of steps, if the longest rest allows."""
PROPOSAL_SPREAD = 0.05
"""Weight of :data:`~specdec_hal.runner.step_cost.PRIOR_SLOPE` in the cost of a host proposer."""


ASKED, LATER, FIRST = 0, 1, 2
"""Columns of counts [..., 2, K + 2], of tries and of successes: steps with drafts allowed, and found; drafts verified,
and accepted, at all positions but the first; and by position, from FIRST on.
"""
_KINDS = np.array([[0], [1]])


def counts_of_step(k: int) -> Floats:
    """What a step counts, by numbers of drafts and of accepted ones [K + 1, K + 1, 2, K + 2].

    Positions after a rejected draft carry no information.
    """
    values = np.zeros((k + 1, k + 1, 2, k + 2))
    drafted, accepted, at = np.ogrid[: k + 1, : k + 1, :k]
    values[:, :, 0, FIRST:] = (at < accepted) | ((at == accepted) & (accepted < drafted))
    values[:, :, 1, FIRST:] = at < accepted
    values[..., LATER] = values[..., FIRST + 1 :].sum(-1)
    values[:, :, 0, ASKED], values[1:, :, 1, ASKED] = 1, 1
    return values


class DraftLengths:
    """Chooses the draft length of every request between 0 and `k`. Requests are rows of arrays, see :meth:`rows`."""

    def __init__(self, k: int) -> None:
        self._k, self._of_step = k, counts_of_step(k)
        self.steps, self._plain_steps = Cost(), Cost()
        """Of steps with drafts, and without."""
        self._proposals = Cost(PROPOSAL_SPREAD, of_steps=False)
        self._known: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._free = list[int]()
        self._slots, self._asks = 1, False
        self._burst, self._choosing_s, self._burst_s = 0, 0.0, 0.0
        """Steps of this burst of choices, seconds of choosing, and of these steps."""
        self._until_plain = self._interval = FIRST_PLAIN
        self._plain = self._settling = 0
        """Steps that wait for one without drafts, and then for one with drafts."""
        self.requests = np.zeros(0, [(name, np.int64) for name in ("kind", "limit", "pause", "next_pause")])
        """The kind of the next step: 1 after a fully accepted one; the most drafts in it; remaining steps without
        drafts; the next pause.
        """
        self.seen: Floats = np.zeros((0, 2, k + 2))
        """Counts of a request in steps of either kind, at twice its row and after it."""
        self._usual = np.ones((2, FIRST + 1))
        self.forget()

    def forget(self) -> None:
        """Forget acceptance, for later requests."""
        self.pooled: Floats = np.zeros((2, 2, self._k + 2))
        """Counts of all requests, in steps of either kind."""
        self._rest, self._next_rest = 0, FIRST_REST
        """Steps left without a choice, and the most of the next rest."""
        self._idle, self._retrying = 0, False
        """Steps since a request might draft; whether the lengths are those of a retry, which no step has shown yet."""
        self._refresh()

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
        if self._rest:
            self._rest -= 1
            return False
        if len(rows):
            began_s = time.perf_counter()
            self._choose(rows, drafted, accepted, seconds, narrow)
            if seconds is not None:
                self._count_choice(time.perf_counter() - began_s, seconds)
        return bool(len(rows))

    def _count_choice(self, choosing_s: float, step_s: float) -> None:
        """Count a step that chose lengths, and begin a rest after a burst that has taken too much of its time."""
        self._burst += 1
        self._choosing_s += choosing_s
        self._burst_s += step_s
        if self._burst < BURST or self._plain or self._settling or self._retrying:
            return
        due = self._burst * (self._choosing_s / (CHOOSING_SHARE * max(self._burst_s, 1e-9)) - 1)
        if due >= 1:
            self._rest = min(int(due), self._next_rest)
            self._next_rest = min(2 * self._next_rest, LONGEST_REST)
        self._burst, self._choosing_s, self._burst_s = 0, 0.0, 0.0

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
        known = self.requests
        asked = known["limit"][rows] > 0
        self._idle = 0 if asked.any() else self._idle + 1
        if not asked.all():
            paused = rows[~asked]
            known["pause"][paused] -= 1
            due = paused[known["pause"][paused] <= 0]
            if len(due) and (not self._idle or self._idle >= self._retry_after()):
                known["limit"][due], self._retrying = min(PROBE, self._k), True
            rows, drafted, accepted = rows[asked], drafted[asked], accepted[asked]
            if not len(rows):
                return
        if narrow:  # it was launched before they might draft
            return
        before, kind = known["kind"][rows], (drafted > 0) & (drafted == accepted)
        self._count(rows, before, self._of_step[drafted, accepted])
        known["kind"][rows] = kind
        if not total and not changed and (kind == before).all():  # it would choose the same
            return
        self._refresh()
        self._retrying = False
        best = known["limit"][rows] = self._best(self.seen[2 * rows + kind], kind.astype(np.int64))
        stopped, tried, pause = best == 0, drafted > 0, known["next_pause"][rows]
        known["pause"][rows[stopped]] = pause[stopped]
        waits = np.minimum(np.maximum(np.where(stopped, pause * 2, pause // 2), FIRST_PAUSE), LONGEST_PAUSE)
        known["next_pause"][rows[tried]] = waits[tried]

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

    def _count(self, rows: Ints, kinds: Ints, results: Floats) -> None:
        """Count results of requests' steps of these kinds."""
        seen = 2 * rows + kinds
        self.seen[seen] = self.seen[seen] * REQUEST_DECAY + results
        of_kind = (kinds == _KINDS).astype(np.float64)
        self.pooled *= (POOLED_DECAY ** of_kind.sum(1))[:, None, None]
        self.pooled += (of_kind @ results.reshape(len(rows), -1)).reshape(self.pooled.shape)

    def _refresh(self) -> None:
        """Update the priors of requests: of what :data:`ASKED`, :data:`LATER` and :data:`FIRST` count [2, 3], and of
        each position [2, K].
        """
        tries, successes, some = self.pooled[:, 0], self.pooled[:, 1], slice(LATER, FIRST + 1)
        usual = (successes[:, some] + PRIOR_STRENGTH * PRIOR) / (tries[:, some] + PRIOR_STRENGTH)
        self._usual[:, some] = usual
        self._every = (successes[:, FIRST:] + SHARED_STRENGTH * usual[:, :1]) / (tries[:, FIRST:] + SHARED_STRENGTH)
        self._every[:, 0] = usual[:, 1]

    def _new_row(self, request: Any, limit: int) -> int:
        if not self._free:
            size = len(self.requests)
            self.requests, self.seen = (
                np.concatenate([some, np.zeros_like(some, shape=(more, *some.shape[1:]))])
                for some, more in ((self.requests, size or 16), (self.seen, 2 * (size or 16)))
            )
            self._free += range(size, len(self.requests))
        row = self._free.pop()
        finalize(request, self._free.append, row).atexit = False
        self.requests[row], self.seen[2 * row : 2 * row + 2] = (0, limit, 0, FIRST_PAUSE), 0
        return row

    def _limit_of_new(self) -> int:
        if not self.steps and not self._plain_steps:
            return min(PROBE, self._k)
        return int(self._best(np.zeros((self._slots, 2, self._k + 2)), np.zeros(self._slots, np.int64))[0])

    def _best(self, seen: Floats, kinds: Ints) -> Ints:
        """The numbers of drafts that maximise tokens per second, of requests with these counts in such a step."""
        found, gains = self.expect(seen, kinds)
        order = np.argsort(-gains, axis=None, kind="stable")  # those of a request stay in their order
        request = order // self._k
        start, slope = (self.steps or self._plain_steps).line(self._slots)
        plain = self._plain_steps(0, self._slots) if self._plain_steps else start
        tokens = self._slots + gains.reshape(-1)[order].cumsum()
        taken = start + slope * found[request].cumsum()
        if self._asks:
            asking = self._proposals.line(1)
            taken += asking.start + asking.slope * np.maximum.accumulate(order % self._k + 1)
        speeds = tokens / taken
        best = int(speeds.argmax())
        count = best + 1 if speeds[best] > self._slots / plain else 0
        return np.bincount(request[:count], minlength=len(seen))

    def expect(self, seen: Floats, kinds: Ints) -> tuple[Floats, Floats]:
        """For the next drafts: the probabilities that there are any [n], and that each yields a token [n, K]."""
        tries, successes, first = seen[:, 0], seen[:, 1], FIRST + 1
        own = (successes[:, :first] + POOLED_STRENGTH * self._usual[kinds]) / (tries[:, :first] + POOLED_STRENGTH)
        prior = SHARED_STRENGTH / 2 * (self._every[kinds] + own[:, LATER:FIRST])
        chances = (successes[:, FIRST:] + prior) / (tries[:, FIRST:] + SHARED_STRENGTH)
        chances[:, 0] = own[:, ASKED] * own[:, FIRST]
        return own[:, ASKED], chances.cumprod(1)
