"""A language model and a draft model of few tokens, whose logits depend on each token of the text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

HIDDEN = 4
"""A hidden row is a hash of the text, its last two tokens, and the position of the last one."""
_HASHES = 65521


def advance(hidden: Array, token: int) -> Array:
    """The hidden row after one more token."""
    h, _, last, position = (int(value) for value in hidden)
    return np.array([(h * 31 + token * 17 + 7) % _HASHES, last, token, position + 1], np.float32)


START = np.array([1, 0, 0, -1], np.float32)
"""Before the first token."""


class ToyModel:
    """Tokens 1 to `vocabulary` - 1; most often what follows is a matter of the last two tokens, so that texts repeat.

    Logits are dyadic and distinct within a row: no rounding changes an order.
    """

    def __init__(self, rng: np.random.Generator, vocabulary: int = 16) -> None:
        v = self.vocabulary = vocabulary
        self._usual, self._rare, self._errors = (
            rng.permuted(np.tile(np.arange(v), (rows, 1)), axis=1) / 4 for rows in (v * v, 61, 61)
        )
        for table in (self._usual, self._rare, self._errors):
            table[:, 0] = -4  # token 0 is what uninitialised memory looks like
        self._noise = rng.integers(0, 8, (101, v)) / 4 + rng.permuted(np.tile(np.arange(v), (101, 1)), axis=1) / 256

    def logits(self, hidden: Array) -> Array:
        """Float32 [rows, vocabulary] for hidden rows."""
        h, prev, last, _ = hidden.astype(np.int64).T
        usual = self._usual[(prev * self.vocabulary + last) % len(self._usual)]
        return np.where((h % 7 == 0)[:, None], self._rare[h % 61], usual).astype(np.float32)

    def draft_logits(self, hidden: Array) -> Array:
        """Those of the draft model, which errs now and then."""
        h = hidden[:, 0].astype(np.int64)
        return np.where((h % 5 == 0)[:, None], self._errors[h % 61], self.logits(hidden)).astype(np.float32)

    def drawn(self, logits: Array, seeds: Array, positions: Array) -> Array:
        """A token for each row of scaled logits, by noise that is a matter of seed and position alone."""
        noise = self._noise[(np.asarray(seeds) * 37 + np.asarray(positions, np.int64)) % len(self._noise)]
        tokens: Array = (np.maximum(logits, -1e9) + noise).argmax(1)
        return tokens


class Cache:
    """The target's KV cache: the hidden row at each position of each slot, garbage where nothing was written."""

    def __init__(self, slots: int, length: int) -> None:
        self.rows = np.full((slots, length, HIDDEN), 9973, np.float32)

    def feed(self, slot: int, position: int, tokens: list[int]) -> Array:
        """Write tokens from a position on; gives their hidden rows."""
        hidden = START if position == 0 else self.rows[slot, position - 1]
        for i, token in enumerate(tokens):
            hidden = self.rows[slot, position + i] = advance(hidden, int(token))
        return self.rows[slot, position : position + len(tokens)]
