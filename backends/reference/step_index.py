"""Sections 1 and 2 of the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops.enums import TokenOrder

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

INT32_MAX = 2**31 - 1


def prepare_inputs(
    input_ids: I64,
    draft_tokens: I64,
    seq_lens_this_time: I32,
    seq_lens_encoder: I32,
    seq_lens_decoder: I32,
    ids_remove_padding: I64,
    batch_id_per_token: I32,
    cu_seqlens_q: I32,
    cu_seqlens_k: I32,
    cu_seqlens_q_output: I32,
    batch_id_per_token_output: I32,
    num_tokens: I32,
) -> None:
    """Pack the step's tokens and index them."""
    ids_remove_padding[:] = 0
    batch_id_per_token[:] = -1
    batch_id_per_token_output[:] = -1
    t_cap, r_cap = len(ids_remove_padding), len(batch_id_per_token_output)
    t = k = r = 0
    cu_seqlens_q[0] = cu_seqlens_k[0] = cu_seqlens_q_output[0] = 0
    for b in range(len(seq_lens_this_time)):
        prefill = seq_lens_encoder[b] > 0
        source = input_ids[b] if prefill else draft_tokens[b]
        slt = min(max(int(seq_lens_this_time[b]), 0), len(source))
        rows = 0 if slt == 0 else 1 if prefill else slt
        fits = max(min(slt, t_cap - t), 0)
        ids_remove_padding[t : t + fits] = source[:fits]
        batch_id_per_token[t : t + fits] = b
        batch_id_per_token_output[r : min(r + rows, r_cap)] = b
        t += slt
        k += slt + max(int(seq_lens_decoder[b]), 0) if slt else 0
        r += rows
        sums = (min(total, INT32_MAX) for total in (t, k, r))
        cu_seqlens_q[b + 1], cu_seqlens_k[b + 1], cu_seqlens_q_output[b + 1] = sums
    num_tokens[:] = min(t, INT32_MAX), min(r, INT32_MAX)


def _slot_rows(cu_seqlens_q: I32, seq_lens_this_time: I32, b: int, capacity: int) -> range:
    """Where slot b's tokens stand in slot order, clamped to the array."""
    start = min(max(int(cu_seqlens_q[b]), 0), capacity)
    return range(start, min(start + max(int(seq_lens_this_time[b]), 0), capacity))


def _placement(
    cu_seqlens_q: I32, seq_lens_this_time: I32, seq_lens_encoder: I32, capacity: int, order: TokenOrder
) -> list[int]:
    """The slot-order row that stands at each row of `order`."""
    slots = range(len(seq_lens_this_time))
    if order is TokenOrder.PREFILL_FIRST:
        slots = sorted(slots, key=lambda b: not seq_lens_encoder[b] > 0)  # type: ignore[assignment]  # stable
    rows = [row for b in slots for row in _slot_rows(cu_seqlens_q, seq_lens_this_time, b, capacity)]
    return rows[:capacity]


def adjust_batch(
    x: NDArray[Any],
    cu_seqlens_q: I32,
    seq_lens_this_time: I32,
    seq_lens_encoder: I32,
    out: NDArray[Any],
    *,
    token_order: TokenOrder,
) -> None:
    """Permute packed rows from slot order to `token_order`."""
    placed = _placement(cu_seqlens_q, seq_lens_this_time, seq_lens_encoder, len(x), token_order)
    out[:] = 0
    out[: len(placed)] = x[placed]


def recover_batch(
    x: NDArray[Any],
    cu_seqlens_q: I32,
    seq_lens_this_time: I32,
    seq_lens_encoder: I32,
    out: NDArray[Any],
    *,
    token_order: TokenOrder,
) -> None:
    """Permute packed rows from `token_order` back to slot order."""
    placed = _placement(cu_seqlens_q, seq_lens_this_time, seq_lens_encoder, len(x), token_order)
    out[:] = 0
    out[placed] = x[: len(placed)]


def gather_next_token(
    x: NDArray[Any],
    cu_seqlens_q: I32,
    cu_seqlens_q_output: I32,
    batch_id_per_token_output: I32,
    seq_lens_this_time: I32,
    seq_lens_encoder: I32,
    out: NDArray[Any],
    *,
    is_speculative: bool,
    token_order: TokenOrder,
) -> None:
    """Select the hidden rows that predict a token."""
    placed = _placement(cu_seqlens_q, seq_lens_this_time, seq_lens_encoder, len(x), token_order)
    token_row_of = {row: token_row for token_row, row in enumerate(placed)}
    out[:] = 0
    if is_speculative:
        wanted = [
            (r, int(b), r - int(cu_seqlens_q_output[b]))
            for r, b in enumerate(batch_id_per_token_output)
            if 0 <= b < len(seq_lens_this_time)
        ]
    else:
        wanted = [(b, b, -1) for b in range(len(seq_lens_this_time))]
    for r, b, i in wanted:
        rows = _slot_rows(cu_seqlens_q, seq_lens_this_time, b, len(x))
        if not rows:
            continue
        last_only = not is_speculative or seq_lens_encoder[b] > 0
        row = rows[-1] if last_only else rows[min(max(i, 0), len(rows) - 1)]
        if row in token_row_of:
            out[r] = x[token_row_of[row]]
