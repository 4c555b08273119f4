"""Section 11 of the contract: what trained drafters need: masked tokens, own vocabulary, confidence, candidates."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.floats import from_f32, to_f32
from specdec_hal.backends.reference.primitives import (
    MASS_ONE,
    dot_sum,
    draw,
    exp2_mass,
    mass_ratio,
    mass_threshold,
    philox_u64,
    softmax_t,
)
from specdec_hal.backends.reference.sampling import nucleus, only
from specdec_hal.ops.enums import Purpose

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

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


def select_draft_path(
    path_logits: F32,
    path_ids: I64,
    path_hidden: NDArray[Any],
    predecessor_codes: NDArray[Any],
    successor_codes: NDArray[Any],
    anchor_tokens: I64,
    cu_seqlens_q_output: I32,
    row_temperature: F32,
    row_top_p: F32,
    row_top_k: I32,
    row_min_p: F32,
    row_seed: I64,
    position: I64,
    path_tokens: I64,
    probs: F32 | None,
    purpose: Purpose,
) -> None:
    """Draw each slot's drafts one after the other, by candidates whose scores depend on the previous token."""
    vocabulary = len(predecessor_codes)
    path_tokens[:] = -1
    if probs is not None:
        probs[:] = 0
    offsets = np.maximum.accumulate(cu_seqlens_q_output.clip(0, len(path_tokens))).tolist()
    for b, (first, stop) in enumerate(pairwise(offsets)):
        before = int(anchor_tokens[b])
        for r in range(first, stop):
            ids = path_ids[r]
            known = (ids >= 0) & (ids < vocabulary)
            known &= [i not in ids[:c] for c, i in enumerate(ids)]
            ids = ids[known]
            code = to_f32(predecessor_codes[before]) if 0 <= before < vocabulary else np.zeros(1, np.float32)
            with np.errstate(all="ignore"):
                products = (code * to_f32(path_hidden[r])) * to_f32(successor_codes[ids])
                scores = path_logits[r, known] + dot_sum(products)
            kept = _kept(scores, row_temperature[r], row_top_p[r], row_top_k[r], row_min_p[r])
            if position[r] < 0 or kept is None:
                break
            order = np.argsort(ids)
            drawn = draw(philox_u64(row_seed[r], position[r], purpose), kept[order])
            path_tokens[r] = before = int(ids[order][drawn])
            if probs is not None:
                probs[r, ids] = mass_ratio(kept, kept.sum(dtype=np.uint64))


def _kept(scores: F32, temperature: float, top_p: float, top_k: int, min_p: float) -> U64 | None:
    """Masses of the scores, 0 for those that are not kept; None if nothing can be drawn."""
    best = scores.max(initial=-np.inf)
    if np.isnan(best) or best == -np.inf:
        return None
    one = np.uint64(MASS_ONE)
    if not temperature > 0:
        masses = np.zeros(len(scores), np.uint64)
        masses[np.argmax(scores)] = one
        return masses
    with np.errstate(over="ignore", divide="ignore"):
        masses = exp2_mass(softmax_t(scores, best, np.float32(1) / np.float32(temperature)))
    order = np.argsort(-scores, kind="stable")[: top_k if top_k > 0 else None]
    need = mass_threshold(top_p, masses[order].sum(dtype=np.uint64))
    masses = only(nucleus(order, masses, need), masses)
    masses[masses < mass_threshold(min_p, one)] = 0
    return masses
