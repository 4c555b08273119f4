"""Section 7 of the contract: accepted tokens, packed, and their log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.floats import to_f32
from specdec_hal.backends.reference.primitives import MASS_ONE, chunk_masses, ln_ratio
from specdec_hal.backends.reference.sampling import LOWEST, below, first_of_order

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

INT32_MAX = np.iinfo(np.int32).max


def gather_accepted(
    logits: NDArray[Any],
    accept_tokens: I64,
    accept_num: I32,
    cu_seqlens_q_output: I32,
    seq_lens_encoder: I32,
    seq_lens_this_time: I32,
    token_ids: I64,
    rows: I32,
    cu_batch_token_offset: I32,
) -> None:
    """Pack the accepted tokens and say which logit row predicts each."""
    token_ids[:] = -1
    rows[:] = -1
    a_cap, last_row = len(token_ids), len(logits) - 1
    a = 0
    cu_batch_token_offset[0] = 0
    for b in range(len(seq_lens_this_time)):
        count = min(max(int(accept_num[b]), 0), accept_tokens.shape[1]) if seq_lens_this_time[b] > 0 else 0
        fits = max(min(count, a_cap - a), 0)
        first = int(cu_seqlens_q_output[b])
        steps = np.zeros(fits, np.int64) if seq_lens_encoder[b] > 0 else np.arange(fits)
        token_ids[a : a + fits] = accept_tokens[b, :fits]
        rows[a : a + fits] = np.clip(first + steps, 0, last_row)
        a += count
        cu_batch_token_offset[b + 1] = a


def token_logprobs(
    logits: NDArray[Any],
    rows: I32,
    token_ids: I64,
    cu_batch_token_offset: I32,
    ids: I64,
    logprobs: F32,
    ranks: I64,
) -> None:
    """Log-probability and rank of each accepted token, with the top N-1 of its row."""
    ids[:] = -1
    logprobs[:] = 0
    ranks[:] = -1
    top = ids.shape[1] - 1
    totals = np.full(len(token_ids), MASS_ONE, np.uint64)
    accepted = min(max(int(cu_batch_token_offset[-1]), 0), len(token_ids))
    for a in range(accepted):
        r, token = int(rows[a]), int(token_ids[a])
        if not (0 <= r < logits.shape[0] and 0 <= token < logits.shape[1]):
            continue
        ids[a, 0] = token
        row = to_f32(logits[r])
        row_max = row.max()
        if np.isnan(row_max) or row_max == -np.inf:
            logprobs[a] = LOWEST
            continue
        if top:
            ids[a, 1:] = first_of_order(row, np.partition(row, -top)[-top])[:top]
        ranks[a] = np.count_nonzero(row >= row[token])
        logprobs[a] = below(row[ids[a]], row_max, np.float32(1))
        totals[a] = chunk_masses(row, np.float32(1)).total
    np.maximum(logprobs - ln_ratio(totals)[:, None], LOWEST, out=logprobs)


def _draft_rows(seq_lens_this_time: I32, seq_lens_encoder: I32, row_count: int) -> tuple[I64, I64]:
    """How many rows of the draft model each slot has, and how many tokens it reports: one more after a prompt."""
    prefill = seq_lens_encoder[: len(seq_lens_this_time)] > 0
    rows = np.where(prefill, 1, seq_lens_this_time.clip(0, row_count)).astype(np.int64)
    return rows, rows + prefill


def _offsets(counts: I64) -> I64:
    return np.concatenate([[0], np.cumsum(counts)])


def gather_draft_logits(
    logits: NDArray[Any],
    first_token_logits: NDArray[Any],
    seq_lens_this_time: I32,
    seq_lens_encoder: I32,
    draft_logits: NDArray[Any],
    next_token_num: I32,
    batch_token_num: I32,
    cu_next_token_offset: I32,
    cu_batch_token_offset: I32,
) -> None:
    """Put the target's first row of each prefilled slot before the draft model's rows."""
    rows, reported = _draft_rows(seq_lens_this_time, seq_lens_encoder, len(logits))
    sources, dests = _offsets(rows), _offsets(reported)
    next_token_num[:] = rows
    batch_token_num[:] = reported
    cu_next_token_offset[:] = np.minimum(sources, INT32_MAX)
    cu_batch_token_offset[:] = np.minimum(dests, INT32_MAX)
    for b in range(len(rows)):
        dest = dests[b]
        if reported[b] > rows[b]:
            draft_logits[dest : dest + 1] = first_token_logits[b]
            dest += 1
        fits = max(min(rows[b], len(logits) - sources[b], len(draft_logits) - dest), 0)
        draft_logits[dest : dest + fits] = logits[sources[b] : sources[b] + fits]


def insert_first_token(
    accept_tokens: I64,
    next_tokens: I64,
    seq_lens_this_time: I32,
    seq_lens_encoder: I32,
    draft_token_ids: I64,
) -> None:
    """Pack the draft model's tokens as `gather_draft_logits` packs their rows."""
    rows, reported = _draft_rows(seq_lens_this_time, seq_lens_encoder, len(next_tokens))
    sources, dests = _offsets(rows), _offsets(reported)
    for b in range(len(rows)):
        dest = dests[b]
        if reported[b] > rows[b]:
            draft_token_ids[dest : dest + 1] = accept_tokens[b, 0]
            dest += 1
        fits = max(min(rows[b], len(next_tokens) - sources[b], len(draft_token_ids) - dest), 0)
        draft_token_ids[dest : dest + fits] = next_tokens[sources[b] : sources[b] + fits]
