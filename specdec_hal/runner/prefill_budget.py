"""How many prompt tokens a step takes while requests decode, by the measured time of steps.

A request that decodes waits for the prompts in its step. Steps are padded to few sizes, so time is measured for each of
these. A size is tried after the one below it, if that is fast enough for times that grow in proportion to prompts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise

WEIGHT, MOST_CHANGE = 0.1, 1.5
"""Weight of a step in the mean of its size, and the most that its time counts for, relative to that mean."""
FIRST_STEPS = 2
"""Of so many first steps of a size the fastest counts: others compiled, or were disturbed."""
COMPILING = 0.5
"""A step this much shorter than the mean shows that those before compiled: they are dropped."""
RETRY = 512
"""Steps with prompts after which a size that took too long is tried again."""
FILLED = 0.75
"""Least part of a size's prompt tokens in a step that is counted: the last chunk of a prompt says little."""
SMALLEST = 16
"""A size with room for fewer prompt tokens is passed over."""


class _Mean:
    """Mean seconds of steps of a size, their number, and how many steps with prompts have avoided it."""

    def __init__(self) -> None:
        self.seconds, self.count, self.avoided = 0.0, 0, 0

    def add(self, seconds: float) -> None:
        mean = self.seconds
        if self.count < FIRST_STEPS:
            self.seconds = min(seconds, mean or seconds)
        elif seconds < COMPILING * mean:
            self.seconds = seconds
        else:
            self.seconds += WEIGHT * (min(seconds, MOST_CHANGE * mean) - mean)
        self.count += 1


class PrefillBudget:
    """Chooses prompt tokens so that a step takes at most `ratio` of the time of one without.

    `padded(slots)`: numbers of tokens, ascending, to which steps are padded in which so many slots decode. `width` (S):
    tokens of a decoding slot.
    """

    def __init__(self, ratio: float, padded: Callable[[int], list[int]], width: int) -> None:
        self.ratio, self._padded, self._width = ratio, padded, width
        self.means: dict[tuple[int, int], _Mean] = {}
        """By decoding slots (rounded up to a power of two) and padded size; 0: without prompts."""

    def limit(self, slots: int) -> int | None:
        """The most prompt tokens while so many slots decode; None before there is a measurement."""
        group, tokens = _group(slots), slots * self._width
        alone = self._seconds(group, 0)
        if alone is None:
            return None
        sizes, most = self._sizes(slots), self.ratio * alone
        fits = sizes[0] - tokens
        for below, size in pairwise([tokens, *sizes]):
            seconds = self._seconds(group, size)
            if seconds is None:
                slope = ((self._seconds(group, below) or alone) - alone) / max(below - tokens, 1)
                return size - tokens if alone + slope * (size - tokens) <= most else fits
            if seconds > most:
                break
            fits = size - tokens
        return fits

    def stepped(self, slots: int, prompts: int, seconds: float) -> None:
        """Count the time of a step in which so many slots decoded, with so many prompt tokens."""
        group, size, tokens = _group(slots), 0, slots * self._width
        if prompts:
            sizes = self._sizes(slots)
            at = min(bisect_left(sizes, tokens + prompts), len(sizes) - 1)
            size = sizes[at]
            if prompts < FILLED * (size - tokens):
                return
            above = None if at + 1 == len(sizes) else self.means.get((group, sizes[at + 1]))
            if above is not None:
                above.avoided += 1
                if above.avoided == RETRY:
                    del self.means[group, sizes[at + 1]]
        mean = self.means.setdefault((group, size), _Mean())
        mean.avoided = 0
        mean.add(seconds)

    def _seconds(self, group: int, size: int) -> float | None:
        """As far as they are known well enough."""
        mean = self.means.get((group, size))
        return None if mean is None or (size and mean.count < FIRST_STEPS) else mean.seconds

    def _sizes(self, slots: int) -> list[int]:
        sizes = self._padded(slots)
        return [size for size in sizes if size >= slots * self._width + SMALLEST] or sizes[-1:]


def _group(slots: int) -> int:
    return 1 << (slots - 1).bit_length()
