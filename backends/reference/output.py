"""Section 7 of the contract: accepted tokens, packed, and their log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.floats import to_f32
from specdec_hal.backends.reference.primitives import exp2_mass, ln_ratio, softmax_t

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

LOWEST = np.finfo(np.float32).min


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
            ids[a, 1:] = np.argsort(-row, kind="stable")[:top]
        ln_total = ln_ratio(exp2_mass(softmax_t(row, row_max, np.float32(1))).sum(dtype=np.uint64))
        chosen = row[ids[a]]
        with np.errstate(invalid="ignore", over="ignore"):
            below_max = np.where(chosen == row_max, np.float32(0), chosen - row_max)
        logprobs[a] = np.maximum(below_max - ln_total, LOWEST)
        ranks[a] = np.count_nonzero(row >= row[token])
