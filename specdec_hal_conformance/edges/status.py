"""Section 5."""

from __future__ import annotations

from collections.abc import Iterator

from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge

OP = "update_model_status"


def edges() -> Iterator[Case]:
    """update_model_status."""
    yield edge(
        OP, "history as far as it fits", "history count base-token decode",
        {
            "token_ids_all": [[0, 1, 4, 5], [0, 1, 2, 4], [0, 1, 2, 3]], "step_idx": [3, 5, 6],
            "draft_tokens": [[5, 0, 0], [6, 0, 0], [6, 0, 0]], "seq_lens_decoder": [4, 5, 5],
        },
        seq_lens_this_time=[3, 3, 3], seq_lens_decoder=[2, 2, 2], prompt_lens=[1, 1, 4], step_idx=[1, 2, 3],
        token_ids_all=[[0, 1, -1, -1], [0, 1, 2, -1], [0, 1, 2, 3]], accept_tokens=[[4, 5, 6]] * 3,
        accept_num=[2, 3, 3], draft_tokens=[[1, 0, 0]] * 3, end_tokens=[9],
    )  # fmt: skip
    yield edge(
        OP, "an end token and the limit stop", "stop has-running",
        {"stop_flags": [True, True, False], "has_running": [True]},
        {"L": 9},
        seq_lens_this_time=[1, 1, 1], seq_lens_decoder=[3, 3, 3], step_idx=[1, 1, 1],
        accept_tokens=[[9], [5], [5]], accept_num=[1, 1, 1], max_dec_len=[100, 2, 3], end_tokens=[9],
    )  # fmt: skip
    yield edge(
        OP, "slots that ignore end tokens", "ignore-end stop has-running",
        {"stop_flags": [False, True, True], "has_running": [True], "step_idx": [2, 2, 2]},
        {"L": 9},
        seq_lens_this_time=[1, 1, 1], seq_lens_decoder=[3, 3, 3], step_idx=[1, 1, 1],
        accept_tokens=[[9], [9], [9]], accept_num=[1, 1, 1], max_dec_len=[100, 100, 2], end_tokens=[9],
        ignore_end=[True, False, True],
    )  # fmt: skip
    yield edge(
        OP, "a slot that ignores end tokens is cut at the limit alone", "ignore-end cut end-at-limit",
        {"accept_tokens": [[9, 5, 6]], "accept_num": [2], "step_idx": [3], "stop_flags": [True]},
        {"L": 20}, end_at_limit=True,
        seq_lens_this_time=[3], seq_lens_decoder=[3], step_idx=[1], accept_tokens=[[9, 5, 6]], accept_num=[3],
        max_dec_len=[3], end_tokens=[9], ignore_end=[True],
    )  # fmt: skip
    yield edge(
        OP, "only the last token may end", "stop",
        {"stop_flags": [False], "has_running": [True]},
        {"L": 9},
        seq_lens_this_time=[2], seq_lens_decoder=[3], accept_tokens=[[9, 5]], accept_num=[2], end_tokens=[9],
    )  # fmt: skip
    yield edge(
        OP, "tokens end at the first end token or the limit", "cut end-at-limit stop count",
        {
            "accept_tokens": [[5, 9, 6], [5, 8, 6], [5, 6, 7], [5, 6, 7], [8, 6, 7], [8, 6, 7]],
            "accept_num": [2, 2, 3, 2, 1, 1], "step_idx": [3, 3, 4, 3, 4, 9],
            "stop_flags": [True, True, False, False, True, True],
            "draft_tokens": [[9, 0, 0], [8, 0, 0], [7, 0, 0], [6, 0, 0], [8, 0, 0], [8, 0, 0]],
        },
        {"L": 20}, end_at_limit=True,
        seq_lens_this_time=[3] * 6, seq_lens_decoder=[3] * 6, step_idx=[1, 1, 1, 1, 3, 8],
        accept_tokens=[[5, 9, 6], [5, 6, 6], [5, 6, 7], [5, 6, 7], [5, 6, 7], [5, 6, 7]],
        accept_num=[3, 3, 3, 2, 2, 3], max_dec_len=[100, 3, 5, 4, 4, 2], end_tokens=[8, 9],
        draft_tokens=[[0, 0, 0]] * 6,
    )  # fmt: skip
    yield edge(
        OP, "a limit without end tokens cuts alone", "cut end-at-limit",
        {"accept_tokens": [[5, 6, 7]], "accept_num": [2], "step_idx": [3], "stop_flags": [True]},
        {"L": 20, "E": 0}, end_at_limit=True,
        seq_lens_this_time=[3], seq_lens_decoder=[3], step_idx=[1], accept_tokens=[[5, 6, 7]], accept_num=[3],
        max_dec_len=[3],
    )  # fmt: skip
    yield edge(
        OP, "padding is untouched and does not run", "padding has-running stopped",
        {
            "has_running": [False], "stop_flags": [True, False], "seq_lens_decoder": [0, 3], "seq_lens_encoder": [0, 2],
            "accept_num": [0, 2], "step_idx": [1, 1], "accept_tokens": [[5, -1], [5, 6]], "seq_lens_this_time": [0],
        },
        {"L": 4, "S": 2, "E": 0},
        seq_lens_this_time=[1], seq_lens_decoder=[3, 3], seq_lens_encoder=[0, 2], stop_flags=[True, False],
        step_idx=[1, 1], accept_num=[1, 2], accept_tokens=[[5, -1], [5, 6]],
    )  # fmt: skip
    yield edge(
        OP, "a paused slot is stopped and cleared", "stopped",
        {
            "stop_flags": [True], "step_idx": [1], "seq_lens_decoder": [0], "seq_lens_this_time": [0],
            "accept_num": [0], "has_running": [False], "token_ids_all": [[3, 3, 3, 3]],
        },
        {"S": 1, "E": 0},
        seq_lens_this_time=[1], seq_lens_decoder=[3], is_block_step=[True], step_idx=[1], accept_num=[1],
        token_ids_all=[[3, 3, 3, 3]],
    )  # fmt: skip
    yield edge(
        OP, "a chunk that emitted nothing advances", "prefill",
        {
            "seq_lens_encoder": [0], "seq_lens_decoder": [6], "draft_tokens": [[77, 78]], "stop_flags": [False],
            "step_idx": [0],
        },
        {"L": 9, "S": 2, "E": 0},
        seq_lens_this_time=[4], seq_lens_encoder=[4], seq_lens_decoder=[2], prompt_lens=[8], draft_tokens=[[77, 78]],
    )  # fmt: skip
    yield edge(
        OP, "the last chunk of a prompt counts once", "prefill count",
        {
            "seq_lens_encoder": [0], "seq_lens_decoder": [6], "step_idx": [1],
            "token_ids_all": [[1, 1, 1, 1, 1, 1, 8, 0]],
        },
        {"E": 0},
        seq_lens_this_time=[4], seq_lens_encoder=[4], seq_lens_decoder=[2], prompt_lens=[6],
        token_ids_all=[[1, 1, 1, 1, 1, 1, 0, 0]], accept_tokens=[[8, -1]], accept_num=[1], draft_tokens=[[0, 0]],
    )  # fmt: skip
    yield edge(
        OP, "a running slot without tokens keeps its state", "decode base-token",
        {"seq_lens_decoder": [5, 0], "draft_tokens": [[7], [7]], "has_running": [True], "stop_flags": [False, False]},
        {"L": 8, "E": 0},
        seq_lens_this_time=[0, 0], seq_lens_decoder=[5, 0], draft_tokens=[[7], [7]], accept_tokens=[[9], [9]],
        accept_num=[0, 0],
    )  # fmt: skip
