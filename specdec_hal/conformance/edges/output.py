"""Section 7."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal.conformance.building import logits
from specdec_hal.conformance.case import Case
from specdec_hal.conformance.edges.edge import edge
from specdec_hal.conformance.expectations import Close
from specdec_hal.ops.spec import FLOATS

INF = np.inf
LOWEST = float(np.finfo(np.float32).min)


def edges() -> Iterator[Case]:
    """gather_accepted, token_logprobs."""
    yield from _gather()
    yield from _logprobs()


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
