"""Section 9 of the contract: the state of a draft model, and the rows it is fed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BOOL = NDArray[np.bool_]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


def _note(history: I64, column: int, tokens: list[int]) -> None:
    """Write tokens into a slot's row of pre_ids, as far as it reaches."""
    for i, token in enumerate(tokens, column):
        if 0 <= i < len(history):
            history[i] = token


def draft_model_preprocess(
    draft_tokens: I64,
    input_ids: I64,
    stop_flags: BOOL,
    seq_lens_this_time: I32,
    seq_lens_encoder: I32,
    seq_lens_decoder: I32,
    step_idx: I64,
    has_running: BOOL,
    accept_tokens: I64,
    accept_num: I32,
    base_model_seq_lens_decoder: I32,
    base_model_step_idx: I64,
    base_model_stop_flags: BOOL,
    max_dec_len: I64,
    draft_token_num: I32,
    base_model_draft_tokens: I64,
    pre_ids: I64 | None,
    *,
    min_room: int,
) -> None:
    """Set the draft model's slots to what the target's step has accepted."""
    has_running[0] = False
    for b in range(len(seq_lens_this_time)):
        base_model_draft_tokens[b, 1:] = -1
        count = min(max(int(accept_num[b]), 0), accept_tokens.shape[1])
        enc = min(max(int(seq_lens_encoder[b]), 0), input_ids.shape[1])
        room = int(max_dec_len[b]) - int(base_model_step_idx[b])
        feeds = count > 0 or pre_ids is not None
        if base_model_stop_flags[b] or draft_token_num[b] <= 0 or room < min_room or (enc == 0 and not feeds):
            stop_flags[b] = True
            seq_lens_encoder[b] = seq_lens_decoder[b] = seq_lens_this_time[b] = step_idx[b] = 0
            continue
        stop_flags[b] = False
        step_idx[b] = base_model_step_idx[b]
        seq_lens_encoder[b] = enc
        if enc > 0:
            seq_lens_this_time[b] = enc
            if feeds:
                input_ids[b, enc - 1] = accept_tokens[b, 0]
        else:
            draft_tokens[b, :count] = accept_tokens[b, :count]
            seq_lens_this_time[b] = count
            seq_lens_decoder[b] = max(int(base_model_seq_lens_decoder[b]) - count, 0)
        if pre_ids is not None:
            with np.errstate(over="ignore"):
                step_idx[b] -= 1 if enc > 0 else count
            if enc > 0:
                _note(pre_ids[b], 0, [accept_tokens[b, 0]])
            else:
                _note(pre_ids[b], int(step_idx[b]), list(accept_tokens[b, :count]))
        has_running[0] = True


def _takes_draft(substep: int, wanted: int, step_idx: int, max_dec_len: int) -> bool:
    """Whether draft number `substep` + 1 of a slot with `step_idx` tokens could be accepted."""
    return substep < wanted and step_idx > 0 and max_dec_len - step_idx > 1


def draft_model_update(
    inter_next_tokens: I64,
    draft_tokens: I64,
    seq_lens_this_time: I32,
    seq_lens_encoder: I32,
    seq_lens_decoder: I32,
    step_idx: I64,
    stop_flags: BOOL,
    has_running: BOOL,
    max_dec_len: I64,
    draft_token_num: I32,
    base_model_draft_tokens: I64,
    pre_ids: I64 | None,
    *,
    substep: int,
) -> None:
    """Take one token of the draft model per active slot."""
    has_running[0] = False
    k = draft_tokens.shape[1] - 1
    active = [b for b in range(len(seq_lens_this_time)) if seq_lens_this_time[b] > 0]
    for rank, b in enumerate(active):
        token = int(inter_next_tokens[rank]) if rank < len(inter_next_tokens) else -1
        wanted, step, limit = min(int(draft_token_num[b]), k), int(step_idx[b]), int(max_dec_len[b])
        if pre_ids is not None:
            ended, chunk, room = bool(stop_flags[b]) or token < 0, int(seq_lens_encoder[b]), limit - step > 1
            if ended:
                draft_tokens[b, 0] = -1
            elif chunk > 0 or room:
                with np.errstate(over="ignore"):
                    seq_lens_decoder[b] += chunk if chunk > 0 else seq_lens_this_time[b]
                    step_idx[b] += 1 if chunk > 0 else seq_lens_this_time[b]
                _note(pre_ids[b], 1 if chunk > 0 else int(step_idx[b]), [token])
                draft_tokens[b, 0] = token
            seq_lens_encoder[b], seq_lens_this_time[b] = 0, not ended
            if substep < k:
                base_model_draft_tokens[b, substep + 1] = token if room and not ended else -1
            has_running[0] |= not ended
            continue
        with np.errstate(over="ignore"):  # lengths beyond any request wrap around
            seq_lens_decoder[b] += seq_lens_this_time[b]
        seq_lens_encoder[b] = seq_lens_this_time[b] = 0
        taken = token >= 0 and not stop_flags[b] and _takes_draft(substep, wanted, step, limit)
        if taken:
            draft_tokens[b, 0] = token
            step_idx[b] += 1
            seq_lens_this_time[b] = _takes_draft(substep + 1, wanted, step + 1, limit)
        if substep < k:
            base_model_draft_tokens[b, substep + 1] = token if taken else -1
        has_running[0] |= seq_lens_this_time[b] > 0


def draft_model_postprocess(
    draft_tokens: I64, seq_lens_this_time: I32, seq_lens_encoder: I32, stop_flags: BOOL, seq_lens_decoder: I32
) -> None:
    """Count the drafts that the target verifies next."""
    for b in range(len(seq_lens_this_time)):
        if stop_flags[b]:
            seq_lens_this_time[b] = 0
        elif seq_lens_encoder[b] <= 0:
            drafts = np.append(draft_tokens[b, 1:], -1)
            seq_lens_this_time[b] = 1 + np.argmax(drafts < 0) if seq_lens_decoder[b] > 0 else 0


def eagle_get_hidden_states(
    x: NDArray[Any], cu_seqlens_q: I32, batch_id_per_token: I32, base_model_cu_seqlens_q: I32, out: NDArray[Any]
) -> None:
    """Select the target's hidden states that go with the draft model's tokens."""
    out[:] = 0
    for r, b in enumerate(batch_id_per_token):
        if not 0 <= b < len(cu_seqlens_q) - 1:
            continue
        first, end = int(base_model_cu_seqlens_q[b]), int(base_model_cu_seqlens_q[b + 1])
        row = first + r - int(cu_seqlens_q[b])
        if first <= row < end and 0 <= row < len(x):
            out[r] = x[row]


def _pack_last_rows(
    x: NDArray[Any], cu_seqlens_q: I32, active: list[int], last_hidden: NDArray[Any], output_token_num: I32
) -> None:
    last_hidden[:] = 0
    output_token_num[0] = len(active)
    for k, b in enumerate(active):
        row = int(cu_seqlens_q[b + 1]) - 1
        if cu_seqlens_q[b] <= row and 0 <= row < len(x):
            last_hidden[k] = x[row]


def eagle_gather_hidden_states(
    x: NDArray[Any], cu_seqlens_q: I32, last_hidden: NDArray[Any], output_token_num: I32
) -> None:
    """Pack the last row of every slot that the draft model was fed."""
    active = [b for b in range(len(last_hidden)) if cu_seqlens_q[b + 1] > cu_seqlens_q[b]]
    _pack_last_rows(x, cu_seqlens_q, active, last_hidden, output_token_num)


def eagle_get_self_hidden_states(
    x: NDArray[Any],
    cu_seqlens_q: I32,
    seq_lens_this_time: I32,
    last_hidden: NDArray[Any],
    output_token_num: I32,
) -> None:
    """Pack the draft model's own hidden states that go with the tokens it is fed next."""
    active = [b for b in range(len(last_hidden)) if seq_lens_this_time[b] > 0]
    _pack_last_rows(x, cu_seqlens_q, active, last_hidden, output_token_num)
