"""The drafter of an adapter that was given none."""

from __future__ import annotations

from typing import Any

from specdec_hal.drafter import Drafter


def default_drafter(num_speculative_tokens: int, **options: Any) -> Drafter:
    """N-gram look-up of 4 to 2 tokens, round and round in texts that repeat themselves; `options` override."""
    given = {"max_ngram_size": 4, "min_ngram_size": 2, "continue_cycles": True, **options}
    return Drafter(num_speculative_tokens=num_speculative_tokens, **given)
