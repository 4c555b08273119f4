"""What the host knows of running requests, by slot, for operations on all of them at once.

A :class:`~specdec_hal.runner.sequence.Sequence` in a slot has its newest tokens and counts here, and takes them along
when it leaves. Taking over a step's tokens is a few array operations for all slots together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class SlotTable:
    """Arrays over `slots` slots (M) with contexts of at most `length` tokens; `width` (S): most tokens of a step."""

    def __init__(self, slots: int, length: int, width: int) -> None:
        stride = length + width
        self.tokens: Ints = np.zeros((slots, stride), np.int64)
        """The context of each slot's request: prompt and generated tokens."""
        self.from_draft: Bools = np.zeros((slots, stride), np.bool_)
        """Which of them are accepted drafts."""
        self.counts: Ints = np.zeros((4, slots), np.int64)
        """Those of Sequence.counts."""
        self.places: Ints = np.arange(slots)[:, None] * stride + np.arange(width)
        """Of a step's tokens [M, S] in both, flat, after an empty context."""
        self.length, self.end, self.room, self.in_flight, self.shares_at, self.owner = np.zeros((6, slots), np.int64)
        """Tokens of the context; its length at which the request ends; positions in its KV blocks; its launched but
        unread steps; positions that fill one more block; how many requests have left the slot."""
        self.reported: Ints = np.zeros(slots, np.int64)
        """How many of its generated tokens deltas have had."""
        self.used, self.prefilling, self.alone, self.stops = np.zeros((4, slots), np.bool_)
        """Whether a request has the slot; whether chunks of its context are left; whether its results are looked at
        alone, as it needs more of a step than tokens; whether it has stop sequences."""
