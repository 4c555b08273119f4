"""How many tokens to draft for each request: as many as give the most tokens a second, by what was measured so far.

For a request that drafts k tokens at most, a step is expected to give 1 + sum over i <= k of P(draft i is accepted),
and to take as long as steps with that many tokens took. Both sides are measured while decoding. The number that is best
may be 0; drafting is then tried again after a while, which doubles each time that it comes to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from specdec_hal.runner.sequence import Sequence

RECENT = 0.93
"""What an observation of a request still counts for behind the next one: some fourteen of them decide."""
POOLED = 0.98
"""The same for all requests together, from whose acceptance a new one starts."""
HOPE = 0.7
"""Acceptance of a draft before anything was seen: drafting is tried."""
TRUST = 1.5
"""Observations that the requests before count for."""
SLOPE = 0.05
"""What a token more costs of a step's time before two sizes of steps were seen."""
SAMPLES = 7
FIRST_PAUSE, LONGEST_PAUSE = 8, 128
"""Steps without drafts before drafting is tried again."""


class Drafted(NamedTuple):
    """What a decoding request did in a step."""

    sequence: Sequence
    drafted: int
    accepted: int


class Cost:
    """Seconds by size, along the straight line nearest to the latest measurements of each size.

    A line, because what disturbs a step on a busy machine is larger than what bends it.
    """

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        self._base = self._slope = 0.0

    def add(self, size: int, seconds: float) -> None:
        """Count a measurement."""
        self._samples.setdefault(size, deque(maxlen=SAMPLES)).append(seconds)
        sizes, weights = np.array(list(self._samples), float), [len(some) for some in self._samples.values()]
        middle = np.array([sorted(some)[(len(some) - 1) // 2] for some in self._samples.values()])
        size_mean, mean = np.average(sizes, weights=weights), float(np.average(middle, weights=weights))
        spread = float(np.average((sizes - size_mean) ** 2, weights=weights))
        if spread:
            # More tokens take no less time.
            slope = float(np.average((sizes - size_mean) * (middle - mean), weights=weights)) / spread
            self._slope = max(slope, 0.0)
        else:
            self._slope = mean * SLOPE
        self._base = mean - self._slope * float(size_mean)

    def __call__(self, size: int) -> float:
        """The expected seconds; 0 before the first measurement."""
        return max(self._base + self._slope * size, 0.0)


class Acceptance:
    """How far drafts go: for each position, how often it was drafted and how often its draft was accepted."""

    def __init__(self, k: int, keep: float) -> None:
        self._keep = keep
        self.drafted, self.accepted = np.zeros(k), np.zeros(k)
        self.asked = self.found = 0.0

    def add(self, drafted: int, accepted: int) -> None:
        """Count a step that was allowed to draft. A position behind a rejected draft tells nothing."""
        self.asked = self.asked * self._keep + 1
        self.found = self.found * self._keep + (drafted > 0)
        if drafted:
            self.drafted *= self._keep
            self.accepted *= self._keep
            self.drafted[: min(accepted + 1, drafted)] += 1
            self.accepted[:accepted] += 1


@dataclass
class _Request:
    """What is known of one request. `limit`: the most drafts that it gets now; `pause`: steps without any left."""

    acceptance: Acceptance
    limit: int
    pause: int = 0
    next_pause: int = FIRST_PAUSE


class DraftLengths:
    """Chooses the draft length of every request between 0 and `k`."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._steps, self._proposals = Cost(), Cost()
        self._all = Acceptance(k, POOLED)
        self._requests: WeakKeyDictionary[Sequence, _Request] = WeakKeyDictionary()

    def forget(self) -> None:
        """Let what requests had accepted so far count for none of the next ones."""
        self._all = Acceptance(self._k, POOLED)

    def limit(self, sequence: Sequence) -> int:
        """The most drafts that a request gets in its next step."""
        return self._of(sequence).limit

    def proposed(self, longest: int, seconds: float) -> None:
        """A proposer on the host took so long for drafts of up to `longest` tokens."""
        self._proposals.add(longest, seconds)

    def stepped(self, slots: Iterable[Drafted], seconds: float) -> None:
        """A step of decoding requests took so long, without what a proposer on the host took; choose anew."""
        slots = list(slots)
        tokens = sum(1 + one.drafted for one in slots)
        gained = sum(1 + one.accepted for one in slots)
        self._steps.add(tokens, seconds)
        for sequence, drafted, accepted in slots:
            request = self._of(sequence)
            if request.limit:
                request.acceptance.add(drafted, accepted)
                self._all.add(drafted, accepted)
                if accepted:
                    request.next_pause = FIRST_PAUSE
            self._choose(request, tokens - 1 - drafted, gained - 1 - accepted)

    def _of(self, sequence: Sequence) -> _Request:
        if sequence not in self._requests:
            request = self._requests[sequence] = _Request(Acceptance(self._k, RECENT), self._k)
            if self._all.asked:
                self._choose(request, 0, 0)
        return self._requests[sequence]

    def _choose(self, request: _Request, others: int, their_gain: int) -> None:
        """Set the limit. `others`: tokens that the other requests feed in a step, which gives them `their_gain`."""
        if request.limit == 0:
            request.pause -= 1
            if request.pause > 0:
                return
            request.limit = max(self._k // 4, 1)
            return
        best = self._best(request.acceptance, others, their_gain)
        if best == 0:
            request.pause, request.next_pause = request.next_pause, min(request.next_pause * 2, LONGEST_PAUSE)
        request.limit = best

    def _best(self, acceptance: Acceptance, others: int, their_gain: int) -> int:
        before = (self._all.accepted + HOPE) / (self._all.drafted + 1)
        rates = (acceptance.accepted + TRUST * before) / (acceptance.drafted + TRUST)
        found = (acceptance.found + TRUST) / (acceptance.asked + TRUST)
        cost, asking = self._steps, self._proposals
        gain, seconds, chance = their_gain + 1.0, cost(others + 1) + asking(0), 1.0
        best, most = 0, gain / seconds if seconds else 0.0
        for k in range(1, self._k + 1):
            chance *= rates[k - 1]
            gain += found * chance
            seconds += found * (cost(others + 1 + k) - cost(others + k)) + asking(k) - asking(k - 1)
            if seconds and gain / seconds > most:
                best, most = k, gain / seconds
        return best
