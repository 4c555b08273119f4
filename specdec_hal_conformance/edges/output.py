"""Section 7."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal.ops.spec import FLOATS
from specdec_hal_conformance.building import logits
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.expectations import Close

INF = np.inf
LOWEST = float(np.finfo(np.float32).min)


def edges() -> Iterator[Case]:
    """All ops of the section."""
    yield from _gather()
    yield from _logprobs()
    yield from _draft_logits()
    yield from _first_tokens()


def _gather() -> Iterator[Case]:
    op = "gather_accepted"
    yield edge(
        op, "stale counts do not enter", "offsets stale rows tail",
        {"cu_batch_token_offset": [0, 2, 2, 3], "token_ids": [5, 6, 9, -1, -1], "rows": [0, 1, 2, -1, -1]},
        {"A_cap": 5},
        logits=logits(np.zeros((6, 2))), accept_tokens=[[5, 6], [7, 8], [9, -1]], accept_num=[2, 2, 1],
        cu_seqlens_q_output=[0, 2, 2, 3], seq_lens_encoder=[0, 0, 4], seq_lens_this_time=[2, 0, 4],
    )  # fmt: skip
    slot: dict[str, Any] = {
        "accept_tokens": [[5, 6]], "accept_num": [2], "cu_seqlens_q_output": [0, 1], "seq_lens_encoder": [4],
        "seq_lens_this_time": [4],
    }  # fmt: skip
    yield edge(
        op,
        "a prefill slot has one row",
        "prefill",
        {"rows": [0, 0]},
        {"A_cap": 2},
        logits=logits(np.zeros((3, 2))),
        **slot,
    )
    yield edge(
        op, "rows are clamped", "row-clamp", {"rows": [0, 1, 2]}, {"A_cap": 3}, logits=logits(np.zeros((3, 2))),
        accept_tokens=[[5, 6, 7]], accept_num=[3], cu_seqlens_q_output=[0, 1],
        seq_lens_encoder=[0], seq_lens_this_time=[3],
    )  # fmt: skip
    yield edge(
        op, "rows beyond the logits", "row-clamp", {"rows": [2, 2, -1], "token_ids": [5, 6, -1]}, {"A_cap": 3},
        logits=logits(np.zeros((3, 2))), **slot | {"cu_seqlens_q_output": [99, 99], "seq_lens_encoder": [0]},
    )  # fmt: skip
    yield edge(
        op, "counts are clamped", "offsets", {"cu_batch_token_offset": [0, 2, 2], "token_ids": [5, 6, -1]},
        {"A_cap": 3}, logits=logits(np.zeros((4, 2))), accept_tokens=[[5, 6], [7, 8]], accept_num=[9, -4],
        cu_seqlens_q_output=[0, 2, 4], seq_lens_encoder=[0, 0], seq_lens_this_time=[2, 2],
    )  # fmt: skip
    yield edge(
        op, "what does not fit is not written", "overflow",
        {"cu_batch_token_offset": [0, 2, 4], "token_ids": [5, 6, 7], "rows": [0, 1, 2]}, {"A_cap": 3},
        logits=logits(np.zeros((4, 2))), accept_tokens=[[5, 6], [7, 8]], accept_num=[2, 2],
        cu_seqlens_q_output=[0, 2, 4], seq_lens_encoder=[0, 0], seq_lens_this_time=[2, 2],
    )  # fmt: skip


def _logprobs() -> Iterator[Case]:
    op = "token_logprobs"
    masses = np.exp([0.0, 1.0, -INF, 1.0])
    parts = np.log(masses[[0, 1, 3]] / masses.sum())
    for dtype in FLOATS:
        yield edge(
            op, f"by hand in {dtype}", "columns logprob rank tail conventions#logarithm",
            {
                "ids": [[0, 1, 3], [3, 1, 3], [-1, -1, -1]], "ranks": [3, 2, -1],
                "logprobs": Close([parts, parts[[2, 1, 2]], [0, 0, 0]]),
            },
            {"N": 3},
            logits=logits([[0.0, 1.0, -INF, 1.0]], dtype), rows=[0, 0, 0], token_ids=[0, 3, 3],
            cu_batch_token_offset=[0, 2],
        )  # fmt: skip
    yield edge(
        op, "clipped, undefined and out of range", "clipped undefined out-of-range columns",
        {
            "ids": [[2, 1, 3], [1, -1, -1], [-1] * 3, [-1] * 3, [-1] * 3], "ranks": [4, -1, -1, -1, -1],
        },
        {"N": 3},
        logits=logits([[0.0, 1.0, -INF, 1.0], [np.nan, 0, 0, 0]]), rows=[0, 1, 0, 5, -1], token_ids=[2, 1, 4, 0, 0],
        cu_batch_token_offset=[0, 5],
    )  # fmt: skip
    yield edge(
        op, "-inf is clipped to the lowest float32", "clipped", {"logprobs": [[LOWEST], [0.0]], "ranks": [2, 1]},
        {"N": 1}, logits=logits([[0.0, -INF]]), rows=[0, 0], token_ids=[1, 0], cu_batch_token_offset=[0, 2],
    )  # fmt: skip
    for name, row in (("NaN", [np.nan, 0.0]), ("all -inf", [-INF, -INF])):
        yield edge(
            op, f"a row of {name}", "undefined", {"ids": [[1, -1]], "logprobs": [[LOWEST, LOWEST]], "ranks": [-1]},
            {"N": 2}, logits=logits([row]), rows=[0], token_ids=[1], cu_batch_token_offset=[0, 1],
        )  # fmt: skip
    yield edge(
        op, "one column", "one-column tail",
        {"ids": [[1], [-1]], "ranks": [2, -1], "logprobs": Close([[np.log(0.5)], [0]])},
        {"N": 1}, logits=logits([[0.0, 0.0]]), rows=[0, 0], token_ids=[1, 1], cu_batch_token_offset=[0, 1],
    )  # fmt: skip
    yield edge(
        op, "nothing accepted", "tail", {"ids": [[-1, -1]] * 2, "ranks": [-1, -1], "logprobs": [[0, 0]] * 2}, {"N": 2},
        logits=logits([[0.0, 0.0]]), rows=[0, 0], token_ids=[1, 1], cu_batch_token_offset=[0],
    )  # fmt: skip
    yield edge(
        op, "an infinite maximum", "logprob", {"logprobs": [[0.0], [LOWEST]], "ranks": [1, 2]}, {"N": 1},
        logits=logits([[INF, 0.0]]), rows=[0, 0], token_ids=[0, 1], cu_batch_token_offset=[0, 2],
    )  # fmt: skip


def _draft_logits() -> Iterator[Case]:
    op = "gather_draft_logits"
    slots: dict[str, Any] = {"seq_lens_this_time": [2, 5, 0, 1], "seq_lens_encoder": [0, 5, 0, 0, 3]}
    first = [[90 + b, 0] for b in range(5)]
    for dtype in FLOATS:
        yield edge(
            op, f"prefill, decode and idle in {dtype}", "next batch offsets prefill decode untouched",
            {
                "draft_logits": [[1, 2], [3, 4], [91, 0], [5, 6], [7, 8], [-1, -1]],
                "next_token_num": [2, 1, 0, 1], "batch_token_num": [2, 2, 0, 1],
                "cu_next_token_offset": [0, 2, 3, 3, 4], "cu_batch_token_offset": [0, 2, 4, 4, 5],
            },
            logits=logits([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]], dtype), first_token_logits=logits(first, dtype),
            draft_logits=logits([[-1, -1]] * 6, dtype), **slots,
        )  # fmt: skip
    yield edge(
        op, "no room", "capacity offsets",
        {
            "draft_logits": [[1, 2], [3, 4], [91, 0]], "cu_next_token_offset": [0, 2, 3, 3, 4],
            "cu_batch_token_offset": [0, 2, 4, 4, 5],
        },
        logits=logits([[1, 2], [3, 4], [5, 6], [7, 8]]), first_token_logits=logits(first),
        draft_logits=logits([[-1, -1]] * 3), **slots,
    )  # fmt: skip
    yield edge(
        op, "rows that are not there", "capacity next",
        {
            "draft_logits": [[1, 2], [3, 4], [91, 0], [-1, -1], [-1, -1], [-1, -1]], "next_token_num": [2, 1, 0, 2],
            "cu_next_token_offset": [0, 2, 3, 3, 5], "cu_batch_token_offset": [0, 2, 4, 4, 6],
        },
        logits=logits([[1, 2], [3, 4]]), first_token_logits=logits(first), draft_logits=logits([[-1, -1]] * 6),
        **{**slots, "seq_lens_this_time": [2, 5, -3, 9]},
    )  # fmt: skip
    yield edge(
        op, "no slot in use", "offsets untouched",
        {"cu_next_token_offset": [0], "cu_batch_token_offset": [0], "draft_logits": [[-1, -1]]}, {"R_cap": 3, "B": 0},
        logits=logits([[1, 2]] * 3), first_token_logits=logits(first), draft_logits=logits([[-1, -1]]),
        seq_lens_this_time=[], seq_lens_encoder=[5] * 5,
    )  # fmt: skip
    many, width = 40, 3001
    rows = np.arange(many)[:, None] * 4 + np.arange(width) % 4
    yield edge(
        op, "many slots and wide rows", "prefill decode offsets",
        {
            "cu_batch_token_offset": [b + (b + 1) // 2 for b in range(many + 1)],
            "draft_logits": np.concatenate([r for b in range(many) for r in ((-rows[b : b + 1], rows[b : b + 1])
                                            if b % 2 == 0 else (rows[b : b + 1],))]),
        },
        logits=logits(rows), first_token_logits=logits(-rows), draft_logits=logits(np.zeros((many * 3 // 2, width))),
        seq_lens_this_time=[1] * many, seq_lens_encoder=[(b + 1) % 2 for b in range(many)],
    )  # fmt: skip


def _first_tokens() -> Iterator[Case]:
    op = "insert_first_token"
    slots: dict[str, Any] = {
        "accept_tokens": [[90 + b, 80 + b] for b in range(5)], "seq_lens_this_time": [2, 5, 0, 1],
        "seq_lens_encoder": [0, 5, 0, 0, 3],
    }  # fmt: skip
    yield edge(
        op, "prefill, decode and idle", "prefill decode untouched", {"draft_token_ids": [1, 2**40, 91, 3, 4, -1]},
        next_tokens=[1, 2**40, 3, 4, 5], draft_token_ids=[-1] * 6, **slots,
    )  # fmt: skip
    for room in range(5):
        yield edge(
            op, f"room for {room}", "capacity", {"draft_token_ids": [1, 2, 91, 3][:room]}, next_tokens=[1, 2, 3, 4, 5],
            draft_token_ids=[-1] * room, **slots,
        )  # fmt: skip
    yield edge(
        op, "tokens that are not there", "capacity", {"draft_token_ids": [1, 2, 91, -9, -9, -9]}, next_tokens=[1, 2],
        draft_token_ids=[-9] * 6, **{**slots, "seq_lens_this_time": [2, 5, -3, 9]},
    )  # fmt: skip
    many = 300
    yield edge(
        op, "many slots", "prefill decode",
        {"draft_token_ids": [t for b in range(many) for t in ([1000 + b, b] if b % 2 else [b])]},
        accept_tokens=[[1000 + b] for b in range(many)], next_tokens=list(range(many)),
        draft_token_ids=[-1] * (many * 3 // 2), seq_lens_this_time=[1] * many,
        seq_lens_encoder=[b % 2 for b in range(many)],
    )  # fmt: skip
