"""How many tokens to draft for each request: as many as give the most tokens a second, by what was measured so far.

For a request that drafts k tokens at most, a step is expected to give 1 + sum over i <= k of P(draft i is accepted),
and to take as long as steps with that many tokens took. Both sides are measured while decoding.

Texts repeat in stretches. Acceptance is therefore counted apart for steps behind one whose drafts were all accepted,
and few observations say little against what is usual: a position that was rejected once is not given up, or nobody
would draft so far again to find out. The number that is best may be 0; drafting is then tried again after a while,
which doubles each time that it comes to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

from specdec_hal.runner.sequence import Sequence

RECENT = 0.97
"""What an observation of a request still counts for behind the next one: some thirty of them decide."""
POOLED = 0.98
"""The same for all requests together, from whose acceptance a new one starts."""
HOPES = ((0.6, 0.85), (0.9, 0.92))
"""Acceptance of the first draft, and of one behind an accepted one, before anything was seen: that of n-gram look-ups
in code and prose. The second pair is for steps behind one whose drafts were all accepted."""
HOPED_FIRST, TRUST_FIRST = 4.0, 3.0
HOPED, TRUST, ALIKE = 20.0, 8.0, 12.0
"""Observations that these count for, of the first draft and of the others, and those that the requests before count
for; `ALIKE`: what is seen at all positions behind the first, for each of them."""
SLOPE, SPREAD = 0.05, 2.0
"""What a token more costs of a request's share of a step before steps with other numbers of drafts were seen, and what
that counts for: as steps would whose squared distances from their mean are as large together."""
STEADY = 0.99
"""What a measured step still counts for behind the next one with as many requests."""
FIRST_PAUSE, LONGEST_PAUSE, PROBE = 4, 64, 1
"""Steps without drafts before drafting is tried again, and with how many drafts."""
CHOSEN = 8
"""Requests whose draft length is chosen anew behind a step; in a larger batch they take turns."""


class Drafted(NamedTuple):
    """What a decoding request did in a step."""

    sequence: Sequence
    drafted: int
    accepted: int


@dataclass
class _Group:
    """Decayed sums of what was measured with one number of requests: weight, drafts, seconds."""

    weight: float = 0.0
    size: float = 0.0
    seconds: float = 0.0


class Cost:
    """Seconds by size, along a line for each group of measurements; the lines are parallel.

    Groups are steps with as many requests, whose number costs more than its tokens do. Lines, because what disturbs a
    step on a busy machine is larger than what bends them. `spread`: what :data:`SLOPE` counts for. `guarded`:
    measurements that are out of all proportion do not count as such.
    """

    def __init__(self, spread: float = SPREAD, *, guarded: bool = True) -> None:
        self._prior, self._guarded = spread, guarded
        self._groups: dict[int, _Group] = {}
        self._spread = self._together = 0.0

    @property
    def slope(self) -> float:
        """Seconds that one more costs: never nothing, or nobody would try fewer and find out."""
        weight = sum(one.weight for one in self._groups.values())
        seconds = sum(one.seconds / number for number, one in self._groups.items())
        usual = SLOPE * seconds / (weight or 1.0)
        return max((self._together + usual * self._prior) / (self._spread + self._prior), usual / 4)

    def add(self, size: int, seconds: float, group: int = 1) -> None:
        """Count a measurement."""
        held, expected = self._groups.setdefault(group, _Group()), self(size, group)
        if self._guarded and held.weight > 5:
            seconds = min(seconds, 2 * expected)
        elif self._guarded and seconds < expected / 3:  # what was seen before took part in compiling
            held = self._groups[group] = _Group()
            self._spread = self._together = 0.0
        before = held.weight * STEADY
        mean, typical = (held.size / held.weight, held.seconds / held.weight) if held.weight else (size, seconds)
        share = before / (before + 1)
        self._spread = self._spread * STEADY + share * (size - mean) ** 2
        self._together = self._together * STEADY + share * (size - mean) * (seconds - typical)
        held.weight, held.size, held.seconds = before + 1, held.size * STEADY + size, held.seconds * STEADY + seconds

    def __call__(self, size: float, group: int = 1) -> float:
        """The expected seconds, of the group that is nearest to this one; 0 before the first measurement."""
        known = [number for number, one in self._groups.items() if one.weight]
        if not known:
            return 0.0
        held = self._groups[min(known, key=lambda number: abs(number - group))]
        return max(held.seconds / held.weight + self.slope * (size - held.size / held.weight), 0.0)


class Acceptance:
    """How far drafts go: for each position, how often it was drafted and how often its draft was accepted.

    Newer observations weigh more; `unit` is what the newest one does.
    """

    def __init__(self, k: int, keep: float) -> None:
        self._keep = keep
        self.unit = 1.0
        self.drafted, self.accepted = [0.0] * k, [0.0] * k
        self.asked = self.found = 0.0

    def add(self, drafted: int, accepted: int) -> None:
        """Count a step that was allowed to draft. A position behind a rejected draft tells nothing."""
        self.unit /= self._keep
        self.asked += self.unit
        if drafted:
            self.found += self.unit
            for i in range(min(accepted + 1, drafted)):
                self.drafted[i] += self.unit
            for i in range(accepted):
                self.accepted[i] += self.unit
        if self.unit > 1e9:
            self.asked, self.found, scale = self.asked / self.unit, self.found / self.unit, 1 / self.unit
            self.drafted, self.accepted = ([one * scale for one in some] for some in (self.drafted, self.accepted))
            self.unit = 1.0

    def rate(self, positions: slice, expected: float, trust: float) -> float:
        """How often drafts at these positions are accepted, where `trust` observations spoke for `expected`."""
        trust *= self.unit
        return (sum(self.accepted[positions]) + trust * expected) / (sum(self.drafted[positions]) + trust)


@dataclass
class _Request:
    """What is known of one request. `kinds`: its acceptance behind other steps, and behind those that accepted all;
    `kind`: which of them the next step is. `limit`: the most drafts that it gets now; `pause`: steps without any left;
    `tokens`, `gain`: drafts that it feeds, and tokens that it gains, in a step of late."""

    kinds: tuple[Acceptance, Acceptance]
    limit: int
    kind: int = 0
    pause: int = 0
    next_pause: int = FIRST_PAUSE
    tokens: float = 0.0
    gain: float = 1.0


class DraftLengths:
    """Chooses the draft length of every request between 0 and `k`."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._steps, self._proposals = Cost(), Cost(0.05, guarded=False)
        self._requests: WeakKeyDictionary[Sequence, _Request] = WeakKeyDictionary()
        self._turn = 0
        self.forget()

    def forget(self) -> None:
        """Let what requests had accepted so far count for none of the next ones."""
        self._all = self._kinds(POOLED)

    def _kinds(self, keep: float) -> tuple[Acceptance, Acceptance]:
        return Acceptance(self._k, keep), Acceptance(self._k, keep)

    def limit(self, sequence: Sequence) -> int:
        """The most drafts that a request gets in its next step."""
        return self._of(sequence).limit

    def proposed(self, longest: int, seconds: float) -> None:
        """A proposer on the host took so long for drafts of up to `longest` tokens."""
        self._proposals.add(longest, seconds)

    def stepped(self, slots: Iterable[Drafted], seconds: float) -> None:
        """A step of decoding requests took so long, without what a proposer on the host took; choose anew."""
        slots = list(slots)
        if not slots:
            return
        self._steps.add(sum(one.drafted for one in slots), seconds, len(slots))
        requests, tokens, gain = [self._of(one.sequence) for one in slots], 0.0, 0.0
        for request, (_, drafted, accepted) in zip(requests, slots, strict=True):
            if request.limit:
                request.kinds[request.kind].add(drafted, accepted)
                self._all[request.kind].add(drafted, accepted)
                request.kind = int(0 < drafted == accepted)
            request.tokens += 0.2 * (drafted - request.tokens)
            request.gain += 0.2 * (1 + accepted - request.gain)
            tokens += request.tokens
            gain += request.gain
        turns = -(-len(slots) // CHOSEN)
        self._turn += 1
        for number, request in enumerate(requests):
            if request.limit == 0:
                request.pause -= 1
                if request.pause <= 0:
                    request.limit = min(PROBE, self._k)
            elif number % turns == self._turn % turns:
                self._choose(request, len(slots), tokens - request.tokens, gain - request.gain)

    def _of(self, sequence: Sequence) -> _Request:
        request = self._requests.get(sequence)
        if request is None:
            request = self._requests[sequence] = _Request(self._kinds(RECENT), self._k)
            self._choose(request, 1, 0.0, 0.0)
        return request

    def _choose(self, request: _Request, slots: int, others: float, their_gain: float) -> None:
        """Set the limit. `others`: drafts that the other requests of `slots` feed in a step; `their_gain`: tokens."""
        request.limit = best = self._best(request, slots, others, their_gain)
        if best:
            request.next_pause = max(request.next_pause // 2, FIRST_PAUSE)
        else:
            request.pause, request.next_pause = request.next_pause, min(request.next_pause * 2, LONGEST_PAUSE)

    def _best(self, request: _Request, slots: int, others: float, their_gain: float) -> int:
        own, every = request.kinds[request.kind], self._all[request.kind]
        first, later = HOPES[request.kind]
        found = (own.found + TRUST * own.unit) / (own.asked + TRUST * own.unit)
        usual = every.rate(slice(1, None), later, HOPED)
        here = own.rate(slice(1, None), usual, TRUST)
        gain, seconds, chance = their_gain + 1.0, self._steps(others, slots) + self._proposals(0), 1.0
        if not seconds:
            return -(-self._k // 4)
        each, asking = self._steps.slope, self._proposals(1) - self._proposals(0)
        best, most = 0, gain / seconds
        for i in range(self._k):
            at = slice(i, i + 1)
            if i == 0:
                chance = own.rate(at, every.rate(at, first, HOPED_FIRST), TRUST_FIRST)
            else:
                chance *= own.rate(at, (every.rate(at, usual, ALIKE) + here) / 2, ALIKE)
            gain += found * chance
            seconds += found * each + asking
            if gain / seconds > most:
                best, most = i + 1, gain / seconds
        return best
