"""Seconds of a step by its size, measured while decoding: the cost of one more draft. And tokens per second.

With weights that decay by COST_DECAY a step, a group of steps with as many requests has a mean size and mean seconds.
The slope of a group is by least squares over all groups, with a prior:

    slope = (sum of sizes' offsets * seconds' offsets + PRIOR_SLOPE * share * s) / (sum of sizes' offsets^2 + s)

where `share` is one request's share of a step of the group, and `s` the strength of the prior.
"""

from __future__ import annotations

from typing import NamedTuple

PRIOR_SLOPE, PRIOR_SLOPE_STRENGTH = 0.05, 2.0
"""Prior cost of one more token relative to a request's share of a step, and its weight as a sum of squared distances
from the mean size.
"""
LEAST_SLOPE = PRIOR_SLOPE / 4
"""Least cost, relative to that share: above 0, so that fewer drafts are tried too."""
COST_DECAY = 0.97
"""Decay of a measured step per later step with as many requests."""
RATE_DECAY = 0.98
"""Decay of a step in a rate per later step."""
SLOPE_DEADBAND = 0.5
"""Steps within this distance of the mean size carry no information on the slope; they do not decay it."""
OUTLIER_LIMIT = 1.5
"""Cap on a step's time relative to the expected time, since disturbances only lengthen steps."""
COMPILING = 1 / 3
"""A step faster than the first few by this factor shows that these compiled; they are dropped."""
FIRST_STEPS = 5
"""Number of these first steps."""


class _Group:
    """Decayed sums of measurements with one number of requests: weight, sizes, seconds."""

    def __init__(self) -> None:
        self.weight = self.size = self.seconds = 0.0


class Rate:
    """Tokens per second of recent steps; 0 before the first. Times of outliers are capped as those of :class:`Cost`."""

    def __init__(self) -> None:
        self._weight = self._tokens = self._seconds = 0.0

    def __float__(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count a step."""
        if self._weight:
            expected = self._seconds / self._weight
            if self._weight > FIRST_STEPS:
                seconds = min(seconds, OUTLIER_LIMIT * expected)
            elif seconds < expected * COMPILING:
                self.fade(0.0)
        self.fade(RATE_DECAY)
        self._weight, self._tokens, self._seconds = self._weight + 1, self._tokens + tokens, self._seconds + seconds

    def fade(self, share: float) -> None:
        """Let the steps so far count this much of what they do."""
        self._weight, self._tokens, self._seconds = self._weight * share, self._tokens * share, self._seconds * share


class Line(NamedTuple):
    """Seconds of a step by its size."""

    start: float
    slope: float

    def __call__(self, size: float) -> float:
        """Seconds of that size."""
        return self.start + self.slope * size


class Cost:
    """Seconds by size: along a line for each group of measurements.

    Steps are grouped by batch size, which costs more than the number of tokens. Recent measurements count most, so the
    lines follow the curve near the sizes in use. `spread`: weight of :data:`PRIOR_SLOPE`. `of_steps`: size 0 takes time
    too, and outliers are capped.
    """

    def __init__(self, spread: float = PRIOR_SLOPE_STRENGTH, *, of_steps: bool = True) -> None:
        self._prior, self._of_steps = spread, of_steps
        self._groups: dict[int, _Group] = {}
        self._spread = self._together = 0.0

    def __bool__(self) -> bool:
        """Whether anything was measured."""
        return bool(self._groups)

    def add(self, size: int, seconds: float, group: int = 1) -> None:
        """Count a measurement."""
        held = self._groups.get(group)
        if held is None:
            held = self._groups[group] = _Group()
        if self._of_steps and held.weight:
            expected = self(size, group)
            if held.weight > FIRST_STEPS:
                seconds = min(seconds, OUTLIER_LIMIT * expected)
            elif seconds < expected * COMPILING:
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
        """The expected seconds for this many requests, from the nearest measured group.

        0 before the first measurement.
        """
        if not self._groups:
            return Line(0.0, 0.0)
        nearest = group if group in self._groups else min(self._groups, key=lambda number: abs(number - group))
        known = self._groups[nearest]
        mean, seconds = known.size / known.weight, known.seconds / known.weight
        own = nearest if self._of_steps else 0  # a request's own token costs as much as a draft, at least
        share = seconds / nearest
        slope = (self._together + PRIOR_SLOPE * share * self._prior) / (self._spread + self._prior)
        slope = min(max(slope, LEAST_SLOPE * share), seconds / (mean + own or 1.0))
        return Line(seconds - slope * mean, slope)
