"""What the host knows of running requests, by slot, for operations on all of them at once.

A :class:`~specdec_hal.runner.sequence.Sequence` in a slot has its newest tokens and counts here, and takes them along
when it leaves. A step's usual result, tokens that end no request, is a few array operations for all slots together.
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
        """Those of OutputStream.counts."""
        self.places: Ints = np.arange(slots)[:, None] * stride + np.arange(width)
        """Of a step's tokens [M, S] in both, flat, after an empty context."""
        self.length, self.end, self.room, self.in_flight, self.shares_at, self.owner = np.zeros((6, slots), np.int64)
        """Tokens of the context; its length at which the request ends; positions in its KV blocks; its launched but
        unread steps; positions that fill one more block; how many requests have left the slot."""
        self.used, self.prefilling, self.plain, self.heard = np.zeros((4, slots), np.bool_)
        """Whether a request has the slot; whether chunks of its context are left; whether the host needs nothing of a
        step but its tokens, and their text; whether it has a callback."""
        self.speaks, self.stops = np.zeros((2, slots), np.bool_)
        """Whether its text is made without special tokens; whether it has stop strings."""
