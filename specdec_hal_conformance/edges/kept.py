"""Section 3: the kept set, the draw and the distribution, of `sample_target` and `processed_probs` alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from specdec_hal.ops import Purpose
from specdec_hal.ops.spec import FLOATS
from specdec_hal_conformance.building import logits
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.expectations import Close, Where

INF = np.inf
HALVES = [float(np.log(0.5)), float(np.log(0.25)), float(np.log(0.125)), float(np.log(0.125))]
TIES = [[1, 3, 3, 2], [2, 2, 2, 2], [0, 0, 5, 5]]


def _row_params(count: int, params: dict[str, Any]) -> dict[str, Any]:
    spread = {
        name: [value] * count if np.isscalar(value) and not isinstance(value, Purpose) else value
        for name, value in params.items()
    }
    return {"position": list(range(count)), **spread}


def draws(name: str, rules: str, rows: Any, wanted: Any, dtype: str = "float32", **params: Any) -> Case:
    """`sample_target` of rows; `wanted`: the tokens, or the set of all tokens that come out."""
    array = logits(rows, dtype)
    if isinstance(wanted, set):
        exactly = frozenset(wanted)
        wanted = Where(f"exactly the tokens {sorted(exactly)}", lambda tokens: set(tokens.tolist()) == exactly)
    given = _row_params(len(array), params)
    return edge("sample_target", name, rules, {"target_tokens": wanted}, logits=array, **given)


def kept(name: str, rules: str, rows: Any, wanted: Any, dtype: str = "float32", **params: Any) -> Case:
    """`processed_probs` of rows; `wanted`: probabilities, or True where a token is kept."""
    array = logits(rows, dtype)
    if isinstance(wanted, list) and isinstance(wanted[0][0], bool):
        pattern = np.array(wanted)
        wanted = Where(f"positive at {wanted}", lambda probs: bool(((probs > 0) == pattern).all()))
    given = _row_params(len(array), params)
    return edge("processed_probs", name, rules, {"probs": wanted}, logits=array, **given)


def edges() -> Iterator[Case]:
    """sample_target, processed_probs."""
    for dtype in FLOATS:
        yield draws(
            f"ties go to the smaller id in {dtype}",
            "greedy conventions#ties",
            TIES,
            [1, 0, 2],
            dtype,
            row_temperature=0,
        )
        yield draws(f"ties at top k in {dtype}", "top-k", TIES, [1, 0, 2], dtype, row_top_k=1)
        yield draws(f"ties at top p in {dtype}", "top-p survivor", TIES, [1, 0, 2], dtype, row_top_p=0)
        yield kept(
            f"ties are kept by ascending id in {dtype}", "top-k", TIES,
            [[False, True, True, True], [True, True, True, False], [True, False, True, True]], dtype, row_top_k=3,
        )  # fmt: skip
    tied = [[1.0, 256.0, 256.5]]
    yield draws("float32 tells them apart", "greedy", tied, [2], row_temperature=0)
    yield draws("bfloat16 cannot tell them apart", "greedy", tied, [1], "bfloat16", row_temperature=0)
    yield draws("a negative temperature is greedy", "greedy", [[0, 9, 1]] * 2, [1, 1], row_temperature=[-1, np.nan])
    yield kept("greedy keeps one", "greedy", [[0, 9, 9]], [[0, 1, 0]], row_temperature=0)
    undefined = [[-INF, -INF], [0.0, np.nan], [0.0, -INF], [0.0, 0.0]]
    positions = [0, 1, 2, -1]
    for temperature in (0, 1):
        given: dict[str, Any] = {"row_temperature": temperature, "position": positions}
        shown = f"at temperature {temperature}"
        yield draws(f"rows without a distribution {shown}", "undefined tail", undefined, [-1, -1, 0, -1], **given)
        yield kept(
            f"rows without a distribution {shown}", "undefined tail", undefined, [[0, 0], [0, 0], [1, 0], [0, 0]],
            **given,
        )  # fmt: skip
    forbidden = [[-INF, 0.0, -INF, 0.0]]
    yield draws("forbidden tokens when hot", "forbidden", forbidden * 200, {1, 3}, row_temperature=1e30)
    yield draws("forbidden tokens when all are kept", "forbidden", forbidden * 200, {1, 3}, row_top_k=4)
    yield kept("forbidden tokens have no mass", "forbidden", forbidden, [[0, 0.5, 0, 0.5]], row_temperature=3e38)
    # 1 / 1e-45 overflows to inf; the largest logits alone are left, both of them.
    yield draws("the coldest temperature", "maximum", [[1.0, 1.0, 0.999]] * 100, {0, 1}, row_temperature=1e-45)
    yield draws("infinite maxima", "maximum", [[INF, 5.0, INF]] * 100, {0, 2})
    yield kept("the coldest temperature", "maximum", [[1.0, 1.0, 0.999]], [[0.5, 0.5, 0]], row_temperature=1e-45)
    yield kept("an infinite maximum", "maximum", [[INF, 5.0]], [[1, 0]])
    yield draws("sampling is not greedy", "draw", [[0.5, 0.0]] * 100, {0, 1})
    yield draws("random numbers advance with the position", "draw", [[0.0] * 64] * 64, _Many, row_seed=5)
    yield draws(
        "random numbers differ between seeds", "draw", [[0.0] * 64] * 64, _Many, row_seed=list(range(64)), position=9
    )
    yield draws(
        "seeds and positions of 64 bits", "draw conventions#philox", [[0.0] * 64] * 6, _AllDiffer,
        row_seed=[1, 2**32 + 1, 1 - 2**63, 1, 1, 1], position=[0, 0, 0, 2**32, 2**62, 1],
    )  # fmt: skip
    # Of 64 equal masses, the draw takes the six highest random bits.
    for purpose, tokens in (
        (Purpose.SAMPLE, [4, 9, 44, 44, 7, 20, 45, 38]),
        (Purpose.DRAFT, [18, 41, 43, 34, 50, 14, 17, 12]),
    ):
        name = f"random numbers of the purpose {purpose.name}"
        yield draws(name, "purpose draw", [[0.0] * 64] * 8, tokens, row_seed=5, purpose=purpose)
    yield draws("temperature, top k, top p and min p of 1", "min-p survivor", [HALVES], [0], row_min_p=1)
    yield draws("min p", "min-p", [HALVES] * 100, {0, 1}, row_min_p=0.4)
    yield draws("top p", "top-p", [HALVES] * 100, {0, 1}, row_top_p=0.7)
    yield draws("top k", "top-k", [HALVES] * 100, {0, 1}, row_top_k=2)
    every, first = [[True] * 4], [[True, False, False, False]]
    for name, rules, wanted, params in (
        ("top p of 1", "top-p", every, {"row_top_p": 1}),
        ("top p of NaN", "top-p conventions#fraction", every, {"row_top_p": float("nan")}),
        ("top k of 0", "top-k", every, {"row_top_k": 0}),
        ("top k beyond the vocabulary", "top-k", every, {"row_top_k": 9}),
        ("top p of 0", "top-p survivor", first, {"row_top_p": 0}),
        ("min p of 1", "min-p survivor", first, {"row_min_p": 1}),
        ("top k of 1", "top-k", first, {"row_top_k": 1}),
        ("top p of 0.7", "top-p conventions#part", [[True, True, False, False]], {"row_top_p": 0.7}),
        ("top p of 0.8", "top-p", [[True, True, True, False]], {"row_top_p": 0.8}),
        # Of the kept total, 3/4, the first has 2/3.
        ("top p of what top k kept", "top-k top-p", first, {"row_top_k": 2, "row_top_p": 0.6}),
        ("min p of 0.4", "min-p", [[True, True, False, False]], {"row_min_p": 0.4}),
    ):
        yield kept(name, rules, [HALVES], wanted, **params)
    # The first reaches half of the total exactly: "reaches" includes equality.
    yield kept("top p is inclusive", "top-p", [[2.0, 2.0]], [[True, False]], row_top_p=0.5)
    yield draws("top p is inclusive", "top-p", [[2.0, 2.0]] * 50, {0}, row_top_p=0.5)
    yield kept("a ratio of masses", "ratio conventions#weight", [[0.0, float(np.log(3.0))]], Close([[0.25, 0.75]]))
    yield kept("a ratio is exact where masses are", "ratio", [[0.0] * 3], [[np.float32(1) / np.float32(3)] * 3])


_Many = Where("at least 30 different tokens", lambda tokens: len(set(tokens.tolist())) >= 30)
_AllDiffer = Where("at least 5 different tokens", lambda tokens: len(set(tokens.tolist())) >= 5)
