"""Edges that tell the right answer from one that is almost right: each was missing when a mutant got through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import AcceptPolicy, Strategy
from specdec_hal_conformance.building import build, logits
from specdec_hal_conformance.case import Case, Inputs, Workspace
from specdec_hal_conformance.edges.candidates import PROBS
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.edges.kept import HALVES, draws, kept
from specdec_hal_conformance.edges.ngram import LEFTMOST, proposes
from specdec_hal_conformance.edges.verify import OP as VERIFY
from specdec_hal_conformance.edges.verify import slots
from specdec_hal_conformance.expectations import Close, Where

SEEDS = 32
Tokens = NDArray[np.int64]


def edges() -> Iterator[Case]:
    """All sections."""
    yield from _penalties()
    yield from _kept()
    yield from _candidates()
    yield from _rejection()
    yield from _status()
    yield from _ngram()
    yield from _index()
    yield edge(
        "token_logprobs", "equal logits share a rank", "rank", {"ranks": [3]}, {"N": 1}, logits=logits([[2, 2, 2, 1]]),
        rows=[0], token_ids=[0], cu_batch_token_offset=[0, 1],
    )  # fmt: skip


def _penalties() -> Iterator[Case]:
    # Token 1 was generated three times. 3 * 0.1 is rounded before it is subtracted: an equal logit becomes 0.
    one_row: dict[str, Any] = {
        "token_ids_all": [[1, 1, 1]], "prompt_lens": [0], "step_idx": [3], "draft_tokens": [[1]],
        "cu_seqlens_q_output": [0, 1], "batch_id_per_token_output": [0],
    }  # fmt: skip
    tenths = float(np.float32(3) * np.float32(0.1))
    yield edge(
        "apply_penalties", "a product is rounded before it is subtracted", "counts", {"logits": [[1, 0]]},
        {"W": 0, "E": 0}, logits=logits([[1, tenths]]), **one_row, frequency=[0.1],
    )  # fmt: skip
    for name, presence, result in (
        ("up", 2.0**-10, 1.0),
        ("to even", 2.0**-9, 1.0),
        ("to even, downwards", 3 * 2.0**-9, 1 - 2.0**-7),
    ):
        yield edge(
            "apply_penalties", f"bfloat16 is rounded {name}", "counts", {"logits": [[1, result]]}, {"W": 0, "E": 0},
            logits=logits([[1, 1]], "bfloat16"), **one_row, presence=[presence],
        )  # fmt: skip


def _kept() -> Iterator[Case]:
    # Each of the small ones is lost when it is added to 1 in float32; together they are 2^-20.
    small = [0.0] + [-26 * float(np.log(2))] * 64
    some = Where("more than 2 tokens and not all", lambda probs: 2 < int((probs > 0).sum()) < 65)
    yield kept("top p counts what float32 sums lose", "top-p conventions#mass", [small], some, row_top_p=1 - 2.0**-21)
    row = np.random.default_rng(5).normal(size=150).astype(np.float32) * 4
    for temperature in (0.7, 1.3, 3.1):
        weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
        yield kept(
            f"weights at a temperature of {temperature}", "ratio conventions#weight", [row],
            Where("the softmax to five digits", _near(weights / weights.sum())), row_temperature=temperature,
        )  # fmt: skip
    yield kept("a ratio is one division", "ratio", [[0.0] * 41], [[np.float32(1) / np.float32(41)] * 41])
    yield kept("min p is inclusive", "min-p", [HALVES[:3]], Close([[2 / 3, 1 / 3, 0]]), row_min_p=0.5)
    # Two rows with one random number and mirrored probabilities: tokens in the order of their ids, not of their mass.
    mirrored = logits([[0.0, 1.0], [1.0, 0.0]] * 32)
    yield draws(
        "tokens are drawn in the order of their ids", "draw", mirrored,
        Where("some pair of rows agrees", lambda tokens: bool((tokens[::2] == tokens[1::2]).any())),
        position=[i // 2 for i in range(64)],
    )  # fmt: skip


def _near(wanted: NDArray[np.float64]) -> Callable[[NDArray[np.float32]], bool]:
    return lambda probs: np.allclose(probs[0], wanted, rtol=1e-5, atol=1e-12)


def _candidates() -> Iterator[Case]:
    yield edge(
        "top_p_candidates", "top p is the slot's", "reached", {"candidate_lens": [4, 1, 4]}, {"C": 4},
        probs=PROBS * 3, top_p=[0.5, 1.0], batch_id_per_token_output=[1, 0, 1],
    )  # fmt: skip


def _seeded(name: str, rules: str, drafts: Any, holds: Where | list[list[int]], p: Any, q: Any, **given: Any) -> Case:
    """REJECTION of the same slot under many seeds; `p`: rows of a slot, `q`: of its drafts; None: one-hot."""
    probs = {"target_probs": np.array(p * SEEDS, np.float32)}
    if q is not None:
        probs["draft_probs"] = np.array([q] * SEEDS, np.float32)
    per_slot = {name: value * SEEDS if isinstance(value, list) else value for name, value in given.items()}
    arguments = slots([drafts] * SEEDS, Strategy.REJECTION, {"seed": list(range(SEEDS)), **probs, **per_slot})
    return edge(VERIFY, name, rules, {"accept_tokens": holds}, **arguments)


def _first(*wanted: int) -> Where:
    return Where(f"first tokens {wanted}", lambda tokens: set(tokens[:, 0].tolist()) == set(wanted))


def _rejection() -> Iterator[Case]:
    half = [0.5, 0.5, 0.0]
    yield _seeded("some drafts pass and some do not", "rejection one-hot", [0, 1], _first(0, 1), [half, half], None)

    def lengths(tokens: Tokens) -> bool:
        return set((tokens >= 0).sum(axis=1).tolist()) >= {1, 2, 3}

    yield _seeded(
        "each position has a number of its own", "position rejection", [0, 1, 1, 1], Where("1, 2 and 3", lengths),
        [half] * 4, None,
    )  # fmt: skip
    for name, given in (
        ("reject all", {"accept_policy": AcceptPolicy.REJECT_ALL}),
        ("a forced marker", {"reasoning_status": [1]}),
    ):
        yield _seeded(f"{name} takes nothing from p", "bonus", [0, 0], _first(0, 1), [half, half], [[1, 0, 0]], **given)
    second = Where("second tokens 0 and 1", lambda tokens: set(tokens[:, 1].tolist()) == {0, 1})
    yield _seeded("the bonus takes nothing from p", "bonus", [0, 0], second, [[1, 0, 0], half], [[1, 0, 0]])
    yield _seeded(
        "what is impossible never passes", "rejection", [0, 0], [[1, -1]] * SEEDS, [[0, 1], [1, 0]], [[2.0**-40, 1]]
    )
    # p = q for every draft, which then passes for certain; at other positions, and in slot 0, q is larger.
    q = np.zeros((SEEDS, 2, 4), np.float32)
    q[:, 0], q[:, 1], q[0, 0], q[0, 1] = [0.25, 0.75, 0, 0], [0.75, 0.25, 0, 0], [0.75, 0, 0.25, 0], [0, 0.75, 0.25, 0]
    drafts = np.array([[9, 2, 2]] + [[9, 0, 1]] * (SEEDS - 1))
    yield edge(
        VERIFY, "q is that of the slot and the position", "rejection",
        {"accept_tokens": [[*row[1:], 3] for row in drafts.tolist()]},
        **slots(drafts, Strategy.REJECTION, {
            "target_probs": np.array([[0.25] * 4, [0.25] * 4, [0, 0, 0, 1]] * SEEDS, np.float32),
            "draft_probs": q, "seed": list(range(SEEDS)),
        }),
    )  # fmt: skip


def _status() -> Iterator[Case]:
    op = "update_model_status"
    yield edge(
        op, "dec grows only from above 0", "decode", {"seq_lens_decoder": [0, 4]}, {"L": 9, "E": 0},
        seq_lens_this_time=[1, 1], seq_lens_decoder=[0, 3], accept_tokens=[[5], [5]], accept_num=[1, 1],
    )  # fmt: skip
    yield edge(
        op, "the last running slots end", "has-running stop", {"has_running": [False], "stop_flags": [True, True]},
        {"L": 9}, seq_lens_this_time=[1, 1], seq_lens_decoder=[3, 3], step_idx=[1, 1], max_dec_len=[2, 99],
        accept_tokens=[[5], [9]], accept_num=[1, 1], end_tokens=[9],
    )  # fmt: skip
    m = 40
    yield edge(
        op, "forty slots", "count decode history base-token",
        {
            "step_idx": list(range(2, m + 2)), "seq_lens_decoder": [4] * m,
            "draft_tokens": [[100 + b] for b in range(m)], "has_running": [True],
            "token_ids_all": [[100 + b if g == b + 1 else 0 for g in range(m + 2)] for b in range(m)],
        },
        {"L": m + 2, "E": 0},
        seq_lens_this_time=[1] * m, seq_lens_decoder=[3] * m, step_idx=list(range(1, m + 1)),
        accept_tokens=[[100 + b] for b in range(m)], accept_num=[1] * m,
    )  # fmt: skip


def _ngram() -> Iterator[Case]:
    yield from proposes(
        "all tokens of a query are compared", "longest-first leftmost", [1, 2, 9, 7, 1, 2, 3, 8, 5, 1, 2, 3], 8, [8],
        match_policy=LEFTMOST,
    )  # fmt: skip
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1]
    yield from proposes("more wanted than a row holds", "wanted", text, 8, [2, 3, 4, 5, 6], draft_token_num=[9])
    yield edge(
        "ngram_match", "no base token is kept back for an idle slot", "budget", {"seq_lens_this_time": [6, 0, 1]},
        token_ids_all=[text] * 3, prompt_lens=[8] * 3, step_idx=[1] * 3, draft_token_num=[5] * 3, token_budget=7,
        draft_tokens=[[1, 0, 0, 0, 0, 0]] * 3, max_ngram_size=1, match_policy=LEFTMOST, seq_lens_decoder=[8, 0, 8],
        seq_lens_this_time=[1, 1, 1],
    )  # fmt: skip


def _index() -> Iterator[Case]:
    for name, text, prompt_len in (
        ("the last token counts as following", [5] * 8, 4),
        ("a query that ended where an update did", [1, 2, 3, 4, 5, 9, 6, 9], 4),
        ("a query at the prompt's end", [9, 4, 1, 9, 1, 9], 4),
    ):
        yield Case("ngram_index_update", f"edge:{name}", update_of(text, prompt_len), ("append",))


def update_of(text: list[int], prompt_len: int, **given: Any) -> Callable[[Workspace], Inputs]:
    """Inputs of `ngram_index_update` for one decoding slot, `given` instead of what follows from its text."""
    sizes: dict[str, Any] = {"max_ngram_size": 2, "min_ngram_size": 1}

    def make(workspace: Workspace) -> Inputs:
        layout = workspace("ngram_index_update", M=1, L=len(text), **sizes)["index"]
        return build(
            "ngram_index_update", index=np.full(layout.shape, 0xA5, layout.dtype), token_ids_all=[text],
            **{
                "prompt_lens": [prompt_len], "step_idx": [len(text) - prompt_len],
                "seq_lens_decoder": [len(text) - 1], **sizes, **given,
            },
        )  # fmt: skip

    return make
