"""How many tokens to draft for each request: as many as give the most tokens a second, by what was measured so far.

A step is expected to give a token for each request, and for each draft the probability that it and those before it are
accepted; and to take as long as steps with as many requests and as many drafts took. Both sides are measured while
decoding. The drafts of all requests are ranked by that probability, and as many of them are fed as make the ratio
largest: a step's time is no line, so that drafts which would not pay one by one may pay together.

Texts repeat in stretches. Acceptance is therefore counted apart for steps behind one whose drafts were all accepted,
and few observations say little against what is usual: a position that was rejected once is not given up, or nobody
would draft so far again to find out. The number that is best may be 0; drafting is then tried again after a while,
which doubles each time that it comes to nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from specdec_hal.runner.sequence import Sequence

RECENT = 0.97
"""What an observation of a request still counts for behind the next one: some thirty of them decide."""
POOLED = 0.99
"""The same for all requests together, from whose acceptance a new one starts."""
HOPES = np.array([0.6, 0.9]), np.array([0.85, 0.92])
"""Acceptance of the first draft, and of one behind an accepted one, before anything was seen: that of n-gram look-ups
in code and prose. The second number is for steps behind one whose drafts were all accepted."""
HOPED_FIRST, TRUST_FIRST = 4.0, 3.0
HOPED, TRUST, ALIKE = 20.0, 8.0, 24.0
"""Observations that these count for, of the first draft and of the others, and those that the requests before count
for; `ALIKE`: what is seen at all positions behind the first, for each of them."""
SLOPE, SPREAD = 0.05, 2.0
"""What a token more costs of a request's share of a step before steps with other numbers of drafts were seen, and what
that counts for: as steps would whose squared distances from their mean are as large together."""
STEADY = 0.99
"""What a measured step still counts for behind the next one with as many requests."""
KEPT = 0.998
"""What steps measured near a size still count for behind the next step: sizes that are not tried are remembered."""
BEND, PARTS = 1.0, 32
"""Steps that the line counts for against those measured near a size; parts that the sizes of a group are cut into."""
KERNEL = np.array([1, 2, 3, 2, 1]) / 3
"""What a step counts for in the parts beside its own."""
OFTEN = 8
"""Measured steps behind which their curve is drawn anew; the first ones at once."""
FIRST_PAUSE, LONGEST_PAUSE, PROBE = 4, 64, 1
"""Steps without drafts before drafting is tried again, and with how many drafts."""

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]


class Drafted(NamedTuple):
    """What a decoding request did in a step."""

    sequence: Sequence
    drafted: int
    accepted: int


class _Group:
    """Decayed sums of what was measured with one number of requests: weight, drafts, seconds.

    `near` [3, parts]: the same sums by parts of the sizes, whose middles are `at`. `curve`: see :meth:`Cost.curve`;
    `due`: measurements until it is drawn anew.
    """

    def __init__(self, part: int, parts: int) -> None:
        self.weight = self.size = self.seconds = 0.0
        self.part = part
        self.near: Floats = np.zeros((3, parts))
        self.at = np.arange(parts) * part + (part - 1) / 2
        self.curve: tuple[Floats, Floats] | None = None
        self.due = 0


class Cost:
    """Seconds by size: along a line for each group of measurements, parallel to the others, and bent to what is near.

    Groups are steps with as many requests, whose number costs more than its tokens do. Lines, because what disturbs a
    step on a busy machine is larger than what bends them; where many steps were measured, they tell. `most`: sizes of
    one request. `spread`: what :data:`SLOPE` counts for. `guarded`: measurements that are out of all proportion do not
    count as such.
    """

    def __init__(self, most: int, spread: float = SPREAD, *, guarded: bool = True) -> None:
        self._most, self._prior, self._guarded = most, spread, guarded
        self._groups: dict[int, _Group] = {}
        self._spread = self._together = 0.0

    @property
    def least(self) -> float:
        """Seconds that one more costs at least: not nothing, or nobody would try fewer and find out."""
        weight = sum(one.weight for one in self._groups.values())
        return SLOPE / 4 * sum(one.seconds / number for number, one in self._groups.items()) / (weight or 1.0)

    @property
    def slope(self) -> float:
        """Seconds that one more costs, of the lines."""
        least = self.least
        return max((self._together + 4 * least * self._prior) / (self._spread + self._prior), least)

    def add(self, size: int, seconds: float, group: int = 1) -> None:
        """Count a measurement."""
        held = self._groups.get(group)
        if held is None:
            held = self._new(group)
        expected = self(size, group)
        if self._guarded and held.weight > 5:
            seconds = min(seconds, 2 * expected)
        elif self._guarded and seconds < expected / 3:  # what was seen before took part in compiling
            held = self._new(group)
            self._spread = self._together = 0.0
        before = held.weight * STEADY
        mean, typical = (held.size / held.weight, held.seconds / held.weight) if held.weight else (size, seconds)
        share = before / (before + 1)
        self._spread = self._spread * STEADY + share * (size - mean) ** 2
        self._together = self._together * STEADY + share * (size - mean) * (seconds - typical)
        held.weight, held.size, held.seconds = before + 1, held.size * STEADY + size, held.seconds * STEADY + seconds
        held.near *= KEPT
        at = min(size // held.part, PARTS)
        held.near[:, at] = held.near[:, at] * RECENT + (1.0, size, seconds)
        held.due -= 1
        if held.due <= 0:
            held.curve, held.due = None, min(int(held.weight) + 1, OFTEN)

    def _new(self, group: int) -> _Group:
        made = self._groups[group] = _Group(-(-self._most * group // PARTS), PARTS + 1)
        return made

    def __call__(self, size: float, group: int = 1) -> float:
        """The expected seconds, of the group that is nearest to this one; 0 before the first measurement."""
        return float(np.interp(size, *self.curve(group)))

    def curve(self, group: int) -> tuple[Floats, Floats]:
        """Sizes, and the expected seconds at them. Drawn anew now and then."""
        known = self._groups.get(group)
        if known is None or not known.weight:
            others = [number for number, one in self._groups.items() if one.weight]
            if not others:
                return np.array([0.0, 1.0]), np.zeros(2)
            known = self._groups[min(others, key=lambda number: abs(number - group))]
        if known.curve is None:
            known.curve = self._draw(known)
        return known.curve

    def _draw(self, held: _Group) -> tuple[Floats, Floats]:
        slope, (weight, sizes, seconds) = self.slope, held.near
        line = held.seconds / held.weight - slope * held.size / held.weight
        above: Floats = np.convolve(seconds - line * weight - slope * sizes, KERNEL, "same")
        bent = above / (np.convolve(weight, KERNEL, "same") + BEND)
        curve, least = np.maximum(line + slope * held.at + bent, 0.0), self.least * held.at
        return held.at, np.minimum.accumulate((curve - least)[::-1])[::-1] + least  # what rises as it must


class _Table:
    """What is known of requests, a row for each.

    `seen` [rows, 2, 2, k + 1], newer steps weigh more: by kind of step (behind others; behind one that accepted all),
    how often each position was drafted, and how often accepted; in the last column, how often drafts were allowed, and
    how often there were any. `kind`: of the next step. `limit`: the most drafts now; `pause`: steps without any left;
    `next_pause`.
    """

    def __init__(self, k: int, rows: int) -> None:
        self.seen: Floats = np.zeros((rows, 2, 2, k + 1))
        self.kind, self.limit, self.pause, self.next_pause = (np.zeros(rows, np.int64) for _ in range(4))

    def clear(self, row: int) -> None:
        """A row for another request."""
        for one in vars(self).values():
            one[row] = 0
        self.next_pause[row] = FIRST_PAUSE

    def grow(self) -> None:
        """Twice as many rows."""
        for name, one in vars(self).items():
            setattr(self, name, np.concatenate([one, np.zeros_like(one)]))


class DraftLengths:
    """Chooses the draft length of every request between 0 and `k`."""

    def __init__(self, k: int) -> None:
        self._k, self._positions = k, np.arange(k)
        self._steps, self._proposals = Cost(k), Cost(k, 0.05, guarded=False)
        self._table, self._free = _Table(k, 8), list(range(8))
        self._rows: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()
        self._slots, self._asks = 1, False
        self.forget()

    def forget(self) -> None:
        """Let what requests had accepted so far count for none of the next ones."""
        self._pooled: Floats = np.zeros((2, 2, self._k + 1))
        self._usual = self._expected()

    def limit(self, sequence: Sequence) -> int:
        """The most drafts that a request gets in its next step."""
        return int(self._table.limit[self._row(sequence)])

    def proposed(self, longest: int, seconds: float) -> None:
        """A proposer on the host took so long for drafts of up to `longest` tokens."""
        self._asks = True
        self._proposals.add(longest, seconds)

    def stepped(self, slots: Iterable[Drafted], seconds: float) -> None:
        """A step of decoding requests took so long, without what a proposer on the host took; choose anew."""
        slots = list(slots)
        if not slots:
            return
        rows = np.array([self._row(one.sequence) for one in slots])
        drafted, accepted = (np.array([one[i] for one in slots]) for i in (1, 2))
        total, table = int(drafted.sum()), self._table
        self._steps.add(total, seconds, len(slots))
        before, limit = table.kind[rows], table.limit[rows]
        asked = limit > 0
        table.pause[rows] -= ~asked
        if asked.any():
            self._count(rows[asked], drafted[asked], accepted[asked])
        if total or len(slots) != self._slots or (table.kind[rows] != before).any():  # else it would choose the same
            self._slots = len(slots)
            limit = np.where(asked, self._best(rows, asked), 0)
            stopped, told = rows[asked & (limit == 0)], rows[asked & (drafted > 0)]
            table.pause[stopped] = table.next_pause[stopped]
            waits = table.next_pause[told] * np.where(limit[asked & (drafted > 0)] == 0, 2.0, 0.5)
            table.next_pause[told] = np.clip(waits, FIRST_PAUSE, LONGEST_PAUSE)
        table.limit[rows] = np.where(~asked & (table.pause[rows] <= 0), min(PROBE, self._k), limit)

    def _count(self, rows: Integers, drafted: Integers, accepted: Integers) -> None:
        """Count what requests that were allowed to draft did. A position behind a rejected draft tells nothing."""
        table, at = self._table, (rows, self._table.kind[rows])
        marks = np.ones((len(rows), 2, self._k + 1))
        marks[:, 0, :-1] = self._positions < np.minimum(accepted + 1, drafted)[:, None]
        marks[:, 1, :-1] = self._positions < accepted[:, None]
        marks[:, 1, -1] = drafted > 0
        table.seen[at] = table.seen[at] * RECENT + marks
        for kind in set(at[1].tolist()):
            mine = marks[at[1] == kind]
            self._pooled[kind] = self._pooled[kind] * POOLED ** len(mine) + mine.sum(0)
        self._usual = self._expected()
        table.kind[rows] = (drafted > 0) & (drafted == accepted)

    def _row(self, sequence: Sequence) -> int:
        row = self._rows.get(sequence)
        if row is None:
            if not self._free:
                have = len(self._table.limit)
                self._table.grow()
                self._free = list(range(have, 2 * have))
            row = self._rows[sequence] = self._free.pop()
            weakref.finalize(sequence, self._free.append, row).atexit = False
            self._table.clear(row)
            if self._steps(0.0, self._slots):
                rows = np.full(self._slots, row)
                self._table.limit[row] = self._best(rows, np.full(self._slots, True)).max()
            else:
                self._table.limit[row] = min(PROBE, self._k)
        return row

    def _expected(self) -> tuple[Floats, Floats]:
        """What is usual, by kind of step: a draft's acceptance behind the first [2], and by position [2, k]."""
        drafted, accepted = self._pooled[:, 0, :-1], self._pooled[:, 1, :-1]
        first, later = HOPES
        usual = (accepted[:, 1:].sum(1) + HOPED * later) / (drafted[:, 1:].sum(1) + HOPED)
        every = (accepted + ALIKE * usual[:, None]) / (drafted + ALIKE)
        every[:, 0] = (accepted[:, 0] + HOPED_FIRST * first) / (drafted[:, 0] + HOPED_FIRST)
        return usual, every

    def _chances(self, rows: Integers) -> tuple[Floats, Floats]:
        """Of these requests' next drafts: how likely there are any [n, 1], and each one accepted then [n, k]."""
        kind = self._table.kind[rows]
        seen = self._table.seen[rows, kind]
        usual, every = self._usual[0][kind], self._usual[1][kind]
        drafted, accepted = seen[:, 0, :-1], seen[:, 1, :-1]
        here = (accepted[:, 1:].sum(1) + TRUST * usual) / (drafted[:, 1:].sum(1) + TRUST)
        rates = (accepted + ALIKE / 2 * (every + here[:, None])) / (drafted + ALIKE)
        rates[:, 0] = (accepted[:, 0] + TRUST_FIRST * every[:, 0]) / (drafted[:, 0] + TRUST_FIRST)
        found = (seen[:, 1, -1:] + TRUST) / (seen[:, 0, -1:] + TRUST)
        return found, rates.cumprod(1)

    def _best(self, rows: Integers, asked: npt.NDArray[np.bool_]) -> Integers:
        """The numbers of drafts that make a step of these requests give the most tokens a second.

        0 for those that are not `asked`.
        """
        slots, (found, chance) = len(rows), self._chances(rows)
        gain = (found * asked[:, None] * chance).ravel()
        order = np.argsort(-gain, kind="stable") if slots > 1 else self._positions
        tokens, fed = np.empty(len(gain) + 1), np.zeros(len(gain) + 1)
        tokens[0], tokens[1:], fed[1:] = slots, gain[order], found[order // self._k, 0]
        tokens, fed = tokens.cumsum(), fed.cumsum()
        seconds = np.interp(fed, *self._steps.curve(slots))
        if self._asks:
            longest = np.concatenate([[0], np.maximum.accumulate(order % self._k + 1)])
            seconds += np.interp(longest, *self._proposals.curve(1))
        best = int((tokens / seconds).argmax())
        return np.bincount(order[:best] // self._k, minlength=slots)
