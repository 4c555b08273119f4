"""Section 11 of the contract: what trained drafters need: masked tokens, their own vocabulary, their confidence."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.floats import from_f32

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_INT32_MAX = 2**31 - 1


def prepare_block_inputs(
    ids_remove_padding: I64,
    cu_seqlens_q: I32,
    seq_lens_decoder: I32,
    block_token_ids: I64,
    block_batch_ids: I32,
    block_source_rows: I32,
    block_cu_seqlens_q: I32,
    block_seq_lens_decoder: I32,
    mask_token_id: int,
    num_masks: int,
    anchor_only: bool,
) -> None:
    """Pack the rows of a drafter that makes its drafts in one pass."""
    tokens, capacity, end = len(ids_remove_padding), len(block_token_ids), 0
    block_token_ids[:], block_batch_ids[:], block_source_rows[:] = 0, -1, -1
    block_cu_seqlens_q[0] = 0
    for b in range(len(block_seq_lens_decoder)):
        first, after = int(cu_seqlens_q[b]), int(cu_seqlens_q[b + 1])
        n = min(max(after - first, 0), tokens)
        sources = [after - 1] if anchor_only else list(range(first, first + n))
        sources = (sources + [-1] * num_masks) if n > 0 else []
        for r, source in enumerate(sources[: max(capacity - end, 0)], end):
            real = 0 <= source < tokens
            block_token_ids[r] = ids_remove_padding[source] if real else mask_token_id
            block_source_rows[r] = source if real else -1
            block_batch_ids[r] = b
        end += len(sources)
        block_cu_seqlens_q[b + 1] = min(end, _INT32_MAX)
        before = max(int(seq_lens_decoder[b]), 0)
        block_seq_lens_decoder[b] = min(before + n, _INT32_MAX) if anchor_only else before


def map_draft_logits(logits: NDArray[Any], own_logits: NDArray[Any], target_to_draft: I32) -> None:
    """Give logits of a draft model's own vocabulary the target's ids."""
    known = (target_to_draft >= 0) & (target_to_draft < own_logits.shape[1])
    logits[:] = from_f32(np.array(-np.inf, np.float32), logits.dtype)
    logits[:, known] = own_logits[:, target_to_draft[known]]


def truncate_by_confidence(
    draft_confidence: F32, min_confidence: F32, seq_lens_encoder: I32, seq_lens_this_time: I32
) -> None:
    """Cut each slot's drafts before the first that its drafter doubts."""
    for b, slt in enumerate(seq_lens_this_time):
        if seq_lens_encoder[b] > 0:
            continue
        p = np.float32(1)
        for i, confidence in enumerate(draft_confidence[b, : max(int(slt) - 1, 0)]):
            with np.errstate(all="ignore"):
                p = p * confidence
            if p < min_confidence[b]:
                seq_lens_this_time[b] = i + 1
                break
