"""Section 9."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.edges.gather import rows_of

PREPROCESS = "draft_model_preprocess"
UPDATE = "draft_model_update"
POSTPROCESS = "draft_model_postprocess"
GET = "eagle_get_hidden_states"
GATHER = "eagle_gather_hidden_states"
GET_SELF = "eagle_get_self_hidden_states"


def edges() -> Iterator[Case]:
    """All ops of the section."""
    yield from _preprocess()
    yield from _update()
    yield from _postprocess()
    yield from _get()
    yield from _pack()


def _slots(count: int, given: Mapping[str, Any], width: int = 3) -> dict[str, Any]:
    """What `draft_model_preprocess` takes: slots that have just decoded two tokens, 11 and 12, but for `given`."""
    usual = {
        "draft_tokens": [9] * width, "input_ids": [8] * 4, "stop_flags": True, "seq_lens_this_time": 1,
        "seq_lens_encoder": 0, "seq_lens_decoder": 50, "step_idx": 90, "accept_tokens": [11, 12, 13][:width],
        "accept_num": 2, "base_model_seq_lens_decoder": 30, "base_model_step_idx": 5, "base_model_stop_flags": False,
        "max_dec_len": 99, "draft_token_num": 2, "base_model_draft_tokens": [12, 21, 22][:width],
    }  # fmt: skip
    return {**{name: [value] * count for name, value in usual.items()}, **given}


def _preprocess() -> Iterator[Case]:
    yield edge(
        PREPROCESS, "two of three tokens are accepted", "accepted rollback step no-drafts running",
        {
            "draft_tokens": [[11, 12, 9]], "stop_flags": [False], "seq_lens_this_time": [2], "seq_lens_decoder": [28],
            "step_idx": [5], "has_running": [True], "base_model_draft_tokens": [[12, -1, -1]],
            "input_ids": [[8] * 4], "seq_lens_encoder": [0],
        },
        **_slots(1, {}),
    )  # fmt: skip
    idle = {"stop_flags": [True], "seq_lens_this_time": [0], "seq_lens_decoder": [0], "step_idx": [0]}
    for name, given in (
        ("the target has stopped", {"base_model_stop_flags": [True]}),
        ("no drafts wanted", {"draft_token_num": [0]}),
        ("less than none wanted", {"draft_token_num": [-1]}),
        ("one token is left", {"max_dec_len": [6]}),
        ("beyond the limit", {"max_dec_len": [-(2**63)], "base_model_step_idx": [2**62]}),
        ("nothing was accepted", {"accept_num": [0]}),
        ("less than nothing was accepted", {"accept_num": [-1]}),
        ("a chunk of a request without drafts", {"seq_lens_encoder": [2], "draft_token_num": [0]}),
    ):
        yield edge(
            PREPROCESS, name, "idle no-drafts running",
            {
                **idle, "seq_lens_encoder": [0], "has_running": [False], "draft_tokens": [[9] * 3],
                "base_model_draft_tokens": [[12, -1, -1]], "input_ids": [[8] * 4],
            },
            **_slots(1, {"stop_flags": [False], **given}),
        )  # fmt: skip
    yield edge(
        PREPROCESS, "two tokens are left", "accepted step",
        {"stop_flags": [False], "seq_lens_this_time": [2]}, **_slots(1, {"max_dec_len": [7]}),
    )  # fmt: skip
    yield edge(
        PREPROCESS, "the last chunk, one inside the prompt, and one as wide as the row", "chunk first-token step",
        {
            "input_ids": [[8, 11, 8, 8], [8] * 4, [8, 8, 8, 11]], "seq_lens_this_time": [2, 3, 4],
            "seq_lens_encoder": [2, 3, 4], "seq_lens_decoder": [50] * 3, "draft_tokens": [[9] * 3] * 3,
            "step_idx": [1, 0, 5], "stop_flags": [False] * 3,
        },
        **_slots(3, {
            "seq_lens_encoder": [2, 3, 9], "accept_num": [1, 0, 2], "base_model_step_idx": [1, 0, 5],
        }),
    )  # fmt: skip
    yield edge(
        PREPROCESS, "counts beyond the row, and a cache shorter than what was accepted", "accepted rollback",
        {"draft_tokens": [[11, 12, 13]] * 2, "seq_lens_this_time": [3, 3], "seq_lens_decoder": [27, 0]},
        **_slots(2, {"accept_num": [7, 3], "base_model_seq_lens_decoder": [30, 2]}),
    )  # fmt: skip
    yield edge(
        PREPROCESS, "ids of 64 bits, and a negative chunk", "accepted",
        {"draft_tokens": [[2**40 + 1, 12, 9]], "seq_lens_encoder": [0]},
        **_slots(1, {"accept_tokens": [[2**40 + 1, 12, 13]], "seq_lens_encoder": [-3]}),
    )  # fmt: skip
    yield edge(
        PREPROCESS, "without drafts in the row", "accepted no-drafts",
        {"draft_tokens": [[11]], "base_model_draft_tokens": [[12]], "seq_lens_this_time": [1]},
        **_slots(1, {"accept_num": [1]}, width=1),
    )  # fmt: skip
    yield edge(
        PREPROCESS, "padding is untouched", "padding running",
        {
            "draft_tokens": [[9] * 3] * 2, "stop_flags": [True, False], "seq_lens_decoder": [0, 50],
            "step_idx": [0, 90], "base_model_draft_tokens": [[12, -1, -1], [12, 21, 22]], "has_running": [False],
        },
        **_slots(2, {"seq_lens_this_time": [1], "accept_num": [0, 2], "stop_flags": [False] * 2}),
    )  # fmt: skip
    yield edge(
        PREPROCESS, "nobody", "running", {"has_running": [False]}, **_slots(1, {"seq_lens_this_time": []}),
    )  # fmt: skip
    yield from _preprocess_history()
    many = 70
    yield edge(
        PREPROCESS, "only the last of seventy slots", "running idle accepted",
        {
            "has_running": [True], "stop_flags": [True] * 69 + [False], "seq_lens_this_time": [0] * 69 + [2],
            "base_model_draft_tokens": [[12, -1, -1]] * many,
        },
        **_slots(many, {"base_model_stop_flags": [True] * 69 + [False], "stop_flags": [False] * many}),
    )  # fmt: skip


def _preprocess_history() -> Iterator[Case]:
    ids = [61, 62, 63, 64, 65, 66]
    yield edge(
        PREPROCESS, "accepted tokens go to the second history", "history column accepted rollback",
        {
            "pre_ids": [[61, 62, 63, 11, 12, 66]], "step_idx": [3], "seq_lens_this_time": [2],
            "seq_lens_decoder": [28], "draft_tokens": [[11, 12, 9]],
        },
        **_slots(1, {"pre_ids": [ids]}),
    )  # fmt: skip
    yield edge(
        PREPROCESS, "a prompt's token, and one of a prompt that goes on", "history column nothing-accepted chunk",
        {
            "pre_ids": [[11, *ids[1:]]] * 2, "step_idx": [0, 3], "seq_lens_this_time": [2, 3],
            "input_ids": [[8, 11, 8, 8], [8, 8, 11, 8]], "seq_lens_decoder": [50] * 2,
        },
        **_slots(2, {
            "pre_ids": [ids] * 2, "seq_lens_encoder": [2, 3], "accept_num": [1, 0], "base_model_step_idx": [1, 4],
        }),
    )  # fmt: skip
    yield edge(
        PREPROCESS, "nothing was accepted, and a second history", "nothing-accepted running column",
        {
            "stop_flags": [False], "has_running": [True], "seq_lens_this_time": [0], "step_idx": [5],
            "seq_lens_decoder": [30], "pre_ids": [ids], "draft_tokens": [[9] * 3],
        },
        **_slots(1, {"pre_ids": [ids], "accept_num": [0]}),
    )  # fmt: skip
    yield edge(
        PREPROCESS, "beyond the second history", "history column",
        {
            "pre_ids": [[61, 62, 63, 64, 65, 11], [12, *ids[1:]], ids, ids],
            "step_idx": [5, -1, 2**62, 2**63 - 2],
        },
        **_slots(4, {
            "pre_ids": [ids] * 4, "base_model_step_idx": [7, 1, 2**62 + 2, -(2**63)], "max_dec_len": [2**63 - 1] * 4,
        }),
    )  # fmt: skip
    yield edge(
        PREPROCESS, "room for all drafts", "idle step",
        {"stop_flags": [True, False, True], "step_idx": [0, 5, 0], "has_running": [True]},
        **_slots(3, {"max_dec_len": [7, 8, -(2**63)], "min_room": 3}),
    )  # fmt: skip


def _draft_slots(count: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """What `draft_model_update` takes: slots that were fed two tokens and may make two drafts, but for `given`."""
    usual = {
        "draft_tokens": [9] * 4, "seq_lens_this_time": 2, "seq_lens_encoder": 0, "seq_lens_decoder": 28,
        "step_idx": 5, "stop_flags": False, "max_dec_len": 99, "draft_token_num": 2,
        "base_model_draft_tokens": [12, -1, -1, -1],
    }  # fmt: skip
    return {**{name: [value] * count for name, value in usual.items()}, "substep": 0, **given}


def _update() -> Iterator[Case]:
    yield edge(
        UPDATE, "a first draft", "draft cached next running",
        {
            "draft_tokens": [[31, 9, 9, 9]], "base_model_draft_tokens": [[12, 31, -1, -1]], "step_idx": [6],
            "seq_lens_decoder": [30], "seq_lens_this_time": [1], "has_running": [True],
        },
        inter_next_tokens=[31], **_draft_slots(1, {}),
    )  # fmt: skip
    last = {"base_model_draft_tokens": [[12, 7, 31, -1]], "seq_lens_this_time": [0], "has_running": [False]}
    for name, given in (
        ("the last draft wanted", {}),
        ("the last draft before the limit", {"draft_token_num": [9], "max_dec_len": [7]}),
    ):
        yield edge(
            UPDATE, name, "draft next running", {**last, "step_idx": [6], "seq_lens_decoder": [29]},
            inter_next_tokens=[31],
            **_draft_slots(1, {
                "substep": 1, "seq_lens_this_time": [1], "base_model_draft_tokens": [[12, 7, -1, -1]], **given,
            }),
        )  # fmt: skip
    yield edge(
        UPDATE, "the last column", "draft next",
        {"base_model_draft_tokens": [[12, 7, 8, 31]], "seq_lens_this_time": [0]},
        inter_next_tokens=[31],
        **_draft_slots(1, {"substep": 2, "draft_token_num": [9], "base_model_draft_tokens": [[12, 7, 8, 6]]}),
    )  # fmt: skip
    refused: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("more drafts than wanted", "none", {"draft_token_num": [0]}),
        ("no room for a draft", "none", {"max_dec_len": [6]}),
        ("far beyond the limit", "none", {"max_dec_len": [-(2**63)], "step_idx": [2**62]}),
        ("no token", "none", {"inter_next_tokens": [-1]}),
        ("no token of 64 bits", "none", {"inter_next_tokens": [-(2**63)]}),
        ("a stopped slot", "none", {"stop_flags": [True]}),
        ("a chunk inside the prompt", "inside-prompt none cached", {"step_idx": [0], "seq_lens_encoder": [2]}),
        ("no row for the token", "capacity none", {"inter_next_tokens": []}),
    )
    for name, rules, given in refused:
        step = given.get("step_idx", [5])
        yield edge(
            UPDATE, name, rules,
            {
                "draft_tokens": [[9] * 4], "base_model_draft_tokens": [[12, -1, 22, 23]], "step_idx": step,
                "seq_lens_decoder": [30], "seq_lens_encoder": [0], "seq_lens_this_time": [0], "has_running": [False],
            },
            **{
                "inter_next_tokens": [31],
                **_draft_slots(1, {"base_model_draft_tokens": [[12, 21, 22, 23]], **given}),
            },
        )  # fmt: skip
    yield edge(
        UPDATE, "beyond the last column", "none",
        {"base_model_draft_tokens": [[12, 7, 8, 6]], "seq_lens_this_time": [0], "draft_tokens": [[9] * 4]},
        inter_next_tokens=[31],
        **_draft_slots(1, {"substep": 3, "draft_token_num": [9], "base_model_draft_tokens": [[12, 7, 8, 6]]}),
    )  # fmt: skip
    yield edge(
        UPDATE, "tokens go by rank, and idle slots keep what they have", "rank untouched running",
        {
            "base_model_draft_tokens": [[12, -1, -1, -1], [12, 31, -1, -1], [12, -1, -1, -1], [12, 32, -1, -1]],
            "seq_lens_this_time": [0, 1, -1, 1], "seq_lens_decoder": [28, 29, 28, 31],
            "seq_lens_encoder": [0, 0, 4, 0], "has_running": [True],
        },
        inter_next_tokens=[31, 32, 33],
        **_draft_slots(4, {"seq_lens_this_time": [0, 1, -1, 3], "seq_lens_encoder": [0, 0, 4, 3]}),
    )  # fmt: skip
    yield edge(
        UPDATE, "padding is untouched", "untouched running",
        {"seq_lens_decoder": [28, 28], "base_model_draft_tokens": [[12, -1, -1, -1]] * 2, "has_running": [False]},
        inter_next_tokens=[31, 32], **_draft_slots(2, {"seq_lens_this_time": [0]}),
    )  # fmt: skip
    yield from _update_history()
    many = 75
    active = [b % 3 != 0 for b in range(many)]
    yield edge(
        UPDATE, "seventy-five slots", "rank running",
        {
            "base_model_draft_tokens": [
                [12, 2**40 + sum(active[:b]) if active[b] else -1, -1, -1] for b in range(many)
            ],
            "seq_lens_this_time": [int(yes) for yes in active],
        },
        inter_next_tokens=[2**40 + k for k in range(many)],
        **_draft_slots(many, {"seq_lens_this_time": [2 * yes for yes in active]}),
    )  # fmt: skip


def _update_history() -> Iterator[Case]:
    ids = [61, 62, 63, 64, 65, 66, 67, 68]

    def noted(column: int) -> list[int]:
        return [*ids[:column], 31, *ids[column + 1 :]]

    yield edge(
        UPDATE, "a draft goes to the second history", "history rank running",
        {
            "pre_ids": [noted(7), noted(1)], "step_idx": [7, 1], "seq_lens_decoder": [30, 31],
            "seq_lens_encoder": [0, 0], "seq_lens_this_time": [1, 1], "draft_tokens": [[31, 9, 9, 9]] * 2,
            "base_model_draft_tokens": [[12, 31, -1, -1]] * 2, "has_running": [True],
        },
        inter_next_tokens=[31, 31],
        **_draft_slots(2, {"pre_ids": [ids] * 2, "step_idx": [5, 0], "seq_lens_encoder": [0, 3],
                           "draft_token_num": [0, 0]}),
    )  # fmt: skip
    yield edge(
        UPDATE, "no room in the second history, or after it", "room history",
        {
            "pre_ids": [ids, noted(1), ids, ids], "step_idx": [5, 6, 8, 2**62 + 2],
            "seq_lens_decoder": [28, 31, 30, 30],
            "seq_lens_this_time": [1] * 4, "draft_tokens": [[9] * 4, [31, 9, 9, 9], [31, 9, 9, 9], [31, 9, 9, 9]],
            "base_model_draft_tokens": [[12, -1, -1, -1]] * 2 + [[12, 31, -1, -1]] * 2,
        },
        inter_next_tokens=[31] * 4,
        **_draft_slots(4, {
            "pre_ids": [ids] * 4, "max_dec_len": [6, 6, 99, 2**63 - 1], "step_idx": [5, 5, 6, 2**62],
            "seq_lens_encoder": [0, 3, 0, 0], "base_model_draft_tokens": [[12, 21, -1, -1]] * 4,
        }),
    )  # fmt: skip
    for name, given in (
        ("a stopped slot with a second history", {"stop_flags": [True]}),
        ("no token for a second history", {"inter_next_tokens": [-1]}),
        ("no row for a second history", {"inter_next_tokens": []}),
    ):
        yield edge(
            UPDATE, name, "ended running",
            {
                "draft_tokens": [[-1, 9, 9, 9]], "base_model_draft_tokens": [[12, -1, -1, -1]], "pre_ids": [ids],
                "seq_lens_this_time": [0], "seq_lens_encoder": [0], "seq_lens_decoder": [28], "step_idx": [5],
                "has_running": [False],
            },
            **{
                "inter_next_tokens": [31],
                **_draft_slots(1, {
                    "pre_ids": [ids], "seq_lens_encoder": [3], "base_model_draft_tokens": [[12, 21, -1, -1]], **given,
                }),
            },
        )  # fmt: skip


def _postprocess() -> Iterator[Case]:
    yield edge(
        POSTPROCESS, "drafts up to the first that is none", "count",
        {"seq_lens_this_time": [4, 3, 1, 1]},
        draft_tokens=[[5, 6, 7, 2**40], [5, 6, 7, -1], [5, -1, 7, 8], [-1, -(2**63), -1, -1]],
        seq_lens_this_time=[9] * 4, seq_lens_decoder=[1] * 4,
    )  # fmt: skip
    yield edge(
        POSTPROCESS, "stopped, prefill, idle and stopped prefill", "stopped prefill idle",
        {"seq_lens_this_time": [0, 9, 0, 0, 0]},
        draft_tokens=[[5, 6]] * 5, seq_lens_this_time=[9] * 5, seq_lens_encoder=[0, 3, 0, 3, -1],
        seq_lens_decoder=[4, 0, 0, 4, -1], stop_flags=[True, False, False, True, False],
    )  # fmt: skip
    yield edge(
        POSTPROCESS, "a row without drafts", "count", {"seq_lens_this_time": [1]},
        draft_tokens=[[5]], seq_lens_this_time=[0], seq_lens_decoder=[3],
    )  # fmt: skip
    many = 70
    yield edge(
        POSTPROCESS, "seventy slots", "count stopped", {"seq_lens_this_time": [0 if b % 5 else 2 for b in range(many)]},
        draft_tokens=[[5, 6, -1]] * many, seq_lens_this_time=[3] * many, seq_lens_decoder=[1] * many,
        stop_flags=[b % 5 != 0 for b in range(many)],
    )  # fmt: skip


def _get() -> Iterator[Case]:
    x = rows_of(1, 2, 3, 4, 5, 6, 7, 8)
    yield edge(
        GET, "accepted tokens, a whole chunk, a slot that has stopped", "rows tail",
        {"out": [[1], [2], [4], [5], [6], [0], [0], [0]]},
        x=x, cu_seqlens_q=[0, 2, 5, 5], base_model_cu_seqlens_q=[0, 3, 6, 8],
        batch_id_per_token=[0, 0, 1, 1, 1, -1, -1, -1],
    )  # fmt: skip
    yield edge(
        GET, "slots out of range", "tail", {"out": [[0]] * 8}, x=x, cu_seqlens_q=[0, 8],
        base_model_cu_seqlens_q=[0, 8], batch_id_per_token=[1, -1, 2, 2**31 - 1, -(2**31), 1, 1, 1],
    )  # fmt: skip
    yield edge(
        GET, "rows that the target's step does not have", "beyond", {"out": [[0], [4], [5], [0], [0], [0], [0], [0]]},
        x=x, cu_seqlens_q=[1, 4], base_model_cu_seqlens_q=[3, 5], batch_id_per_token=[0, 0, 0, 0, -1, -1, -1, -1],
    )  # fmt: skip
    yield edge(
        GET, "rows that x does not have", "capacity", {"out": [[0], [0], [0], [1], [8], [0], [0], [0]]},
        x=x, cu_seqlens_q=[0, 4, 8], base_model_cu_seqlens_q=[-3, 7, 2**31 - 1],
        batch_id_per_token=[0, 0, 0, 0, 1, 1, 1, 1],
    )  # fmt: skip
    wide = np.arange(3 * 1025, dtype=np.float32).reshape(3, 1025)
    yield edge(
        GET, "wide rows", "rows tail", {"out": np.stack([wide[1], wide[2], 0 * wide[0]])}, x=wide,
        cu_seqlens_q=[0, 0, 2], base_model_cu_seqlens_q=[0, 1, 3], batch_id_per_token=[1, 1, -1],
    )  # fmt: skip


def _pack() -> Iterator[Case]:
    x = rows_of(1, 2, 3, 4, 5, 6)
    yield edge(
        GATHER, "the last rows of slots with rows", "packed count tail",
        {"last_hidden": [[2], [3], [6], [0], [0]], "output_token_num": [3]}, x=x, cu_seqlens_q=[0, 2, 2, 3, 6, 6],
    )  # fmt: skip
    yield edge(
        GATHER, "no slot has rows", "count tail", {"last_hidden": [[0], [0]], "output_token_num": [0]}, x=x,
        cu_seqlens_q=[0, 0, 0],
    )  # fmt: skip
    yield edge(
        GATHER, "rows that x does not have", "capacity count packed",
        {"last_hidden": [[0], [6], [0], [0]], "output_token_num": [3]}, x=x, cu_seqlens_q=[-4, -2, 6, 9, 1],
    )  # fmt: skip
    yield edge(
        GET_SELF, "slots that go on", "active packed count tail",
        {"last_hidden": [[2], [6], [0], [0]], "output_token_num": [2]}, x=x, cu_seqlens_q=[0, 2, 3, 6, 6],
        seq_lens_this_time=[1, 0, 1, -1],
    )  # fmt: skip
    yield edge(
        GET_SELF, "a slot without rows, and rows that x does not have", "no-rows capacity packed count",
        {"last_hidden": [[2], [0], [0]], "output_token_num": [3]}, x=x, cu_seqlens_q=[0, 2, 2, 9],
        seq_lens_this_time=[1, 1, 1],
    )  # fmt: skip
    yield edge(
        GET_SELF, "offsets that descend", "no-rows", {"last_hidden": [[0], [4]], "output_token_num": [2]}, x=x,
        cu_seqlens_q=[5, 3, 4], seq_lens_this_time=[1, 1],
    )  # fmt: skip
    yield edge(
        GET_SELF, "nobody goes on", "count tail", {"last_hidden": [[0], [0]], "output_token_num": [0]}, x=x,
        cu_seqlens_q=[0, 1, 2], seq_lens_this_time=[0, 0],
    )  # fmt: skip
    many = 300
    lengths = [b % 2 for b in range(many)]
    rows = np.arange(many // 2 * 1025, dtype=np.float32).reshape(many // 2, 1025)
    for op in (GATHER, GET_SELF):
        given: dict[str, Any] = {} if op == GATHER else {"seq_lens_this_time": []}
        yield edge(op, "no slots", "count", {"output_token_num": [0]}, x=x, cu_seqlens_q=[0], **given)
        given = {} if op == GATHER else {"seq_lens_this_time": lengths}
        yield edge(
            op, "three hundred slots", "packed count tail",
            {"last_hidden": np.concatenate([rows, 0 * rows]), "output_token_num": [many // 2]},
            x=rows, cu_seqlens_q=np.cumsum([0, *lengths]).astype(np.int32), **given,
        )  # fmt: skip
