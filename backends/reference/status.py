"""Section 5 of the contract: append the emitted tokens and advance every slot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.history import history_bounds

BOOL = NDArray[np.bool_]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


def _ending(tokens: I64, step: np.int64, limit: np.int64, end_tokens: I64) -> int:
    """How many of a slot's tokens count: up to the first end token or the limit."""
    with np.errstate(over="ignore"):
        ends = np.isin(tokens, end_tokens) | (step + np.arange(1, len(tokens) + 1) >= limit)
    return int(ends.argmax()) if ends.any() else len(tokens)


def update_model_status(
    seq_lens_encoder: I32,
    seq_lens_decoder: I32,
    seq_lens_this_time: I32,
    stop_flags: BOOL,
    step_idx: I64,
    token_ids_all: I64,
    draft_tokens: I64,
    accept_tokens: I64,
    accept_num: I32,
    has_running: BOOL,
    is_block_step: BOOL,
    prompt_lens: I64,
    end_tokens: I64,
    max_dec_len: I64,
    ignore_end: BOOL | None,
    *,
    end_at_limit: bool,
) -> None:
    """Append the emitted tokens to the history and advance every slot."""
    has_running[0] = False
    row_width = token_ids_all.shape[1]
    for b in range(len(seq_lens_this_time)):
        if stop_flags[b] or is_block_step[b]:
            stop_flags[b] = True
            seq_lens_encoder[b] = seq_lens_decoder[b] = seq_lens_this_time[b] = accept_num[b] = 0
            continue
        ends = end_tokens[:0] if ignore_end is not None and ignore_end[b] else end_tokens
        count = min(max(int(accept_num[b]), 0), accept_tokens.shape[1])
        if end_at_limit:
            ending = _ending(accept_tokens[b, :count], step_idx[b], max_dec_len[b], ends)
            if ending < count:
                count = accept_num[b] = ending + 1
                if accept_tokens[b, ending] not in ends and len(ends):
                    accept_tokens[b, ending] = ends[0]
        emitted = accept_tokens[b, :count]
        _, start = history_bounds(row_width, prompt_lens[b], step_idx[b])
        fits = min(count, row_width - start)
        token_ids_all[b, start : start + fits] = emitted[:fits]
        with np.errstate(over="ignore"):  # counts beyond any request wrap around
            step_idx[b] += count
            if seq_lens_encoder[b] > 0:
                seq_lens_decoder[b] += seq_lens_encoder[b]
                seq_lens_encoder[b] = 0
            elif seq_lens_decoder[b] > 0:
                seq_lens_decoder[b] += count
        ended = False
        if count:
            draft_tokens[b, 0] = emitted[-1]
            ended = emitted[-1] in ends
        stop_flags[b] = ended or step_idx[b] >= max_dec_len[b]
        has_running[0] |= not stop_flags[b]
