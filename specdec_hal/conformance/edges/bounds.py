"""The ends of bounds: the last value inside and the first outside, and 64-bit values of which 32 bits are not enough.

Each was missing when a mutant with `<` for `<=`, or with 32 bits for 64, got through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.conformance.building import logits
from specdec_hal.conformance.case import Case
from specdec_hal.conformance.edges.bitmask import truncated
from specdec_hal.conformance.edges.edge import edge
from specdec_hal.conformance.edges.gather import rows_of
from specdec_hal.conformance.edges.kept import draws
from specdec_hal.conformance.edges.ngram import LEFTMOST, proposes
from specdec_hal.conformance.edges.verify import OP as VERIFY
from specdec_hal.conformance.edges.verify import emits, slots, topp
from specdec_hal.conformance.edges.verify_random import drawn
from specdec_hal.conformance.expectations import Where
from specdec_hal.ops import Strategy, TokenOrder

WRAP = 2**32
"""A 32-bit integer does not see that this was added."""
UNIFORM = [1 / 64] * 64


def edges() -> Iterator[Case]:
    """All sections."""
    yield from _windows()
    yield from _rejected()
    yield from _positions()
    yield from _limits()
    yield from _ngram()
    yield from _drafts()
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


def _limits() -> Iterator[Case]:
    """Limits of 64 bits."""
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


def _ngram() -> Iterator[Case]:
    # Prompt 9, generated 5, drafts 7 5: "5" is the first generated token, and what follows it are the drafts.
    yield from proposes(
        "leftmost, the first generated token before the drafts", "text query", [9, 5], 1, [7, 5, 7, 5],
        op="hybrid_mtp_ngram", mtp=(7, 5), match_policy=LEFTMOST,
    )  # fmt: skip


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
    for name, rules, history in (("", "draft", {}), (", with a second history", "history room", {"pre_ids": [ids]})):
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
