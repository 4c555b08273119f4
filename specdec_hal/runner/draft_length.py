"""Number of drafts per request that maximises tokens per second, by measurements so far.

A step's expected tokens are one per request plus, for each draft, the probability that it and those before it are
accepted. Its expected time is that of recent steps with as many requests and drafts. Both are measured while decoding.
The drafts of all requests are ranked by probability, and the number with the largest ratio is used.

Repetition comes in runs, so acceptance is counted separately for steps after fully accepted ones. Few observations
weigh little against the prior, so that a position is not abandoned after one rejection. If the best number is 0,
drafting is retried after a pause that doubles with each failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple
from weakref import WeakKeyDictionary

from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.step_cost import Cost


class Prior(NamedTuple):
    """An expected acceptance, and its weight as a number of observations.

    Estimated: (accepted + strength * acceptance) / (judged + strength), of `judged` drafts that many `accepted`.
    """

    acceptance: float
    strength: float

    def estimate(self, accepted: float, judged: float, unit: float = 1.0) -> float:
        """With counts in units of an observation."""
        weight = self.strength * unit
        return (accepted + weight * self.acceptance) / (judged + weight)


FIRST_PRIORS, LATER_PRIORS = (Prior(0.6, 4.0), Prior(0.9, 4.0)), (Prior(0.85, 20.0), Prior(0.92, 20.0))
"""Priors of the first draft and of one after an accepted one: those of n-gram look-ups in code and prose. The second of
each is for steps after a fully accepted one.
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
MAX_UPDATES = 16
"""Requests whose estimates are updated per step; the others keep theirs for some steps."""
RESCALE_WEIGHT = 1e9
"""Weight of a step above which the sums are rescaled."""
PROPOSAL_SPREAD = 0.05
"""Weight of :data:`~specdec_hal.runner.step_cost.PRIOR_SLOPE` in the cost of a host proposer."""


class Drafted(NamedTuple):
    """A decoding request's result in a step."""

    sequence: Sequence
    drafted: int
    accepted: int


class _Counts:
    """Counts per position of verified and accepted drafts; counts of steps with drafts allowed and found.

    Newer steps weigh more by a growing `unit`, instead of decaying older ones.
    """

    def __init__(self, k: int, keep: float) -> None:
        self._keep, self.unit = keep, 1.0
        self.judged, self.accepted = [0.0] * k, [0.0] * k
        self.asked = self.found = 0.0

    def add(self, drafted: int, accepted: int) -> None:
        """Count a step with drafts allowed. Positions after a rejected draft carry no information."""
        self.unit /= self._keep
        if self.unit > RESCALE_WEIGHT:
            self._rescale()
        unit, judged = self.unit, self.judged
        self.asked += unit
        if drafted:
            self.found += unit
        for i in range(accepted):
            judged[i] += unit
            self.accepted[i] += unit
        if accepted < drafted:
            judged[accepted] += unit

    def after_first(self) -> tuple[float, float]:
        """Of all positions but the first: how often accepted, and how often judged."""
        return sum(self.accepted) - self.accepted[0], sum(self.judged) - self.judged[0]

    def _rescale(self) -> None:
        self.judged, self.accepted = ([one / self.unit for one in some] for some in (self.judged, self.accepted))
        self.asked, self.found, self.unit = self.asked / self.unit, self.found / self.unit, 1.0


class _Pooled:
    """Acceptance of all requests after steps of one kind, and the resulting prior."""

    def __init__(self, k: int, first: Prior, later: Prior) -> None:
        self._counts, self._first, self._later = _Counts(k, POOLED_DECAY), first, later
        self.usual, self.every = later.acceptance, [first.acceptance] + [later.acceptance] * (k - 1)

    def add(self, drafted: int, accepted: int) -> None:
        """Count a request's result."""
        self._counts.add(drafted, accepted)

    def refresh(self) -> None:
        """Update the prior: `usual`, the acceptance of later drafts, and `every`, by position."""
        counts, unit = self._counts, self._counts.unit
        self.usual = self._later.estimate(*counts.after_first(), unit)
        shared = Prior(self.usual, SHARED_STRENGTH)
        self.every = [shared.estimate(a, j, unit) for a, j in zip(counts.accepted, counts.judged, strict=True)]
        self.every[0] = self._first.estimate(counts.accepted[0], counts.judged[0], unit)


class _Request:
    """State of a request.

    `kind` of its next step: 1 after a fully accepted one. `limit`: the most drafts now; `pause`: remaining steps
    without drafts; `next_pause`. `gains`: by kind, see :meth:`expect`, and the step until which they are valid.
    """

    def __init__(self, k: int) -> None:
        self._seen = _Counts(k, REQUEST_DECAY), _Counts(k, REQUEST_DECAY)
        self.kind = self.limit = self.pause = 0
        self.next_pause = FIRST_PAUSE
        self.gains: list[tuple[int, float, list[float]]] = [(0, 0.0, [])] * 2

    def add(self, drafted: int, accepted: int) -> None:
        """Count a step that was allowed to draft."""
        self._seen[self.kind].add(drafted, accepted)

    def expect(self, pooled: _Pooled) -> tuple[float, list[float]]:
        """For its next drafts: the probability that there are any, and that each yields a token."""
        seen = self._seen[self.kind]
        unit, judged, accepted = seen.unit, seen.judged, seen.accepted
        here = Prior(pooled.usual, POOLED_STRENGTH).estimate(*seen.after_first(), unit)
        found = Prior(1.0, POOLED_STRENGTH).estimate(seen.found, seen.asked, unit)
        chance = found * Prior(pooled.every[0], POOLED_STRENGTH).estimate(accepted[0], judged[0], unit)
        gains = [chance]
        shared, half = SHARED_STRENGTH * unit, SHARED_STRENGTH * unit / 2
        for i in range(1, len(judged)):  # as Prior.estimate, of the mean of both; written out, since it is often done
            chance *= (accepted[i] + half * (pooled.every[i] + here)) / (judged[i] + shared)
            gains.append(chance)
        return found, gains


class DraftLengths:
    """Chooses the draft length of every request between 0 and `k`."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._steps, self._proposals = Cost(), Cost(PROPOSAL_SPREAD, of_steps=False)
        self._requests: WeakKeyDictionary[Sequence, _Request] = WeakKeyDictionary()
        self._slots, self._asks, self._step = 1, False, 0
        self.forget()

    def forget(self) -> None:
        """Forget acceptance, for later requests."""
        self._pooled = [_Pooled(self._k, first, later) for first, later in zip(FIRST_PRIORS, LATER_PRIORS, strict=True)]

    def limit(self, sequence: Sequence) -> int:
        """The most drafts that a request gets in its next step."""
        return self._known(sequence).limit

    def proposed(self, longest: int, seconds: float) -> None:
        """Record a host proposer's time for drafts of up to `longest` tokens."""
        self._asks = True
        self._proposals.add(longest, seconds)

    def stepped(self, slots: Iterable[Drafted], seconds: float) -> None:
        """Record a decode step's time, without a host proposer's, and choose again."""
        slots = list(slots)
        if not slots:
            return
        requests = [self._known(one.sequence) for one in slots]
        total, changed = sum(one.drafted for one in slots), len(slots) != self._slots
        self._slots, self._step = len(slots), self._step + 1
        self._steps.add(total, seconds, len(slots))
        asked = []
        for request, (_, drafted, accepted) in zip(requests, slots, strict=True):
            if request.limit > 0:
                asked.append((request, drafted))
                request.add(drafted, accepted)
                self._pooled[request.kind].add(drafted, accepted)
                kind = int(0 < drafted == accepted)
                changed |= kind != request.kind
                request.kind = kind
            else:
                request.pause -= 1
                if request.pause <= 0:
                    request.limit = min(PROBE, self._k)
        if not asked or not (total or changed):  # else it would choose the same
            return
        for pooled in self._pooled:
            pooled.refresh()
        for (request, drafted), best in zip(asked, self._best([one for one, _ in asked]), strict=True):
            request.limit = best
            if best == 0:
                request.pause = request.next_pause
            if drafted:
                waits = request.next_pause // 2 if best else request.next_pause * 2
                request.next_pause = min(max(waits, FIRST_PAUSE), LONGEST_PAUSE)

    def _known(self, sequence: Sequence) -> _Request:
        request = self._requests.get(sequence)
        if request is None:
            request = self._requests[sequence] = _Request(self._k)
            if self._steps(0, self._slots):
                request.limit = self._best([request] * self._slots)[0]
            else:
                request.limit = min(PROBE, self._k)
        return request

    def _gains(self, request: _Request) -> tuple[float, list[float]]:
        """See :meth:`_Request.expect`. Of many requests, some are worked out again in a step."""
        until, found, gains = request.gains[request.kind]
        if until <= self._step:
            found, gains = request.expect(self._pooled[request.kind])
            request.gains[request.kind] = self._step + max(self._slots // MAX_UPDATES, 1), found, gains
        return found, gains

    def _best(self, requests: list[_Request]) -> list[int]:
        """The numbers of drafts of these requests that maximise tokens per second."""
        drafts = []
        for at, request in enumerate(requests):
            found, gains = self._gains(request)
            drafts += [(gain, found, at) for gain in gains]
        if len(requests) > 1:
            drafts.sort(key=itemgetter(0), reverse=True)  # those of a request stay in their order
        start, slope = self._steps.line(self._slots)
        asking = self._proposals.line(1) if self._asks else None
        counts, longest = [0] * len(requests), 0
        tokens, taken = float(self._slots), start
        speed, best = tokens / taken, 0
        for number, (gain, found, at) in enumerate(drafts, 1):
            tokens += gain
            taken += found * slope
            if asking is not None:
                counts[at] += 1
                if counts[at] > longest:
                    longest += 1
                    taken += asking.slope if longest > 1 else asking(1)
            if tokens > speed * taken:
                speed, best = tokens / taken, number
        limits = [0] * len(requests)
        for _, _, at in drafts[:best]:
            limits[at] += 1
        return limits
