"""What output asks of a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from specdec_hal.request import SamplingParams

Span = tuple[str, bool]
"""A piece of text, and whether it came from an accepted draft."""

PROMPT_TAIL = 32
"""Prompt tokens that may affect the following text: a space, or the rest of a character."""


class Detokenizer(Protocol):
    """Turns token ids into text one by one, never yielding half a character."""

    def push(self, token_id: int) -> str:
        """The text that one more token completes."""

    def finish(self) -> str:
        """The rest."""


def push_all(detokenizer: Detokenizer, token_ids: Sequence[int]) -> list[str]:
    """The text of each token."""
    every: Callable[[Sequence[int]], list[str]] | None = getattr(detokenizer, "push_all", None)
    return list(map(detokenizer.push, token_ids)) if every is None else every(token_ids)


def detokenizer_for(
    make: Callable[..., Detokenizer], params: SamplingParams, prompt: Sequence[int]
) -> Callable[[], Detokenizer]:
    """Makes a request's detokenizer. `make`: ``Tokenizer.detokenizer``; `prompt`: at least the prompt's last
    :data:`PROMPT_TAIL` tokens.
    """
    return partial(
        make,
        [int(token) for token in prompt[-PROMPT_TAIL:]],
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
    )
