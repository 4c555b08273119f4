"""Section 4's draws: what can come out of them, and that they move with seed and position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import Strategy
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.edges.verify import OP, slots
from specdec_hal_conformance.expectations import Where

SLOTS = 200


def drawn(name: str, rules: str, drafts: list[int], says: str, holds: Any, strategy: Strategy, **given: Any) -> Case:
    """The same slot with 200 seeds; `holds` checks their accept_tokens."""
    per_slot = ("top_p", "draft_probs", "max_dec_len")
    repeated = {n: np.concatenate([np.array(v)] * SLOTS) if n not in per_slot else v * SLOTS for n, v in given.items()}
    typed = {n: _typed(n, v) for n, v in repeated.items()}
    arguments = slots([drafts] * SLOTS, strategy, {"seed": list(range(SLOTS)), **typed})
    return edge(OP, name, rules, {"accept_tokens": Where(says, holds)}, **arguments)


def _typed(name: str, value: Any) -> Any:
    kinds = {"candidate_ids": np.int64, "candidate_lens": np.int32}
    return np.array(value, kinds.get(name, np.float32))


def _first(wanted: set[int], least: int = 10) -> Any:
    def holds(tokens: NDArray[np.int64]) -> bool:
        values, counts = np.unique(tokens[:, 0], return_counts=True)
        return set(values.tolist()) == wanted and counts.min() >= least

    return holds


def edges() -> Iterator[Case]:
    """verify_draft_tokens."""
    ids, quarters = [[4, 3, 2, 1]], [[0.25] * 4]
    for top_p, wanted in ((0.25, {4}), (0.75, {4, 3, 2}), (1.0, {4, 3, 2, 1}), (float("nan"), {4, 3, 2, 1})):
        yield drawn(
            f"candidates up to a top p of {top_p}", "candidate-draw conventions#fraction", [0],
            f"{wanted}, each often", _first(wanted),
            Strategy.TOPP, candidate_ids=ids, candidate_scores=quarters, candidate_lens=[4], top_p=[top_p],
        )  # fmt: skip
    # With masses of one unit each, points fall on their borders; what has no mass is never drawn.
    yield drawn(
        "masses of one unit", "candidate-draw conventions#mass conventions#draw", [0], "{3, 1}, each often",
        _first({3, 1}, 70), Strategy.TOPP,
        candidate_ids=ids, candidate_scores=[[0.0, 2.0**-40, 0.0, 2.0**-40]], candidate_lens=[4], top_p=[1.0],
    )  # fmt: skip
    yield drawn(
        "candidates after the length", "candidate-draw", [0], "{4, 3}, each often", _first({4, 3}), Strategy.TOPP,
        candidate_ids=ids, candidate_scores=quarters, candidate_lens=[2], top_p=[1.0],
    )  # fmt: skip
    p = [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    rejection = Strategy.REJECTION
    yield drawn(
        "the impossible is never taken", "rejection one-hot residual", [0, 2], "{0, 1}, each often", _first({0, 1}),
        rejection, target_probs=p,
    )  # fmt: skip
    yield drawn(
        "the equal is never refused", "rejection bonus", [0, 1], "always 1, 2",
        lambda tokens: (tokens == [1, 2]).all(), rejection, target_probs=p, draft_probs=[[p[0]]],
    )  # fmt: skip
    yield drawn(
        "half of the one-hot drafts pass", "one-hot rejection", [0, 1], "1 in 70 to 130 of 200",
        lambda tokens: 70 <= (tokens[:, 1] == 2).sum() <= 130, rejection, target_probs=p,
    )  # fmt: skip
    yield drawn(
        "a rejected draft is not drawn again", "residual", [0, 1], "1 only if accepted",
        lambda tokens: ((tokens[:, 0] == 1) == (tokens[:, 1] >= 0)).all(), rejection, target_probs=p,
    )  # fmt: skip
    yield drawn(
        "the residual is p less q", "residual", [0, 0], "rejected: always 1",
        lambda tokens: set(tokens[tokens[:, 1] < 0, 0].tolist()) == {1}, rejection,
        target_probs=[[0.25, 0.5, 0.25], [0, 0, 1]], draft_probs=[[[0.5, 0.25, 0.25]]],
    )  # fmt: skip
    uniform = [[1 / 64] * 64] * 2
    yield drawn(
        "acceptance and bonus are independent draws", "position bonus", [0, 5], "many different bonus tokens",
        lambda tokens: len(set(tokens[:, 1].tolist())) >= 30, rejection, target_probs=uniform,
        draft_probs=[[[1 / 64] * 64]],
    )  # fmt: skip
    m = 64
    yield edge(
        OP, "draws move with the position", "position", {"accept_tokens": Where("many different", _many)},
        **slots(np.zeros((m, 1), np.int64), rejection, {
            "target_probs": np.full((m, 64), 1 / 64, np.float32), "seed": [3] * m, "step_idx": list(range(m)),
            "prompt_lens": list(range(0, 2 * m, 2)),
        }),
    )  # fmt: skip
    yield edge(
        OP, "draws are those of the position, whatever the slot", "position",
        {"accept_tokens": Where("all equal", lambda tokens: len(set(tokens[:, 0].tolist())) == 1)},
        **slots(np.zeros((m, 1), np.int64), rejection, {
            "target_probs": np.full((m, 64), 1 / 64, np.float32), "seed": [3] * m, "step_idx": list(range(m)),
            "prompt_lens": [100 - b for b in range(m)],
        }),
    )  # fmt: skip


def _many(tokens: NDArray[np.int64]) -> bool:
    return len(set(tokens[:, 0].tolist())) >= 25
