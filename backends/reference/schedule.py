"""Section 8 of the contract: the scheduler's decisions, stop sequences, and the caller's history."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.history import history_bounds
from specdec_hal.ops.enums import SlotAction

BOOL = NDArray[np.bool_]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


def schedule_slots(
    slot_actions: I32,
    chunk_lens: I32,
    chunk_starts: I32,
    chunk_step_idx: I64,
    token_ids_all: I64,
    seq_lens_encoder: I32,
    seq_lens_decoder: I32,
    seq_lens_this_time: I32,
    step_idx: I64,
    stop_flags: BOOL,
    is_block_step: BOOL,
    input_ids: I64,
) -> None:
    """Apply the scheduler's decision for each slot."""
    row_width, widest_chunk = token_ids_all.shape[1], input_ids.shape[1]
    for b in range(len(seq_lens_this_time)):
        action = slot_actions[b]
        if action == SlotAction.PREFILL:
            start = min(max(int(chunk_starts[b]), 0), row_width)
            count = min(max(int(chunk_lens[b]), 0), widest_chunk, row_width - start)
            input_ids[b, :count] = token_ids_all[b, start : start + count]
            seq_lens_encoder[b] = seq_lens_this_time[b] = count
            seq_lens_decoder[b] = start
            step_idx[b] = chunk_step_idx[b]
            stop_flags[b] = is_block_step[b] = False
        elif action == SlotAction.WAIT:
            seq_lens_encoder[b] = seq_lens_this_time[b] = 0
        elif action == SlotAction.STOP:
            stop_flags[b] = True
            seq_lens_encoder[b] = seq_lens_decoder[b] = seq_lens_this_time[b] = 0


def set_stop_sequences(
    token_ids_all: I64,
    prompt_lens: I64,
    step_idx: I64,
    min_dec_len: I64,
    stop_seqs: I64,
    stop_seqs_lens: I32,
    accept_tokens: I64,
    accept_num: I32,
    max_dec_len: I64,
    end_tokens: I64 | None,
    end_after_stop: bool,
    keep_tail: bool,
) -> None:
    """Truncate the emitted tokens after the first stop sequence."""
    end = int(end_tokens[0]) if end_after_stop and end_tokens is not None and len(end_tokens) else None
    row_width, widest = token_ids_all.shape[1], stop_seqs.shape[2]
    for b in range(len(accept_num)):
        count = min(max(int(accept_num[b]), 0), accept_tokens.shape[1])
        first, stop = history_bounds(row_width, prompt_lens[b], step_idx[b])
        text = np.concatenate([token_ids_all[b, first:stop], accept_tokens[b, :count]])
        sizes = np.clip(stop_seqs_lens[b], 0, widest)
        for i in range(count):
            generated = stop - first + i + (end is None)
            if generated < min_dec_len[b]:
                continue
            tail = text[:generated]
            if any(
                0 < n <= generated and (tail[generated - n :] == s[:n]).all()
                for n, s in zip(sizes, stop_seqs[b], strict=True)
            ):
                accept_num[b] = i + 1
                max_dec_len[b] = stop - first + i + 1
                if not keep_tail:
                    accept_tokens[b, i + 1 :] = -1
                if end is not None:
                    accept_tokens[b, i] = end
                break


def write_accepted(
    token_ids_all: I64,
    prompt_lens: I64,
    accept_tokens: I64,
    accept_num: I32,
    stop_flags: BOOL,
    seq_lens_this_time: I32,
    seq_lens_encoder: I32,
    seq_lens_decoder: I32,
    step_idx: I64,
    last_index: bool,
) -> None:
    """Write the accepted tokens into the history."""
    row_width, draft_width = token_ids_all.shape[1], accept_tokens.shape[1]
    for b in range(len(seq_lens_this_time)):
        idle = seq_lens_encoder[b] <= 0 and seq_lens_decoder[b] <= 0
        if stop_flags[b] or idle or step_idx[b] < 0:
            continue
        count = min(max(int(accept_num[b]), 0), draft_width)
        prompt_len = min(max(int(prompt_lens[b]), 0), row_width)
        start = prompt_len + int(step_idx[b]) + last_index - count
        for i, token in enumerate(accept_tokens[b, :count]):
            if prompt_len <= start + i < row_width:
                token_ids_all[b, start + i] = token


def clear_accept_num(accept_num: I32, seq_lens_decoder: I32) -> None:
    """Forget the counts of slots that are not in the KV cache."""
    accept_num[seq_lens_decoder <= 0] = 0
