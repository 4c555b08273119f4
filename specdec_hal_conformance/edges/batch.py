"""Section 1."""

from __future__ import annotations

from collections.abc import Iterator

from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge

LARGEST = 2**31 - 1


def edges() -> Iterator[Case]:
    """prepare_inputs."""
    op = "prepare_inputs"
    yield edge(
        op, "prefill decode and idle", "source cu-q cu-k output-rows tails",
        {
            "ids_remove_padding": [10, 11, 12, 20, 21, 0, 0, 0],
            "batch_id_per_token": [0, 0, 0, 1, 1, -1, -1, -1],
            "cu_seqlens_q": [0, 3, 5, 5],
            "cu_seqlens_k": [0, 7, 18, 18],  # slots without tokens do not enter
            "cu_seqlens_q_output": [0, 1, 3, 3],
            "batch_id_per_token_output": [0, 1, 1, -1, -1, -1],
            "num_tokens": [5, 3],
        },
        {"T_cap": 8, "R_cap": 6},
        input_ids=[[10, 11, 12], [0, 0, 0], [0, 0, 0], [13, 0, 0]],
        draft_tokens=[[90, 91, 92], [20, 21, 22], [90, 91, 92], [90, 91, 92]],
        seq_lens_this_time=[3, 2, 0],
        seq_lens_encoder=[3, 0, 0, 1],
        seq_lens_decoder=[4, 9, 5, 1],
    )  # fmt: skip
    zeros = ("ids_remove_padding", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_q_output")
    yield edge(
        op, "all idle", "all-idle tails",
        {
            **{name: [0, 0, 0, 0][: 4 if name == "ids_remove_padding" else 3] for name in zeros},
            "num_tokens": [0, 0], "batch_id_per_token": [-1] * 4, "batch_id_per_token_output": [-1] * 4,
        },
        {"M": 2, "S": 2, "I_cap": 3, "T_cap": 4, "R_cap": 4, "B": 2},
        seq_lens_decoder=[7, 0],
    )  # fmt: skip
    yield edge(
        op, "no slot in use", "all-idle",
        {"cu_seqlens_q": [0], "num_tokens": [0, 0], "ids_remove_padding": [0, 0]},
        {"M": 2, "S": 2, "I_cap": 3, "T_cap": 2, "R_cap": 2, "B": 0},
    )  # fmt: skip
    yield edge(
        op, "what does not fit is reported", "overflow",
        {
            "ids_remove_padding": [1, 2, 3], "batch_id_per_token": [0, 0, 1], "batch_id_per_token_output": [0],
            "num_tokens": [4, 4], "cu_seqlens_q": [0, 2, 4],
        },
        {"M": 2, "I_cap": 1, "T_cap": 3, "R_cap": 1},
        draft_tokens=[[1, 2], [3, 4]], seq_lens_this_time=[2, 2], seq_lens_decoder=[5, 5],
    )  # fmt: skip
    yield edge(
        op, "lengths are clamped and sums saturate", "clamp saturate",
        {
            "cu_seqlens_q": [0, 0, 2, 3, 4], "cu_seqlens_q_output": [0, 0, 2, 3, 4],
            "cu_seqlens_k": [0, 0, 2, LARGEST, LARGEST], "ids_remove_padding": [1, 2, 1, 1, 0, 0, 0, 0],
        },
        {"I_cap": 1, "T_cap": 8, "R_cap": 8},
        draft_tokens=[[1, 2]] * 4, seq_lens_this_time=[-5, 99, 1, 1],
        seq_lens_encoder=[0, 0, 0, -1], seq_lens_decoder=[7, -7, LARGEST, 3],
    )  # fmt: skip
    yield edge(
        op, "a prefill chunk is clamped to its own width", "clamp output-rows",
        {"cu_seqlens_q": [0, 2, 3], "cu_seqlens_q_output": [0, 1, 2], "num_tokens": [3, 2]},
        {"T_cap": 4, "R_cap": 4},
        input_ids=[[5, 6], [7, 8]], draft_tokens=[[1, 2, 3]] * 2,
        seq_lens_this_time=[9, 1], seq_lens_encoder=[9, 1],
    )  # fmt: skip
    yield edge(
        op, "ids are 64 bits wide", "source",
        {"ids_remove_padding": [2**40 + 7, 2**33]},
        {"T_cap": 2, "R_cap": 2, "I_cap": 1},
        draft_tokens=[[2**40 + 7, 2**33]], seq_lens_this_time=[2], seq_lens_decoder=[1],
    )  # fmt: skip
