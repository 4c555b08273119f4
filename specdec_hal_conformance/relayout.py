"""Move slots with all their data to other places of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import get_op

Array = NDArray[Any]

_OFFSETS = {
    "T_cap": "cu_seqlens_q",
    "R_cap": "cu_seqlens_q_output",
    "A_cap": "cu_batch_token_offset",
    "F_cap": "block_cu_seqlens_q",
}
_OWNERS = ("batch_id_per_token", "batch_id_per_token_output", "block_batch_ids")
_BY_ACTIVE_SLOT = ("inter_next_tokens", "last_hidden")


def slots_in_use(inputs: Mapping[str, Any]) -> int:
    """B of a call; for ops over all M slots, M."""
    for name in ("seq_lens_this_time", "cu_seqlens_q", "cu_seqlens_q_output", "cu_batch_token_offset"):
        if name in inputs:
            return len(inputs[name]) - (name != "seq_lens_this_time")
    if "batch_id_per_token_output" in inputs:
        return int(inputs["batch_id_per_token_output"].max(initial=-1)) + 1
    return len(next(iter(inputs.values())))


class Relayout:
    """A batch whose slot j is slot order[j] of an old one, followed by stale copies of old slots.

    `call`: the old batch's operands (after the op) and attributes; `m`: the new M; `lengths`: the tokens of each slot
    before the op, if it takes them.
    """

    def __init__(
        self, op: str, call: Mapping[str, Any], slots: int, order: Sequence[int], m: int, lengths: Array | None = None
    ) -> None:
        self.spec, self.call, self.slots, self.order, self.m = get_op(op), call, slots, list(order), m
        self.attrs = {name: call[name] for name in self.spec.attr_by_name}
        self.lengths = lengths

    def move(self, name: str, value: Any) -> tuple[Any, int]:
        """An operand in the new batch, and how many of its leading entries are determined."""
        operand = self.spec.by_name.get(name)
        if operand is None or value is None:
            return value, 0
        order, used = self.order, len(self.order)
        first = str(operand.dims(self.attrs)[0])
        if name in _BY_ACTIVE_SLOT:
            return self._move_blocks(name, value, self._ranks(), used if first == "B" else len(value))
        if name == "x" and "base_model_cu_seqlens_q" in self.call:
            return self._move_blocks(name, value, self.call["base_model_cu_seqlens_q"].astype(np.int64), len(value))
        if first == "M":
            return value[[*order, *(j % len(value) for j in range(self.m - used))]], used
        if first == "B":
            return value[order], used
        if first == "B+1":
            return np.cumsum([0, *np.diff(value.astype(np.int64))[order]]).astype(value.dtype), used + 1
        offsets = self._draft_rows(first) if "next_tokens" in self.call or "draft_logits" in self.call else None
        offsets = self._offsets(_OFFSETS.get(first, "")) if offsets is None else offsets
        return (value, len(value)) if offsets is None else self._move_blocks(name, value, offsets, len(value))

    def _offsets(self, name: str) -> Array | None:
        if name in self.call:
            known: Array = self.call[name].astype(np.int64)
            return known
        if name == "cu_seqlens_q_output" and "batch_id_per_token_output" in self.call:
            owners = self.call["batch_id_per_token_output"]
            return np.cumsum([0, *(np.count_nonzero(owners == b) for b in range(self.slots))])
        return None

    def _draft_rows(self, symbol: str) -> Array | None:
        """Offsets of the slots' draft-model rows, or of their reported tokens."""
        lens = self.call["seq_lens_this_time"].astype(np.int64)
        prefill = self.call["seq_lens_encoder"][: len(lens)] > 0
        counts = np.where(prefill, 1, lens) + (prefill if symbol == "D_cap" else 0)
        return np.cumsum([0, *counts]) if symbol in ("R_cap", "D_cap") else None

    def _ranks(self) -> Array:
        """How many active slots come before each slot, and in all."""
        lengths = np.diff(self.call["cu_seqlens_q"].astype(np.int64)) if self.lengths is None else self.lengths
        return np.cumsum([0, *(lengths > 0)])

    def _move_blocks(self, name: str, value: Array, offsets: Array, capacity: int) -> tuple[Array, int]:
        blocks = [value[offsets[b] : offsets[b + 1]] for b in self.order]
        if name in _OWNERS:
            blocks = [np.full_like(block, j) for j, block in enumerate(blocks)]
        rows_of = {"rows": "cu_seqlens_q_output", "block_source_rows": "cu_seqlens_q"}.get(name, "")
        first_row = self._offsets(rows_of)
        if first_row is not None:  # logit rows, or tokens, move too
            new_row = np.cumsum([0, *np.diff(first_row)[self.order]])
            moves = [new_row[j] - first_row[b] for j, b in enumerate(self.order)]
            blocks = [block + move * (block >= 0) for block, move in zip(blocks, moves, strict=True)]
        count = sum(map(len, blocks))
        fill = -1 if name in (*_OWNERS, "rows", "block_source_rows") else 0
        tail = np.full((capacity - count, *value.shape[1:]), fill)
        moved: Array = np.concatenate([*blocks, tail]).astype(value.dtype)
        return moved, count
