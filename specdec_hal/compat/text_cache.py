"""Identify requests by their texts, for engines that pass rows without names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TAIL = 16
"""Tokens at the end of a text that identify it."""
PATIENCE = 64
"""Calls that a request may miss, while preempted, before it counts as ended."""


@dataclass(eq=False)
class Known:
    """A request: length and end of its text, and its last number of drafts."""

    length: int
    tail: NDArray[Any]
    seen: int
    drafted: int | None = None

    def continues_in(self, text: NDArray[Any]) -> bool:
        """Whether `text` continues this request, by its end."""
        start = self.length - len(self.tail)
        return len(text) >= self.length and np.array_equal(text[start : self.length], self.tail)


class KnownTexts:
    """Finds the request of each row after rows moved.

    Requests with the same text are interchangeable. `ended(request)` is called once one was missing for PATIENCE calls,
    or if more than `most` are missing.
    """

    def __init__(self, most: int, ended: Callable[[Known], object]) -> None:
        self._most, self._ended = most, ended
        self._calls = 0
        self._at: dict[int, Known] = {}
        self._missing: list[Known] = []

    def find(self, rows: Mapping[int, NDArray[Any]]) -> dict[int, Known]:
        """The request of each row, with its length of the previous call; see :meth:`keep`."""
        self._calls += 1
        waiting = [*self._missing, *(one for row, one in self._at.items() if row not in rows)]
        found = {}
        for row, text in rows.items():
            one = self._at.get(row)
            if one is not None and one.continues_in(text):
                found[row] = one
            elif one is not None:
                waiting.append(one)
        for row, text in rows.items():
            if row not in found:
                one = next((other for other in waiting if other.continues_in(text)), None)
                if one is None:
                    one = Known(0, text[:0], self._calls)
                else:
                    waiting.remove(one)
                found[row] = one
        waiting.sort(key=lambda one: one.seen)
        kept = [one for one in waiting[-self._most :] if one.seen >= self._calls - PATIENCE]
        self._at, self._missing = found, kept
        for one in waiting:
            if one not in kept:
                self._ended(one)
        return found

    def keep(self, rows: Mapping[int, NDArray[Any]], drafted: Mapping[int, int]) -> None:
        """Store the requests' current texts and numbers of drafts."""
        for row, text in rows.items():
            one = self._at[row]
            one.length, one.tail, one.seen = len(text), text[-TAIL:].copy(), self._calls
            one.drafted = drafted[row]
