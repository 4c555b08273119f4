"""Section 3: parameters and penalties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal.ops.spec import FLOATS
from specdec_hal_conformance.building import logits
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge

INF = np.inf
F = np.float32

# Prompt 0 1, generated 2 2, then stale cells; three rows, the drafts 3 and 4 before the second and third.
HISTORY: dict[str, Any] = {
    "token_ids_all": [[0, 1, 2, 2, 9, 9]],
    "prompt_lens": [2],
    "step_idx": [2],
    "draft_tokens": [[2, 3, 4]],
    "cu_seqlens_q_output": [0, 3],
    "batch_id_per_token_output": [0, 0, 0],
}


def edges() -> Iterator[Case]:
    """build_sampling_params, apply_penalties."""
    yield edge(
        "build_sampling_params", "rows and tail", "params position tail",
        {
            "row_temperature": [0.5, 0.5, 0.25, 1], "row_top_p": [F(0.9), F(0.9), F(0.8), 1],
            "row_top_k": [4, 4, 5, 0], "row_min_p": [F(0.1), F(0.1), F(0.2), 0], "row_seed": [7, 7, -1, 0],
            "position": [13, 14, 20, -1],
        },
        temperature=[0.5, 0.25], top_p=[0.9, 0.8], top_k=[4, 5], min_p=[0.1, 0.2], seed=[7, -1],
        prompt_lens=[10, 20], step_idx=[3, 0], cu_seqlens_q_output=[0, 2, 3], batch_id_per_token_output=[0, 0, 1, -1],
    )  # fmt: skip
    yield edge(
        "build_sampling_params", "an owner outside the slots in use is a tail", "tail",
        {"row_temperature": [1, 1, 0.5], "row_seed": [0, 0, 7], "position": [-1, -1, 2]},
        temperature=[0.5, 0.25], seed=[7, 9], prompt_lens=[0, 0], step_idx=[0, 0],
        cu_seqlens_q_output=[0, 1], batch_id_per_token_output=[1, 2, 0],
    )  # fmt: skip
    yield edge(
        "build_sampling_params", "seeds that advance", "row-seeds advance padding seed-wrap",
        {"row_seed": [1007, 2, 1002, 0], "infer_seed": [10, 0, 5, 9], "position": [2, 3, 0, -1]},
        {"B": 3},
        infer_seed=[1007, 997, 1002, 9], seed=[7] * 4, prompt_lens=[2, 0, 0, 0], step_idx=[0] * 4,
        cu_seqlens_q_output=[0, 2, 2, 3], batch_id_per_token_output=[0, 0, 2, 3], row_seed_step=4, seed_increment=12,
        seed_modulus=1009,
    )  # fmt: skip
    op = "apply_penalties"
    untouched = [8.0] * 5
    yield edge(
        op, "row i sees the drafts before it", "history counts repetition",
        {
            "logits": [
                [4, 4, 2.75, 8, 8, *untouched],  # 2 was generated twice: 8 / 2 - 2 * 0.5 - 0.25
                [4, 4, 2.75, 3.25, 8, *untouched],
                [4, 4, 2.75, 3.25, 3.25, *untouched],
            ]
        },
        {"W": 0, "E": 0},
        logits=logits([[8.0] * 10] * 3), **HISTORY, repetition=[2], frequency=[0.5], presence=[0.25],
    )  # fmt: skip
    one_row: dict[str, Any] = {
        "token_ids_all": [[0, 1, 2]], "prompt_lens": [3], "draft_tokens": [[0]], "cu_seqlens_q_output": [0, 1],
        "batch_id_per_token_output": [0],
    }  # fmt: skip
    yield edge(
        op, "repetition multiplies what is not positive", "repetition", {"logits": [[-6, 0, 1.5]]},
        {"W": 0, "E": 0}, logits=logits([[-3, 0, 3]]), **one_row, repetition=[2],
    )  # fmt: skip
    yield edge(
        op, "repetition of zero", "repetition", {"logits": [[0, 0, INF]]},
        {"W": 0, "E": 0}, logits=logits([[-3, 0, 3]]), **one_row, repetition=[0],
    )  # fmt: skip
    yield edge(
        op, "the prompt counts for repetition alone", "counts", {"logits": [[8, 8, 8, 5]]},
        {"W": 0, "E": 0}, logits=logits([[8.0] * 4]), token_ids_all=[[0, 1, 2, 3]], prompt_lens=[3], step_idx=[1],
        draft_tokens=[[3]], cu_seqlens_q_output=[0, 1], batch_id_per_token_output=[0], frequency=[2], presence=[1],
    )  # fmt: skip
    for dtype in FLOATS:
        # Two tokens are generated; the rows would produce the 3rd, 4th and 5th. The fifth may be an end token.
        yield edge(
            op, f"bad tokens and minimum length in {dtype}", "bad-tokens min-length",
            {"logits": [[-INF, 1, -INF, 1], [-INF, 1, -INF, 1], [-INF, 1, 1, 1]]},
            logits=logits([[1.0] * 4] * 3, dtype), **HISTORY | {"draft_tokens": [[2, 3, 3]]},
            bad_tokens=[[0, -1]], end_tokens=[2], min_dec_len=[4],
        )  # fmt: skip
    yield edge(
        op, "ids outside the vocabulary are ignored", "out-of-vocabulary bad-tokens", {"logits": [[3, 6]]},
        logits=logits([[6, 6]]), **one_row | {"token_ids_all": [[-1, 2, 0]]}, repetition=[2],
        bad_tokens=[[-1, 2, 2**40]], end_tokens=[2, -5], min_dec_len=[9],
    )  # fmt: skip
    yield edge(
        op, "tail rows are untouched", "tail", {"logits": [[4, 8], [8, 8]]},
        {"W": 0, "E": 0}, logits=logits([[8, 8], [8, 8]]),
        **one_row | {"token_ids_all": [[0, 0, 0]], "batch_id_per_token_output": [0, -1]}, repetition=[2],
    )  # fmt: skip
    yield edge(
        op, "each 16-bit result is rounded once", "repetition counts",
        {"logits": Rounded},
        {"W": 0, "E": 0}, logits=logits([[1.0, 2.0]], "bfloat16"), token_ids_all=[[1, 1, 1]], prompt_lens=[0],
        step_idx=[3], draft_tokens=[[1]], cu_seqlens_q_output=[0, 1], batch_id_per_token_output=[0],
        repetition=[1.0], frequency=[1 / 512], presence=[1 / 512],
    )  # fmt: skip


# 2 - 3/512 - 1/512 = 1.9921875 is a bfloat16 number; rounding in between would give 2 - 1/128 - ... another one.
Rounded = [[1.0, 1.9921875]]
