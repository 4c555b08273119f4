"""The default drafter of adapters."""

from __future__ import annotations

from typing import Any

from specdec_hal.loop.drafter import Drafter


def default_drafter(num_speculative_tokens: int, **options: Any) -> Drafter:
    """N-gram look-up of 8 tokens to 1, with few drafts after a short match, continuing cycles; `options` override."""
    given = {"max_ngram_size": 8, "min_ngram_size": 1, "match_factor": 4, **options}
    return Drafter(num_speculative_tokens=num_speculative_tokens, **given)
