"""Masks of allowed tokens for the rows of a :class:`~specdec_hal.ops.inputs.rows.ModelScene`."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from specdec_hal.ops.inputs.rows import ModelScene
from specdec_hal.ops.inputs.scene import Array, OneOf, pick


class MaskScene(ModelScene):
    """Most rows have a mask, which mostly allows the row's draft."""

    @cached_property
    def bitmask_rows(self) -> Array:
        """[R_cap]: an own mask, a shared one, or none."""
        rng, u = self.rng("bitmask_rows"), self.size["U"]
        rows = np.arange(self.size["R_cap"])
        others = rng.integers(0, max(u, 1), len(rows))
        rows = np.where((rng.random(len(rows)) < 0.7) & (rows < u), rows, others)
        rows[(rng.random(len(rows)) < 0.25) | (rows >= u)] = -1
        return rows.astype(np.int32)

    @cached_property
    def bitmask(self) -> Array:
        """[U, Y]: everything, nothing, few tokens, some, or most."""
        rng, shape = self.rng("bitmask"), (self.size["U"], 32 * self.size["Y"])
        share = rng.choice([0, 0.02, 0.5, 0.5, 0.9, 0.9, 1], (shape[0], 1))
        bits = rng.random(shape) < share
        for r, (b, i) in enumerate(self.row_slots[: self.size["R_cap"]]):
            mask, draft = int(self.bitmask_rows[r]), self.slots[b].drafts[i : i + 1]
            if draft and 0 <= mask < shape[0] and 0 <= draft[0] < shape[1] and rng.random() < 0.8:
                bits[mask, draft[0]] = True
        words: Array = np.packbits(bits, axis=1, bitorder="little").view("<i4")
        return words.astype(np.int32)

    @cached_property
    def vocab_size(self) -> int:
        """All bits of the words, the logits' size, or less."""
        v = self.size["V"]
        return pick(self.rng("vocab_size"), 2**24 - 1, v, v, v - 1, between=(0, v))

    first_token = OneOf(0, 0, 0, 0, 32, 31, 1, 2**24 - 1)  # none, a word, or some bits before column 0
