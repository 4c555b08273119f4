"""Section 2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal.ops import TokenOrder
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge

SLOT, PREFILL_FIRST = TokenOrder.SLOT, TokenOrder.PREFILL_FIRST


def rows_of(*values: int, dtype: str = "float32") -> Any:
    """One column of x."""
    return np.array(values, dtype).reshape(-1, 1)


# Slot 0 decodes 2 tokens, slot 1 prefills 3, slot 2 is idle, slot 3 decodes 1.
MIXED: dict[str, Any] = {
    "seq_lens_this_time": [2, 3, 0, 1],
    "seq_lens_encoder": [0, 3, 0, 0],
    "cu_seqlens_q": [0, 2, 5, 5, 6],
}
OUTPUT: dict[str, Any] = {"cu_seqlens_q_output": [0, 2, 3, 3, 4], "batch_id_per_token_output": [0, 0, 1, 3, -1]}


def edges() -> Iterator[Case]:
    """adjust_batch, recover_batch, gather_next_token."""
    x = rows_of(1, 2, 3, 4, 5, 6, 7)
    yield edge(
        "adjust_batch", "prefill goes first", "moves tail one-column", {"out": [[3], [4], [5], [1], [2], [6], [0]]},
        x=x, **MIXED, token_order=PREFILL_FIRST,
    )  # fmt: skip
    yield edge(
        "adjust_batch", "slot order is the identity", "identity tail",
        {"out": [[1], [2], [3], [4], [5], [6], [0]]}, x=x, **MIXED, token_order=SLOT,
    )  # fmt: skip
    yield edge(
        "adjust_batch", "token ids of 64 bits", "one-column moves",
        {"out": [[2**40 + 1], [7], [8]]},
        x=rows_of(7, 8, 2**40 + 1, dtype="int64"), seq_lens_this_time=[2, 1], seq_lens_encoder=[0, 1],
        cu_seqlens_q=[0, 2, 3], token_order=PREFILL_FIRST,
    )  # fmt: skip
    adjusted = rows_of(3, 4, 5, 1, 2, 6, 9)
    yield edge(
        "recover_batch", "prefill comes back", "inverse tail", {"out": [[1], [2], [3], [4], [5], [6], [0]]},
        x=adjusted, **MIXED, token_order=PREFILL_FIRST,
    )  # fmt: skip
    yield edge(
        "recover_batch", "slot order is the identity", "inverse",
        {"out": [[1], [2], [3], [4], [5], [6], [0]]}, x=x, **MIXED, token_order=SLOT,
    )  # fmt: skip
    for order, rows in ((SLOT, rows_of(1, 2, 3, 4, 5, 6)), (PREFILL_FIRST, rows_of(3, 4, 5, 1, 2, 6))):
        shown = order.name.lower().replace("_", " ")
        yield edge(
            "gather_next_token", f"packed in {shown} order", "order packed tail", {"out": [[1], [2], [5], [6], [0]]},
            x=rows, **MIXED, **OUTPUT, token_order=order, is_speculative=True,
        )  # fmt: skip
        yield edge(
            "gather_next_token", f"scattered in {shown} order", "order scattered idle",
            {"out": [[2], [5], [0], [6]]}, x=rows, **MIXED, **OUTPUT, token_order=order, is_speculative=False,
        )  # fmt: skip
    plain: dict[str, Any] = {
        "x": rows_of(11, 12, 13), "seq_lens_this_time": [1, 2], "seq_lens_encoder": [0, 2], "cu_seqlens_q": [0, 1, 3],
        "cu_seqlens_q_output": [0, 1, 2], "batch_id_per_token_output": [0, 1], "token_order": SLOT,
    }  # fmt: skip
    for speculative in (True, False):
        yield edge(
            "gather_next_token", f"plain batch, {'packed' if speculative else 'scattered'}", "same-rows",
            {"out": [[11], [13]]}, **plain, is_speculative=speculative,
        )  # fmt: skip
    shared: dict[str, Any] = {"x": rows_of(10, 11, 12, 13), "token_order": SLOT, "seq_lens_encoder": [0, 0]}
    yield edge(
        "gather_next_token", "two slots name the same rows", "offsets", {"out": [[13], [13]]}, **shared,
        seq_lens_this_time=[2, 2], cu_seqlens_q=[0, 0, 4], cu_seqlens_q_output=[0, 2, 4],
        batch_id_per_token_output=[0, 1], is_speculative=False,
    )  # fmt: skip
    yield edge(
        "gather_next_token", "offsets outside the tokens", "offsets", {"out": [[11], [0]]}, **shared,
        seq_lens_this_time=[2, 2], cu_seqlens_q=[-5, 9, 11], cu_seqlens_q_output=[0, 2, 4],
        batch_id_per_token_output=[0, 1], is_speculative=False,
    )  # fmt: skip
    yield edge(
        "gather_next_token", "output rows outside their slot's", "offsets", {"out": [[10], [10], [11], [11]]}, **shared,
        seq_lens_this_time=[2, 0], cu_seqlens_q=[0, 2, 2], cu_seqlens_q_output=[1, 3, 3],
        batch_id_per_token_output=[0, 0, 0, 0], is_speculative=True,
    )  # fmt: skip
    yield edge(
        "gather_next_token", "idle rows are zero without prefill too", "idle",
        {"out": [[0], [1]]},
        x=rows_of(1), seq_lens_this_time=[0, 1], seq_lens_encoder=[0, 0], cu_seqlens_q=[0, 0, 1],
        cu_seqlens_q_output=[0, 0, 1], batch_id_per_token_output=[1], is_speculative=False, token_order=SLOT,
    )  # fmt: skip
