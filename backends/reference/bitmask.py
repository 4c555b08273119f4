"""Section 10 of the contract: masks of allowed tokens, on logits and on drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.floats import from_f32

BOOL = NDArray[np.bool_]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


def mask_of(bitmask: I32, row: int, vocab_size: int) -> BOOL | None:
    """Whether a mask allows tokens 0, 1, ..., as far as it speaks of them; None for a row that names none."""
    if not 0 <= row < len(bitmask):
        return None
    words = bitmask[row].astype("<i4", copy=False)
    return np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_)[:vocab_size]


def apply_token_bitmask(
    logits: NDArray[Any], bitmask: I32, bitmask_rows: I32, vocab_size: int, first_token: int
) -> None:
    """Make the logits of forbidden tokens -inf."""
    forbidden = from_f32(np.array(-np.inf, np.float32), logits.dtype)
    for logits_row, mask_row in zip(logits, bitmask_rows, strict=True):
        allowed = mask_of(bitmask, mask_row, vocab_size)
        if allowed is None:
            continue
        mine = allowed[first_token : first_token + len(logits_row)]
        logits_row[: len(mine)][~mine] = forbidden
        logits_row[len(mine) :] = forbidden


def truncate_drafts(
    draft_tokens: I64,
    bitmask: I32,
    bitmask_rows: I32,
    cu_seqlens_q_output: I32,
    seq_lens_encoder: I32,
    seq_lens_this_time: I32,
    vocab_size: int,
) -> None:
    """Cut each slot's drafts at the first that the mask of its row forbids."""
    for b, slt in enumerate(seq_lens_this_time):
        if seq_lens_encoder[b] > 0:
            continue
        for i, draft in enumerate(draft_tokens[b, 1 : max(int(slt), 1)]):
            row = int(cu_seqlens_q_output[b]) + i
            if not 0 <= row < len(bitmask_rows):
                continue
            allowed = mask_of(bitmask, bitmask_rows[row], vocab_size)
            if allowed is not None and not (0 <= draft < len(allowed) and allowed[draft]):
                seq_lens_this_time[b] = i + 1
                break
