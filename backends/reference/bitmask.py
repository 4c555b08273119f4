"""Section 10 of the contract: masks of allowed tokens, on logits and on drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.floats import from_f32

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


def mask_of(bitmask: I32, bitmask_rows: I32, row: int) -> I32 | None:
    """The words of an output row's mask; None if it has none."""
    if not 0 <= row < len(bitmask_rows) or not 0 <= bitmask_rows[row] < len(bitmask):
        return None
    words: I32 = bitmask[bitmask_rows[row]]
    return words


def apply_token_bitmask(
    logits: NDArray[Any], bitmask: I32, bitmask_rows: I32, vocab_size: int, first_token: int
) -> None:
    """Make the logits of forbidden tokens -inf."""
    forbidden = from_f32(np.array(-np.inf, np.float32), logits.dtype)
    for r, row in enumerate(logits):
        words = mask_of(bitmask, bitmask_rows, r)
        if words is None:
            continue
        bits = np.unpackbits(words.astype("<i4", copy=False).view(np.uint8), bitorder="little")
        allowed = bits[:vocab_size][first_token : first_token + len(row)]
        np.copyto(row[: len(allowed)], forbidden, where=allowed == 0)
        row[len(allowed) :] = forbidden


def truncate_drafts(
    draft_tokens: I64,
    bitmask: I32,
    bitmask_rows: I32,
    cu_seqlens_q_output: I32,
    seq_lens_encoder: I32,
    seq_lens_this_time: I32,
    vocab_size: int,
) -> None:
    """Truncate each slot's drafts at the first that the mask of its row forbids."""
    size = min(vocab_size, 32 * bitmask.shape[1])
    for b, slt in enumerate(seq_lens_this_time):
        if seq_lens_encoder[b] > 0:
            continue
        for i, draft in enumerate(draft_tokens[b, 1 : max(int(slt), 1)]):
            words = mask_of(bitmask, bitmask_rows, int(cu_seqlens_q_output[b]) + i)
            if words is None:
                continue
            if not 0 <= draft < size or not words[draft // 32] >> (draft % 32) & 1:
                seq_lens_this_time[b] = i + 1
                break
