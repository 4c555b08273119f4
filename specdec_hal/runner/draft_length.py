"""How many tokens to draft for each request: as many as give the most tokens a second, by what was measured so far.

A step is expected to give a token for each request, and for each draft the probability that it and those before it are
accepted. It is expected to take as long as recent steps with as many requests and drafts. Both sides are measured while
decoding. The drafts of all requests are ranked by that probability, and as many of them are fed as make the ratio
largest.

Texts repeat in stretches. Acceptance is therefore counted apart for steps after one whose drafts were all accepted. Few
observations weigh little against what is usual: a position that was rejected once is not given up, or no draft would
reach it again to find out. The number that is best may be 0; drafting is then tried again after a while, which doubles
each time that it comes to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple
from weakref import WeakKeyDictionary

from specdec_hal.runner.sequence import Sequence

REQUEST_DECAY = 0.98
"""What an observation of a request still counts for after the next one: some fifty of them decide."""
POOLED_DECAY = 0.99
"""The same for all requests together, from whose acceptance a new one starts."""
PRIOR_ACCEPTANCE = (0.6, 0.9), (0.85, 0.92)
"""Acceptance of the first draft, and of one after an accepted one, before anything was seen: that of n-gram look-ups
in code and prose. The second number is for steps after one whose drafts were all accepted."""
PRIOR_STRENGTH_FIRST, POOLED_STRENGTH_FIRST = 4.0, 8.0
PRIOR_STRENGTH, POOLED_STRENGTH, SHARED_STRENGTH = 20.0, 8.0, 24.0
"""Observations that these count for, of the first draft and of the others, and those that the requests before count
for; `SHARED_STRENGTH`: what is seen at all positions after the first, for each of them."""
PRIOR_SLOPE, PRIOR_SLOPE_STRENGTH = 0.05, 2.0
"""What a token more costs of a request's share of a step before steps with other numbers of drafts were seen, and what
that counts for: as steps would whose squared distances from their mean are as large together."""
COST_DECAY = 0.97
"""What a measured step still counts for after the next one with as many requests."""
SLOPE_DEADBAND = 0.5
"""A size as far as this from the mean tells nothing of the slope, which is then not forgotten either."""
OUTLIER_LIMIT = 1.5
"""A step counts as having taken so many times what was expected at most: whatever disturbs steps makes them longer."""
FIRST_PAUSE, LONGEST_PAUSE, PROBE = 4, 64, 1
"""Steps without drafts before drafting is tried again, and with how many drafts."""
MAX_UPDATES = 16
"""Requests whose chances are worked out again in a step: the others keep theirs for some steps."""
RESCALE_WEIGHT = 1e9
"""Weight of a step from which on the sums are scaled down."""


class Drafted(NamedTuple):
    """What a decoding request did in a step."""

    sequence: Sequence
    drafted: int
    accepted: int


class _Group:
    """Decayed sums of what was measured with one number of requests: weight, sizes, seconds."""

    def __init__(self) -> None:
        self.weight = self.size = self.seconds = 0.0


class Line(NamedTuple):
    """Seconds of a step by its size."""

    start: float
    slope: float

    def __call__(self, size: float) -> float:
        """Seconds of that size."""
        return self.start + self.slope * size


class Cost:
    """Seconds by size: along a line for each group of measurements, all lines parallel.

    Groups are steps with as many requests, whose number costs more than its tokens do. What was measured last counts
    most, since requests differ: the lines touch the curve, if it is one, at the sizes that are used. `spread`: what
    :data:`PRIOR_SLOPE` counts for. `of_steps`: size 0 takes time too, and measurements that are out of all proportion
    do not count as such.
    """

    def __init__(self, spread: float = PRIOR_SLOPE_STRENGTH, *, of_steps: bool = True) -> None:
        self._prior, self._of_steps = spread, of_steps
        self._groups: dict[int, _Group] = {}
        self._spread = self._together = 0.0

    @property
    def least(self) -> float:
        """Seconds that one more costs at least: not nothing, or nobody would try fewer and find out."""
        weight = share = 0.0
        for number, one in self._groups.items():
            weight += one.weight
            share += one.seconds / number
        return PRIOR_SLOPE / 4 * share / (weight or 1.0)

    @property
    def slope(self) -> float:
        """Seconds that one more costs."""
        least = self.least
        return max((self._together + 4 * least * self._prior) / (self._spread + self._prior), least)

    def add(self, size: int, seconds: float, group: int = 1) -> None:
        """Count a measurement."""
        held = self._groups.get(group)
        if held is None:
            held = self._groups[group] = _Group()
        if self._of_steps and held.weight:
            expected = self(size, group)
            if held.weight > 5:
                seconds = min(seconds, OUTLIER_LIMIT * expected)
            elif seconds < expected / 3:  # what was seen before took part in compiling
                held = self._groups[group] = _Group()
                self._spread = self._together = 0.0
        before = held.weight * COST_DECAY
        if held.weight:
            off, share = size - held.size / held.weight, before / (before + 1)
            keep = COST_DECAY if abs(off) > SLOPE_DEADBAND else 1.0
            self._spread = self._spread * keep + share * off * off
            self._together = self._together * keep + share * off * (seconds - held.seconds / held.weight)
        held.weight, held.size, held.seconds = (
            before + 1,
            held.size * COST_DECAY + size,
            held.seconds * COST_DECAY + seconds,
        )

    def __call__(self, size: float, group: int = 1) -> float:
        """The expected seconds of one size."""
        return self.line(group)(size)

    def line(self, group: int) -> Line:
        """The expected seconds of so many requests: of the group that is nearest to this one, if it was not measured.

        0 before the first measurement.
        """
        if not self._groups:
            return Line(0.0, 0.0)
        nearest = group if group in self._groups else min(self._groups, key=lambda number: abs(number - group))
        known = self._groups[nearest]
        mean, seconds = known.size / known.weight, known.seconds / known.weight
        own = nearest if self._of_steps else 0  # a request's own token costs as much as a draft, at least
        slope = min(self.slope, seconds / (mean + own or 1.0))
        return Line(seconds - slope * mean, slope)


class _Counts:
    """How often each position was drafted and judged, and how often accepted; how often drafts were allowed, and found.

    A newer step weighs more, by a growing `unit`, so that older ones need not be touched.
    """

    def __init__(self, k: int, keep: float) -> None:
        self._keep, self.unit = keep, 1.0
        self.judged, self.accepted = [0.0] * k, [0.0] * k
        self.asked = self.found = 0.0

    def add(self, drafted: int, accepted: int) -> None:
        """Count a step that was allowed to draft. A position after a rejected draft tells nothing."""
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

    def _rescale(self) -> None:
        self.judged, self.accepted = ([one / self.unit for one in some] for some in (self.judged, self.accepted))
        self.asked, self.found, self.unit = self.asked / self.unit, self.found / self.unit, 1.0


class _Pooled:
    """What all requests together had accepted after steps of one kind, and what is usual by that."""

    def __init__(self, k: int, first: float, later: float) -> None:
        self._counts, self._hopes = _Counts(k, POOLED_DECAY), (first, later)
        self.usual, self.every = later, [first] + [later] * (k - 1)

    def add(self, drafted: int, accepted: int) -> None:
        """Count what a request did."""
        self._counts.add(drafted, accepted)

    def refresh(self) -> None:
        """Work out what is usual: `usual`, a draft's acceptance after the first, and `every`, by position."""
        counts, unit, (first, later) = self._counts, self._counts.unit, self._hopes
        judged, accepted, hoped = counts.judged, counts.accepted, PRIOR_STRENGTH * unit
        self.usual = usual = (sum(accepted) - accepted[0] + hoped * later) / (sum(judged) - judged[0] + hoped)
        alike = SHARED_STRENGTH * unit
        self.every = [(a + alike * usual) / (j + alike) for a, j in zip(accepted, judged, strict=True)]
        self.every[0] = (accepted[0] + PRIOR_STRENGTH_FIRST * unit * first) / (judged[0] + PRIOR_STRENGTH_FIRST * unit)


class _Request:
    """What is known of a request.

    `kind` of its next step: 1 after one that accepted all of its drafts. `limit`: the most drafts now; `pause`: steps
    without any left; `next_pause`. `gains`: by kind, see :meth:`expect`, and the step until which they serve.
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
        """Of its next drafts: how likely there are any, and that each of them gives a token."""
        seen, usual = self._seen[self.kind], pooled.usual
        unit, judged, accepted = seen.unit, seen.judged, seen.accepted
        trust, alike, half = POOLED_STRENGTH * unit, SHARED_STRENGTH * unit, SHARED_STRENGTH * unit / 2
        here = (sum(accepted) - accepted[0] + trust * usual) / (sum(judged) - judged[0] + trust)
        found = (seen.found + trust) / (seen.asked + trust)
        first = POOLED_STRENGTH_FIRST * unit
        chance = found * (accepted[0] + first * pooled.every[0]) / (judged[0] + first)
        gains = [chance]
        for i in range(1, len(judged)):
            chance *= (accepted[i] + half * (pooled.every[i] + here)) / (judged[i] + alike)
            gains.append(chance)
        return found, gains


class DraftLengths:
    """Chooses the draft length of every request between 0 and `k`."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._steps, self._proposals = Cost(), Cost(0.05, of_steps=False)
        self._requests: WeakKeyDictionary[Sequence, _Request] = WeakKeyDictionary()
        self._slots, self._asks, self._step = 1, False, 0
        self.forget()

    def forget(self) -> None:
        """Let what requests had accepted so far count for none of the next ones."""
        self._pooled = [_Pooled(self._k, first, later) for first, later in zip(*PRIOR_ACCEPTANCE, strict=True)]

    def limit(self, sequence: Sequence) -> int:
        """The most drafts that a request gets in its next step."""
        return self._known(sequence).limit

    def proposed(self, longest: int, seconds: float) -> None:
        """A proposer on the host took so long for drafts of up to `longest` tokens."""
        self._asks = True
        self._proposals.add(longest, seconds)

    def stepped(self, slots: Iterable[Drafted], seconds: float) -> None:
        """A step of decoding requests took so long, without what a proposer on the host took; choose again."""
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
        """The numbers of drafts of these requests that make a step of all slots give the most tokens a second."""
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
