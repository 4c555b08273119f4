"""Section 8 of the contract: the phases of a request that thinks before it answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.floats import from_f32
from specdec_hal.backends.reference.history import history_bounds

BOOL = NDArray[np.bool_]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

INT32_MAX = np.iinfo(np.int32).max
THINKING, THINK_END_SEEN, CONSTRAINED, FINISHED = range(4)
"""Values of `reasoning_status`."""


ALLOWANCE = 2
"""Added by FastDeploy to the limit of an answer if its thought ended by itself."""


def limit_thinking(
    step_idx: I64,
    max_think_lens: I32,
    max_reply_lens: I32,
    stop_flags: BOOL,
    end_tokens: I64,
    inject_token_ids: I64,
    accept_tokens: I64,
    accept_num: I32,
    limit_status: I32,
    think_end_id: int,
    fastdeploy: bool,
    keep_tail: bool,
) -> None:
    """End thinking and answers at their limits."""
    text = [int(token) for token in inject_token_ids] or [think_end_id] * (not fastdeploy)
    ends = {int(token) for token in end_tokens}
    no_answer = len(text) + 1 + fastdeploy
    for b in range(len(accept_num)):
        max_think, max_reply = int(max_think_lens[b]), int(max_reply_lens[b])
        count = min(max(int(accept_num[b]), 0), accept_tokens.shape[1])
        if stop_flags[b] or (max_think < 0 and max_reply < 0) or count == 0:
            continue
        step, status = int(step_idx[b]), max(int(limit_status[b]), 0)
        for i in range(count):
            token = emitted = int(accept_tokens[b, i])
            if status == 0:
                if token == think_end_id:
                    status = len(text) + 1
                    if fastdeploy and max_reply >= 0:
                        max_reply = min(max_reply + ALLOWANCE, INT32_MAX)
                    continue
                full = step + i == max_think if fastdeploy and max_think > 0 else step + i >= max_think
                if max_think < 0 or not (full or (token in ends and text)):
                    continue
                status = 1
                if not text:
                    continue
            if status <= len(text):
                token = text[status - 1]
                status += 1
            else:
                status = max(status, no_answer)
                if 0 <= max_reply <= status - no_answer and ends and (fastdeploy or token not in ends):
                    token = int(end_tokens[0])
                else:
                    status = min(status + 1, INT32_MAX)
            if token != emitted:
                accept_tokens[b, i] = token
                if not keep_tail:
                    accept_tokens[b, i + 1 :] = -1
                accept_num[b] = i + 1
                break
        limit_status[b], max_reply_lens[b] = status, max_reply


def reasoning_constraint(
    logits: NDArray[Any],
    token_ids_all: I64,
    prompt_lens: I64,
    stop_flags: BOOL,
    seq_lens_encoder: I32,
    step_idx: I64,
    allowed_tokens: I64,
    reasoning_status: I32,
    cu_seqlens_q_output: I32,
    enable_thinking: BOOL,
    reasoning_seen: I64 | None,
    draft_tokens: I64 | None,
    think_end_id: int,
    line_break_id: int,
) -> None:
    """Make the first token after thinking one of a few."""
    row_width = token_ids_all.shape[1]
    masked = from_f32(np.array(-1e4 if logits.dtype == np.float16 else -1e10, np.float32), logits.dtype)
    for b in range(len(cu_seqlens_q_output) - 1):
        row = int(cu_seqlens_q_output[b])
        if stop_flags[b] or row >= cu_seqlens_q_output[b + 1]:
            continue
        first, end = history_bounds(row_width, prompt_lens[b], step_idx[b])
        text = [int(token) for token in token_ids_all[b, first:end]]
        begins_without = not enable_thinking[b] and seq_lens_encoder[b] > 0
        status, known = int(reasoning_status[b]), len(text) - 1
        if reasoning_seen is not None:
            known = min(max(int(reasoning_seen[b]), -1), len(text))
            reasoning_seen[b] = len(text)
        for count in range(known + 1, len(text) + 1):
            status = _moved(status, text[:count], begins_without, think_end_id, line_break_id)
        reasoning_status[b] = status
        drafts: list[int] = []
        if draft_tokens is not None and seq_lens_encoder[b] <= 0:
            rows = min(int(cu_seqlens_q_output[b + 1]) - row, draft_tokens.shape[1])
            drafts = [int(token) for token in draft_tokens[b, 1:rows]]
        for i in range(len(drafts) + 1):
            if i > 0:
                status = _moved(status, text + drafts[:i], False, think_end_id, line_break_id)
            if status == CONSTRAINED and len(allowed_tokens) and 0 <= row + i < len(logits):
                kept = [token for token in allowed_tokens if 0 <= token < logits.shape[1]]
                values = logits[row + i, kept]
                logits[row + i] = masked
                logits[row + i, kept] = values


def _moved(status: int, generated: list[int], begins_without: bool, think_end_id: int, line_break_id: int) -> int:
    """A slot's status after this many generated tokens, from the previous status."""
    newest = generated[-4:]
    seen = think_end_id in newest
    if status == CONSTRAINED:
        return FINISHED
    if status == THINKING and begins_without and not generated:
        return CONSTRAINED
    if status == THINKING and seen:
        status = THINK_END_SEEN
    if status == THINK_END_SEEN and len(newest) == 4:
        if newest == [line_break_id, think_end_id, line_break_id, line_break_id]:
            return CONSTRAINED
        return THINK_END_SEEN if seen else FINISHED
    return status
