"""Batch sizes that give a token the same bits, found by measurement.

Libraries choose a matrix product's kernel, and so its order of sums, by the number of rows. A token then gets other
last bits in a step of one row than in a step of six, and sometimes another argmax: speculative decoding would differ
from plain decoding. Which sizes agree depends on processor, version and thread count, but not on data. So a few
products of each shape are measured once, and steps are padded to agreeing sizes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

# Sizes of decode steps, which rank classes of agreeing sizes.
_COMMON = 16


class RowSizes:
    """A set of allowed batch sizes."""

    def __init__(self, sizes: Iterable[int]) -> None:
        self.sizes = tuple(sorted(set(sizes)))
        self._allowed = frozenset(self.sizes)

    def __contains__(self, rows: int) -> bool:
        return rows in self._allowed

    @property
    def largest(self) -> int:
        """The largest allowed size; 0 if there is none."""
        return self.sizes[-1] if self.sizes else 0

    def fit(self, rows: int) -> int:
        """The smallest allowed size >= `rows`; requires `rows` <= `largest`."""
        return self.sizes[bisect_left(self.sizes, rows)]


def agreeing(signature: Callable[[int], bytes | None], candidates: Iterable[int]) -> RowSizes:
    """The largest class of sizes with one signature.

    `signature(n)` is the result's bytes for one row, computed in a batch of n equal rows; None if these n results
    differ among themselves. Classes are compared by how many common decode sizes they hold, then by the smallest one.
    Empty if no size has a signature.
    """
    classes: dict[bytes, list[int]] = {}
    for n in candidates:
        key = signature(n)
        if key is not None:
            classes.setdefault(key, []).append(n)

    if not classes:
        return RowSizes(())
    return RowSizes(max(classes.values(), key=lambda sizes: (sum(n <= _COMMON for n in sizes), -min(sizes))))
