"""The ends of bounds: the last value inside and the first outside, and 64-bit values of which 32 bits are not enough.

Each was missing when a mutant with `<` for `<=`, or with 32 bits for 64, got through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import Strategy, TokenOrder
from specdec_hal_conformance.building import logits
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.bitmask import truncated
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.edges.gather import rows_of
from specdec_hal_conformance.edges.kept import draws
from specdec_hal_conformance.edges.near_misses import update_of
from specdec_hal_conformance.edges.ngram import LEFTMOST, proposes
from specdec_hal_conformance.edges.phases import END, NL, constrains, limits
from specdec_hal_conformance.edges.schedule import stops, writes
from specdec_hal_conformance.edges.verify import OP as VERIFY
from specdec_hal_conformance.edges.verify import emits, slots, topp
from specdec_hal_conformance.edges.verify_random import drawn
from specdec_hal_conformance.expectations import Where

WRAP = 2**32
"""A 32-bit integer does not see that this was added."""
UNIFORM = [1 / 64] * 64


def edges() -> Iterator[Case]:
    """All sections."""
    yield from _windows()
    yield from _rejected()
    yield from _positions()
    yield from _verified()
    yield from _status()
    yield from _ngram()
    yield from _index()
    yield from _drafts()
    yield from _thinking()
    yield from _rows()


def _windows() -> Iterator[Case]:
    # Best at 0, 1, 2, 3, 4: 1, 3, 5, 7, 9; second best: 2, 4, 6, 8. A single candidate counts.
    one = [1] * 5
    yield topp("a window that ends with the last draft", "window one-more", [0, 2, 3, 5], [2, 3, 5, 7], one)
    yield topp("a later window that ends with the last draft", "window", [0, 1, 4, 5, 7], [1, 4, 5, 7, 9], one)
    yield topp("a window of one, the last draft", "window", [0, 2, 3], [2, 3, 5], one, verify_window=1)
    yield topp(
        "a window of three that ends with the last draft",
        "window",
        [0, 2, 3, 5, 7],
        [2, 3, 5, 7, 9],
        one,
        verify_window=3,
    )
    yield topp("a window one longer than the drafts", "window", [0, 2, 3, 5, 7], [1], one, verify_window=4)
    yield topp("a window broken at its first position", "window", [0, 2, 4, 5, 7], [1], one)
    yield topp("a window broken at the last draft", "window", [0, 2, 3, 6], [1], one)


def _rejected() -> Iterator[Case]:
    """The first and the last token of the vocabulary, when a one-hot draft is rejected."""
    for draft, p in ((0, [0.5, 0.5, 0.0]), (2, [0.5, 0.0, 0.5])):
        yield drawn(
            f"rejected draft {draft} is not drawn again", "residual one-hot", [0, draft], f"{draft} only if accepted",
            lambda tokens, draft=draft: ((tokens[:, 0] == draft) == (tokens[:, 1] >= 0)).all(), Strategy.REJECTION,
            target_probs=[p, [0.0, 1.0, 0.0]],
        )  # fmt: skip


def _many(tokens: NDArray[np.int64]) -> bool:
    return len(set(tokens.reshape(len(tokens), -1)[:, 0].tolist())) >= 25


def _some_pass(tokens: NDArray[np.int64]) -> bool:
    return 12 <= int((tokens[:, 1] >= 0).sum()) <= 52


def _positions() -> Iterator[Case]:
    """One seed at positions that agree in their lower 32 bits: the random numbers differ all the same."""
    m = 64
    places = [WRAP * b for b in range(m)]
    kinds: tuple[tuple[str, Strategy, list[int], Where, dict[str, Any]], ...] = (
        (
            "bonus", Strategy.REJECTION, [0], Where("many different tokens", _many),
            {"target_probs": np.array([UNIFORM] * m, np.float32)},
        ),
        (
            "candidate", Strategy.TOPP, [0], Where("many different tokens", _many),
            {
                "candidate_ids": [list(range(64))] * m, "candidate_scores": [UNIFORM] * m, "candidate_lens": [64] * m,
                "top_p": [1.0] * m,
            },
        ),
        (
            "acceptance", Strategy.REJECTION, [0, 1], Where("12 to 52 of 64 drafts pass", _some_pass),
            {"target_probs": np.array([[0.5, 0.5]] * 2 * m, np.float32)},
        ),
    )  # fmt: skip
    for name, strategy, drafts, wanted, given in kinds:
        for operand, other in (("step_idx", "prompt_lens"), ("prompt_lens", "step_idx")):
            yield edge(
                VERIFY, f"{name}, {operand} of 64 bits", "position", {"accept_tokens": wanted},
                **slots([drafts] * m, strategy, {
                    **given, "seed": [3] * m, operand: places, other: [5] * m, "max_dec_len": [2**62] * m,
                }),
            )  # fmt: skip
    yield draws(
        "positions that agree in 32 bits", "draw conventions#philox", [UNIFORM] * m,
        Where("many different tokens", _many), row_seed=3, position=places,
    )  # fmt: skip


def _verified() -> Iterator[Case]:
    """Tokens and limits of 64 bits."""
    greedy = Strategy.GREEDY
    yield emits("a draft that agrees in 32 bits", "by-token", [[0, WRAP + 1]], [[1]], greedy, target_tokens=[1, 2])
    yield emits("a draft of 64 bits", "by-token", [[0, WRAP + 1]], [[WRAP + 1, 2]], greedy, target_tokens=[WRAP + 1, 2])
    yield emits(
        "a draft that agrees with a probable token in 32 bits", "no-token", [[0, WRAP + 1]], [[1]], Strategy.REJECTION,
        target_probs=[[0.0, 1.0], [1.0, 0.0]],
    )  # fmt: skip
    yield topp(
        "candidates that agree in 32 bits", "among-candidates window", [0, 1, 3, 5, 7], [WRAP + 1], [2] * 5,
        candidate_ids=[[WRAP + 1, WRAP + 1], [3, 4], [5, 6], [7, 8], [9, 9]],
    )  # fmt: skip
    yield emits(
        "end tokens that agree in 32 bits", "end-token", [[0, 1, 2, 3]], [[1, 2, 3, 4]], target_tokens=[1, 2, 3, 4],
        end_tokens=[WRAP + 2, WRAP + 4],
    )  # fmt: skip
    yield emits(
        "an end token of 64 bits", "end-token", [[0, 1, WRAP + 2, 3]], [[1, WRAP + 2]],
        target_tokens=[1, WRAP + 2, 3, 4], end_tokens=[WRAP + 2],
    )  # fmt: skip
    targets = [1, 2, 3, 4]
    for name, step, limit, count in (
        ("a limit of 64 bits is far away", 6, WRAP + 7, 4),
        ("steps and a limit of 64 bits", WRAP + 6, WRAP + 8, 2),
        ("steps of 64 bits past a limit of 32", WRAP + 6, 10, 1),
        ("a limit after 2^31", 2**31 - 2, 2**31 + 1, 3),
    ):
        yield emits(
            name, "limit past-limit", [[0, 1, 2, 3]], [targets[:count]], target_tokens=targets, step_idx=[step],
            max_dec_len=[limit],
        )  # fmt: skip


def _status() -> Iterator[Case]:
    """Limits, end tokens and prompts of 64 bits."""
    yield edge(
        "update_model_status", "limits and end tokens that agree in 32 bits", "stop has-running",
        {"stop_flags": [False, False, True], "has_running": [True], "step_idx": [4, 4, WRAP + 4]}, {"L": 9},
        seq_lens_this_time=[1] * 3, seq_lens_decoder=[3] * 3, step_idx=[3, 3, WRAP + 3], accept_tokens=[[5]] * 3,
        accept_num=[1] * 3, max_dec_len=[WRAP + 2, 99, WRAP + 4], end_tokens=[WRAP + 5],
    )  # fmt: skip
    yield edge(
        "update_model_status", "counts end with the width and with 0", "count decode base-token",
        {"step_idx": [5, 3], "seq_lens_decoder": [6, 4], "draft_tokens": [[8, 0], [1, 0]]}, {"L": 9, "E": 0},
        seq_lens_this_time=[2] * 2, seq_lens_decoder=[4] * 2, step_idx=[3] * 2, accept_tokens=[[7, 8]] * 2,
        accept_num=[3, -1], draft_tokens=[[1, 0]] * 2,
    )  # fmt: skip
    yield edge(
        "apply_penalties", "end tokens that agree in 32 bits", "min-length out-of-vocabulary", {"logits": [[6, 6]]},
        {"W": 0}, logits=logits([[6, 6]]), token_ids_all=[[0]], prompt_lens=[1], draft_tokens=[[0]],
        cu_seqlens_q_output=[0, 1], batch_id_per_token_output=[0], end_tokens=[WRAP, WRAP + 1], min_dec_len=[9],
    )  # fmt: skip
    # Of 1 2 | 3 4, a prompt beyond the row leaves no generated tokens.
    yield stops(
        "a prompt of 64 bits", "prompt history", ([5, 6], 2, 99), [5, 6], sequences=[[4, 5]],
        token_ids_all=[[1, 2, 3, 4, 5, 9]], prompt_lens=[WRAP + 2], step_idx=[2],
    )  # fmt: skip
    yield writes(
        "tokens of 64 bits", "columns", [1, 2, WRAP + 5, 6, 0, 0, 0], accept_tokens=[[WRAP + 5, 6, 7]], count=2,
        step_idx=[2],
    )  # fmt: skip
    yield writes("after the row, at steps of 64 bits", "clamp", [1, 2, 0, 0, 0, 0, 0], step_idx=[WRAP + 3])
    yield edge(
        "insert_first_token", "a first token of 64 bits", "prefill", {"draft_token_ids": [WRAP + 90, 1, -1]},
        accept_tokens=[[WRAP + 90, 80]], next_tokens=[1, 2], draft_token_ids=[-1] * 3, seq_lens_this_time=[5],
        seq_lens_encoder=[5],
    )  # fmt: skip


def _ngram() -> Iterator[Case]:
    # In the whole row, 1 2 is followed by 3; in the three tokens that 32 bits leave, 1 is followed by 2.
    row = [1, 2, 1, 2, 3, 1, 2]
    own: dict[str, Any] = {
        "token_ids_all": [[9, 2, 3, 4, 5, 9, 1, 2, 3, 7]], "prompt_lens": [6], "seq_lens_decoder": [8],
        "pre_ids": [[1, 2, WRAP + 3, 8]], "step_idx": [2], "match_policy": LEFTMOST,
    }  # fmt: skip
    for op, mtp, in_row, in_prompt in (
        ("ngram_match", [], [3, 1, 2], []), ("hybrid_mtp_ngram", [3], [3, 1, 2, 3], [3, 1, 2])
    ):  # fmt: skip
        given: dict[str, Any] = {"op": op, "mtp": tuple(mtp), "max_dec_len": [2**40]}
        yield from proposes("steps of 64 bits", "query", row, 2, in_row, **given, step_idx=[WRAP + 1])
        yield from proposes("a prompt of 64 bits", "query", row, 2, in_prompt, **given, prompt_lens=[WRAP + 2],
                            max_ngram_size=1, match_policy=LEFTMOST)  # fmt: skip
        given = {"op": op, "mtp": tuple(mtp), **own}
        yield from proposes("a history of its own that agrees in 32 bits", "pre-ids query", [1], 0, mtp, **given)
    long = [1, 2, 3, 4, 5, 6, 7, 8, 1]
    for limit in (WRAP, WRAP + 2):
        for op, drafted in (("ngram_match", ()), ("hybrid_mtp_ngram", (2,))):
            yield from proposes(f"a limit of {limit}", "wanted", long, 8, [2, 3, 4, 5, 6], op=op, mtp=drafted,
                                max_dec_len=[limit])  # fmt: skip
    # Prompt 9, generated 5, drafts 7 5: "5" is the first generated token, and what follows it are the drafts.
    yield from proposes(
        "leftmost, the first generated token before the drafts", "text query", [9, 5], 1, [7, 5, 7, 5],
        op="hybrid_mtp_ngram", mtp=(7, 5), match_policy=LEFTMOST,
    )  # fmt: skip
    yield from proposes("more wanted than a row holds", "wanted", [1, 2, 3, 4, 5, 9, 1], 6, [2, 3, 4, 5, 9],
                        op="hybrid_mtp_ngram", mtp=(2, 3), draft_token_num=[9], use_draft_token_num=True)  # fmt: skip


def _index() -> Iterator[Case]:
    """What the index keeps of values of 64 bits."""
    for name, tokens, given in (
        ("ids of 64 bits", [WRAP + 1, 2, 9, WRAP + 1], {}),
        ("ids that agree in 32 bits", [9, WRAP + 1, 2, 9, 1], {}),
        ("steps of 64 bits", [1, 2, 3, 1, 2, 9, 1, 2], {"step_idx": [2 * WRAP + 2]}),
    ):
        yield Case("ngram_index_update", f"edge:{name}", update_of(tokens, 1, **given), ("append",))


def _drafts() -> Iterator[Case]:
    """Token 0 is a token; a row's last column is one."""
    yield truncated("token 0 is allowed", "bit kept", 5, 5, [0, 3, 40, 5, 0], draft_tokens=[[9, 0, 3, 40, 5]])
    yield truncated(
        "the last token of the mask is allowed", "bit kept", 5, 5, [63, 3, 40, 5, 0], draft_tokens=[[9, 63, 3, 40, 5]]
    )
    # Of rows 4 and 5, the second is the first that there is not.
    yield truncated("the last row of all", "row-range", 9, 9, [8, 8, 8, 8, 7], cu_seqlens_q_output=[4, 9])
    yield truncated("the last row of all forbids", "row-range first", 9, 1, [7] * 4 + [8], cu_seqlens_q_output=[4, 9])
    yield edge(
        "draft_model_postprocess", "draft 0 counts", "count", {"seq_lens_this_time": [3, 4]},
        draft_tokens=[[5, 0, 0, -1], [0, 0, 0, 0]], seq_lens_this_time=[9] * 2, seq_lens_decoder=[1] * 2,
    )  # fmt: skip
    state: dict[str, Any] = {
        "draft_tokens": [[9] * 4], "seq_lens_this_time": [2], "seq_lens_decoder": [28], "step_idx": [5],
        "max_dec_len": [99], "draft_token_num": [9], "base_model_draft_tokens": [[12, 7, 8, 6]],
    }  # fmt: skip
    ids = [61, 62, 63, 64, 65, 66, 67, 68]
    with_history: dict[str, Any] = {"pre_ids": [ids]}
    for name, rules, history in (("", "draft", {}), (", with a second history", "history room", with_history)):
        yield edge(
            "draft_model_update", f"draft 0{name}", rules,
            {
                "draft_tokens": [[0, 9, 9, 9]], "base_model_draft_tokens": [[12, 0, 8, 6]], "has_running": [True],
                "seq_lens_this_time": [1],
            },
            inter_next_tokens=[0], substep=0, **state, **history,
        )  # fmt: skip
    yield edge(
        "draft_model_update", "beyond the last column, with a second history", "history",
        {
            "base_model_draft_tokens": [[12, 7, 8, 6]], "draft_tokens": [[31, 9, 9, 9]], "step_idx": [7],
            "pre_ids": [[*ids[:7], 31]],
        },
        inter_next_tokens=[31], substep=3, pre_ids=[ids], **state,
    )  # fmt: skip


def _thinking() -> Iterator[Case]:
    yield limits(
        "fewer tokens than columns", "think-limit thinking", ([5], 0), [5, 6, 7], think=1, keep_tail=True,
        accept_num=[1],
    )  # fmt: skip
    yield limits(
        "end tokens that agree in 32 bits", "end-token thinking", ([5, 6], 0), [5, 6], think=9, end_tokens=[WRAP + 5]
    )  # fmt: skip
    yield constrains(
        "steps of 64 bits at the border", "boundary mask", {"reasoning_status": [2], "logits": [[-1e10, 2, -1e10]]},
        token_ids_all=[[NL, END, NL, NL]], step_idx=[WRAP + 3], reasoning_status=[1],
    )  # fmt: skip
    border: dict[str, Any] = {
        "token_ids_all": [[7, NL, END, 0, 0, 0]], "step_idx": [3], "reasoning_status": [0],
    }  # fmt: skip
    rows = [[1.0, 2, 3]] * 6
    masked = [-1e10, 2.0, -1e10]
    # Row 2 stands after the drafts that complete the border, NL and NL.
    for name, rules, drafts, end, at in (
        ("the last row of a slot", "every-row", [END, NL, NL, 9, 9], 3, 2),
        ("the row after a slot's last", "every-row untouched", [END, NL, NL, 9, 9], 2, None),
        ("the row of the last draft", "every-row", [END, NL, NL], 3, 2),
        ("more rows than drafts", "every-row", [END, NL, NL], 6, 2),
        ("a line break that agrees in 32 bits", "every-row", [END, WRAP + NL, NL], 3, None),
    ):
        yield constrains(
            name, rules,
            {"reasoning_status": [1], "logits": [masked if i == at else row for i, row in enumerate(rows)]},
            cu_seqlens_q_output=[0, end], logits=logits(rows), draft_tokens=[drafts], **border,
        )  # fmt: skip


def _rows() -> Iterator[Case]:
    """The first row, and the first slot, that there is not."""
    yield edge(
        "token_logprobs", "the row after the last, and the last", "out-of-range logprob",
        {"ids": [[-1], [1]], "logprobs": [[0], [0]], "ranks": [-1, 1]}, {"N": 1},
        logits=logits([[5.0, 5.0], [-np.inf, 2.0]]), rows=[2, 1], token_ids=[0, 1], cu_batch_token_offset=[0, 2],
    )  # fmt: skip
    x = rows_of(1, 2, 3)
    yield edge(
        "eagle_gather_hidden_states", "the row after the last, and the last", "capacity packed",
        {"last_hidden": [[3], [0]], "output_token_num": [2]}, x=x, cu_seqlens_q=[2, 3, 4],
    )  # fmt: skip
    yield edge(
        "eagle_get_self_hidden_states", "the row after the last, and the last", "capacity packed",
        {"last_hidden": [[3], [0]], "output_token_num": [2]}, x=x, cu_seqlens_q=[2, 3, 4], seq_lens_this_time=[1, 1],
    )  # fmt: skip
    yield edge(
        "apply_penalties", "the slot after the last in use is a tail", "tail", {"logits": [[4, 8], [8, 8]]},
        {"W": 0, "E": 0}, logits=logits([[8, 8], [8, 8]]), token_ids_all=[[0, 0, 0]] * 2, prompt_lens=[3] * 2,
        draft_tokens=[[0]] * 2, cu_seqlens_q_output=[0, 1], batch_id_per_token_output=[0, 1], repetition=[2] * 2,
    )  # fmt: skip
    yield edge(
        "gather_next_token", "the slot after the last is a tail", "tail packed", {"out": [[1], [0]]},
        x=rows_of(1, 2), seq_lens_this_time=[1], seq_lens_encoder=[0], cu_seqlens_q=[0, 1],
        cu_seqlens_q_output=[0, 1], batch_id_per_token_output=[0, 1], is_speculative=True, token_order=TokenOrder.SLOT,
    )  # fmt: skip
