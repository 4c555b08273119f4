"""Forbidden token sequences of requests (vLLM's `bad_words`), in the rows of a step.

A sequence's last token is forbidden in rows that follow its other tokens, generated or drafted. Sequences of one token
are always forbidden, by :mod:`.slot_masks`. Longer ones need tokens and drafts on the host, so steps with such requests
do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from specdec_hal.errors import RequestError
from specdec_hal.models import Tokenizer
from specdec_hal.request import Request
from specdec_hal.runner import sequence as running
from specdec_hal.runner.row_masks import RowMasks
from specdec_hal.runner.scheduler import Schedule
from specdec_hal.runner.state import DecodeState
from specdec_hal.text import short


def bad_sequences(words: Iterable[str], encode: Callable[[str], list[int]]) -> Iterator[list[int]]:
    """The tokens of words at the start of a text and after a space, as in vLLM.

    The second only if it differs and has the same length.
    """
    for word in words:
        bare, spaced = (encode(space + word.lstrip()) for space in ("", " "))
        yield bare
        if len(spaced) == len(bare) and spaced[:1] != bare[:1]:
            yield spaced


def spelled(request: Request, tokenizer: Tokenizer | None, vocab_size: int) -> Request:
    """A request with `bad_words` converted to `bad_sequences`. RequestError if impossible."""
    params, name = request.params, f"request {short(request.request_id)}"
    if not params.bad_words:
        return request
    if tokenizer is None:
        raise RequestError(f"{name}: bad_words need a tokenizer; give the runner one, or use bad_sequences")
    found = list(bad_sequences(params.bad_words, partial(tokenizer.encode, add_special_tokens=False)))
    if [] in found:
        raise RequestError(f"{name}: bad_words: expected words of at least a token, got {short(params.bad_words)}")
    if (largest := max(map(max, found))) >= vocab_size:
        raise RequestError(f"{name}: bad_words: token {largest} is outside the vocabulary [0, {vocab_size})")
    changed = {"bad_words": [], "bad_sequences": [*params.bad_sequences, *found]}
    return replace(request, params=params.model_copy(update=changed))


def forbidden_next(text: Sequence[int], sequences: Iterable[Sequence[int]]) -> list[int]:
    """The tokens that would complete a sequence after these."""
    return [tokens[-1] for tokens in sequences if list(text[len(text) - len(tokens) + 1 :]) == list(tokens[:-1])]


def forbid(masks: RowMasks, state: DecodeState, schedule: Schedule) -> bool:
    """Write the masks of a step's rows; returns whether there are any. No step may be running.

    A chunk inside the generated tokens of a resumed request with masks may only redraw the known token, which a
    proposer continues.
    """
    lens, ids = state.read("seq_lens_this_time"), state.read("draft_tokens")
    found, first = False, 0
    for slot, work in sorted(schedule.work.items()):
        rows, sequence = 1 if work.chunk else int(lens[slot]), work.sequence
        sequences = _of(sequence)
        if sequence.wants.masked and not work.emits and work.end >= sequence.prompt_len:
            masks.allow_only(first, sequence.token_ids[work.end - sequence.prompt_len])
            found = True
        elif sequences and work.emits:
            longest = max(map(len, sequences))
            text = sequence.token_ids[-longest:] + ids[slot, 1:rows].tolist() * (not work.chunk)
            known = len(text) - rows + 1
            for at in range(rows):
                tokens = forbidden_next(text[: known + at], sequences)
                found |= bool(tokens)
                for token in tokens:
                    masks.row(first + at).view(np.uint32)[token // 32] &= ~np.uint32(1 << token % 32)
        first += rows
    return found


def _of(sequence: running.Sequence) -> list[list[int]]:
    return [tokens for tokens in sequence.request.params.bad_sequences if len(tokens) > 1]
