"""Section 3: top_p_candidates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge

PROBS = [[0.25, 0.5, 0.125, 0.125]]


def of(name: str, rules: str, probs: Any, top_p: float, scores: Any, ids: Any, lens: Any, owner: int = 0) -> Case:
    """Rows of one slot."""
    expected = {"candidate_scores": scores, "candidate_ids": ids, "candidate_lens": lens}
    owners = [owner] * len(probs)
    sizes = {"C": len(ids[0])}
    return edge(
        "top_p_candidates", name, rules, expected, sizes, probs=probs, top_p=[top_p], batch_id_per_token_output=owners
    )


def edges() -> Iterator[Case]:
    """top_p_candidates."""
    scores, ids = [[0.5, 0.25, 0.125, 0.125]], [[1, 0, 2, 3]]
    for top_p, length, rules in (
        (0.75, 2, "reached order"), (0.5, 1, "reached"), (0.5000001, 2, "reached"), (0.0, 1, "reached"),
        (1.0, 4, "reached"),
    ):  # fmt: skip
        yield of(f"top p of {top_p}", rules, PROBS, top_p, scores, ids, [length])
    yield of("top p of NaN is 1", "reached conventions#fraction", PROBS, np.nan, scores, ids, [4])
    yield of("top p that C do not reach", "not-reached", PROBS, 0.9, [[0.5, 0.25]], [[1, 0]], [2])
    yield of("no mass at all", "not-reached order", [[0.0, 0.0, 0.0]], 0.5, [[0, 0]], [[0, 1]], [2])
    yield of("NaN counts as 0", "nan", [[np.nan, 0.5, 0.0]], 0.5, [[0.5, 0, 0]], [[1, 0, 2]], [1])
    yield of("tail", "tail", [[0.5, 0.5]], 0.5, [[0, 0]], [[-1, -1]], [0], owner=-1)
    yield of("an owner that is no slot", "tail", [[0.5, 0.5]], 0.5, [[0, 0]], [[-1, -1]], [0], owner=1)
    yield of("ties by ascending id", "order", [[0.25] * 4], 0.5, [[0.25] * 3], [[0, 1, 2]], [2])
