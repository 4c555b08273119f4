"""The kernels, in NumPy: whole batches at a time, where the reference backend goes slot by slot."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import AcceptPolicy

_INT32_MAX = 2**31 - 1


def _offsets(counts: NDArray[Any], out: NDArray[np.int32]) -> NDArray[np.int64]:
    """Exclusive prefix sums, exact; `out` gets them saturated."""
    sums = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    out[:] = np.minimum(sums, _INT32_MAX)
    return sums


def _spread(counts: NDArray[Any], capacity: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For the first `capacity` of sum(counts) packed entries: the slot of each, and its place within the slot."""
    ends = np.cumsum(counts, dtype=np.int64)
    entry = np.arange(min(int(ends[-1]) if len(ends) else 0, capacity))
    slot = np.searchsorted(ends, entry, side="right")
    return slot, entry - (ends - counts)[slot]


def prepare_inputs(
    input_ids: NDArray[np.int64],
    draft_tokens: NDArray[np.int64],
    seq_lens_this_time: NDArray[np.int32],
    seq_lens_encoder: NDArray[np.int32],
    seq_lens_decoder: NDArray[np.int32],
    ids_remove_padding: NDArray[np.int64],
    batch_id_per_token: NDArray[np.int32],
    cu_seqlens_q: NDArray[np.int32],
    cu_seqlens_k: NDArray[np.int32],
    cu_seqlens_q_output: NDArray[np.int32],
    batch_id_per_token_output: NDArray[np.int32],
    num_tokens: NDArray[np.int32],
) -> None:
    """Section 1 of the contract."""
    used = len(seq_lens_this_time)
    prefill = seq_lens_encoder[:used] > 0
    width = np.where(prefill, input_ids.shape[1], draft_tokens.shape[1])
    lengths = np.clip(seq_lens_this_time.astype(np.int64), 0, width)
    keys = np.where(lengths > 0, lengths + np.maximum(seq_lens_decoder[:used], 0), 0)
    rows = np.where(prefill, np.minimum(lengths, 1), lengths)

    tokens = _offsets(lengths, cu_seqlens_q)[-1]
    _offsets(keys, cu_seqlens_k)
    outputs = _offsets(rows, cu_seqlens_q_output)[-1]
    num_tokens[:] = np.minimum((tokens, outputs), _INT32_MAX)

    ids_remove_padding[:], batch_id_per_token[:], batch_id_per_token_output[:] = 0, -1, -1
    slot, position = _spread(lengths, len(ids_remove_padding))
    from_prompt = prefill[slot]
    packed = np.zeros(len(slot), np.int64)
    packed[from_prompt] = input_ids[slot[from_prompt], position[from_prompt]]
    packed[~from_prompt] = draft_tokens[slot[~from_prompt], position[~from_prompt]]
    ids_remove_padding[: len(slot)], batch_id_per_token[: len(slot)] = packed, slot
    slot, _ = _spread(rows, len(batch_id_per_token_output))
    batch_id_per_token_output[: len(slot)] = slot


def verify_by_tokens(
    draft_tokens: NDArray[np.int64],
    target_tokens: NDArray[np.int64],
    prompt_lens: NDArray[np.int64],
    step_idx: NDArray[np.int64],
    max_dec_len: NDArray[np.int64],
    stop_flags: NDArray[np.bool_],
    is_block_step: NDArray[np.bool_],
    seq_lens_encoder: NDArray[np.int32],
    seq_lens_decoder: NDArray[np.int32],
    seq_lens_this_time: NDArray[np.int32],
    cu_seqlens_q_output: NDArray[np.int32],
    reasoning_status: NDArray[np.int32],
    end_tokens: NDArray[np.int64],
    accept_tokens: NDArray[np.int64],
    accept_num: NDArray[np.int32],
    *,
    ignore_end: NDArray[np.bool_] | None = None,
    accept_policy: AcceptPolicy,
    end_at_limit: bool,
    **unused: Any,
) -> None:
    """Section 4, strategies GREEDY and TARGET_MATCH.

    Every slot's emitted tokens are a beginning of `drafts ++ [next]`: find how many drafts pass, put the target's token
    after them, then cut at the first end token and at the length limit.
    """
    accept_tokens[:], accept_num[:] = -1, 0
    used, width = len(seq_lens_this_time), draft_tokens.shape[1]
    if used == 0 or len(target_tokens) == 0:
        return
    enc, dec = seq_lens_encoder[:used].astype(np.int64), seq_lens_decoder[:used].astype(np.int64)
    slt = np.minimum(seq_lens_this_time, width)
    unfinished = (enc > 0) & (dec + enc < prompt_lens[:used])
    emits = (slt > 0) & ~stop_flags[:used] & ~is_block_step[:used] & ~unfinished

    position = np.arange(width)
    first_row = cu_seqlens_q_output[:used].astype(np.int64)
    target = target_tokens[np.clip(first_row[:, None] + position, 0, len(target_tokens) - 1)]
    drafts = np.concatenate([draft_tokens[:used, 1:], np.full((used, 1), -1)], axis=1)
    tested = (position < (slt - 1)[:, None]) & ((enc <= 0) & (reasoning_status[:used] != 1))[:, None]
    accept_all = accept_policy is AcceptPolicy.ACCEPT_ALL
    passes = tested & (accept_all | (target == drafts)) & (accept_policy is not AcceptPolicy.REJECT_ALL)
    accepted = np.cumprod(passes, axis=1).sum(axis=1)
    tokens = np.where(position < accepted[:, None], drafts, target)
    length = accepted + 1

    ends = np.ones(used, np.bool_) if ignore_end is None else ~ignore_end[:used]
    is_end = np.isin(tokens, end_tokens) & ends[:, None]
    if not accept_all:
        length = np.where(is_end.any(axis=1), np.minimum(length, is_end.argmax(axis=1) + 1), length)
    # Python integers: the difference of two int64 may not fit in one. A slot beyond its limit still emits one token.
    room = [max(int(most) - int(done), 1) for most, done in zip(max_dec_len[:used], step_idx[:used], strict=True)]
    limit = np.array([min(r, width + 1) for r in room], np.int64)
    at_limit = length >= limit
    length = np.where(emits, np.minimum(length, limit), 0)
    if end_at_limit and len(end_tokens):
        slots = np.flatnonzero(at_limit & emits & ends)
        last = length[slots] - 1
        replaced = ~is_end[slots, last]
        tokens[slots[replaced], last[replaced]] = end_tokens[0]
    accept_tokens[:used] = np.where(position < length[:, None], tokens, -1)
    accept_num[:used] = length


def gather_accepted(
    logits: NDArray[Any],
    accept_tokens: NDArray[np.int64],
    accept_num: NDArray[np.int32],
    cu_seqlens_q_output: NDArray[np.int32],
    seq_lens_encoder: NDArray[np.int32],
    seq_lens_this_time: NDArray[np.int32],
    token_ids: NDArray[np.int64],
    rows: NDArray[np.int32],
    cu_batch_token_offset: NDArray[np.int32],
) -> None:
    """Section 7."""
    used = len(seq_lens_this_time)
    counts = np.where(seq_lens_this_time > 0, np.clip(accept_num[:used], 0, accept_tokens.shape[1]), 0)
    _offsets(counts, cu_batch_token_offset)
    slot, position = _spread(counts, len(token_ids))
    steps = np.where(seq_lens_encoder[slot] > 0, 0, position)
    token_ids[:], rows[:] = -1, -1
    token_ids[: len(slot)] = accept_tokens[slot, position]
    rows[: len(slot)] = np.clip(cu_seqlens_q_output[slot].astype(np.int64) + steps, 0, len(logits) - 1)
