"""Masses by chunks of 1,024 ids (section 0), and what `sample_target` reports of its tokens (section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import LogprobMode
from specdec_hal_conformance.building import logits
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.edges.kept import INF, draws, kept
from specdec_hal_conformance.expectations import Close, Where

F = np.float32
LOWEST = float(np.finfo(F).min)
SIXTY_FOUR_BITS = (0x11D85194C417681D, 0x27FA600A58E37BC0, 0xB056346AF6B4AEEA, 0xB175B163AB8A161E)
"""The random numbers of seed 5 at positions 0 to 3."""
WIDTHS = (1, 1023, 1024, 1025, 3000)


def row(v: int, at: dict[int, float], others: float = -INF) -> NDArray[np.float32]:
    """A row of `others`, but for a few ids."""
    values: NDArray[np.float32] = np.full(v, others, np.float32)
    values[list(at)] = list(at.values())
    return values


def _spread() -> NDArray[np.float32]:
    """Rows of three chunks, each with its own spread and level, so that every chunk weighs otherwise."""
    rng = np.random.default_rng(7)
    level = np.repeat([0.0, 1.5, -2.0], 1024)[:2500]
    rows = rng.normal(size=(12, 2500)) * np.linspace(0.5, 4, 12)[:, None] + level
    return np.asarray(rows, np.float32)


def _softmax(rows: NDArray[Any], temperature: float) -> Where:
    x = np.asarray(rows, np.float64) / temperature
    weights = np.exp(x - x.max(1, keepdims=True))
    wanted = weights / weights.sum(1, keepdims=True)
    # t is rounded three times, and a mass down to 2^-40.
    return Where("the softmax", lambda probs: bool(np.allclose(probs, wanted, rtol=1e-5, atol=2e-12)))


def edges() -> Iterator[Case]:
    """sample_target, processed_probs."""
    yield from _cuts()
    yield from _draws()
    yield from _scored()


def _cuts() -> Iterator[Case]:
    chunk = "conventions#chunk conventions#total"
    rows = _spread()
    yield kept("chunks of different weight", f"ratio {chunk}", rows, _softmax(rows, 1))
    yield kept("chunks of different weight when hot", f"ratio {chunk}", rows, _softmax(rows, 2), row_temperature=2)
    for name, at in (
        ("the first", {3: 5.0, 1024: 4.0, 2999: 3.0}),
        ("the last", {1023: 3.0, 2047: 4.0, 2048: 5.0}),
        ("every", {0: 1.0, 1023: 1.0, 1024: 1.0, 2047: 1.0, 2048: 1.0, 2999: 1.0}),
    ):
        one = row(3000, at)
        yield kept(f"the largest logit in {name} chunk", f"ratio {chunk}", [one], _softmax(one[None], 1))
        yield draws(f"the largest logit in {name} chunk", f"chunk-draw inner-draw {chunk}", [one] * 99, set(at))
        first = min(token for token, value in at.items() if value == max(at.values()))
        for dtype in ("float32", "bfloat16"):
            yield draws(
                f"greedy with the largest logit in {name} chunk in {dtype}", "greedy", [one], [first], dtype,
                row_temperature=0,
            )  # fmt: skip
    middle = row(3072, {1024: 0.0, 2047: 0.0})
    yield draws("chunks of nothing but -inf", "conventions#empty-chunk forbidden", [middle] * 50, {1024, 2047})
    yield kept("chunks of nothing but -inf", "conventions#empty-chunk ratio", [middle], _softmax(middle[None], 1))
    yield draws(
        "chunks of nothing but -inf when hot", "conventions#empty-chunk forbidden", [middle] * 50, {1024, 2047},
        row_temperature=INF,
    )  # fmt: skip
    both = row(2100, {5: INF, 2050: INF}, others=1.0)
    yield draws("infinite maxima in two chunks", "maximum conventions#empty-chunk", [both] * 50, {5, 2050})


def _draws() -> Iterator[Case]:
    for v in WIDTHS:
        # Equal masses of 2^40: the point's upper bits are the token.
        yield draws(
            f"{v} equal logits", "chunk-draw inner-draw draw", [row(v, {}, 2.5)] * 4,
            [bits * v >> 64 for bits in SIXTY_FOUR_BITS], row_seed=5,
        )  # fmt: skip
    v = 2**18
    yield draws(
        "a total of 2^58", "chunk-draw conventions#total", [row(v, {}, -1.0)] * 2,
        [bits * v >> 64 for bits in SIXTY_FOUR_BITS[:2]], row_seed=5,
    )  # fmt: skip
    # Two chunks of masses from 400 to 800 before one of 2^40, and random numbers that fall among them: where prefix
    # sums of masses that are rounded one by one, that are relative to the row, or of chunks that end elsewhere have
    # another token, and where the point equals a prefix sum. The last of the first chunk weighs most there.
    rare = np.append(-21.0 - np.arange(2999) * 37 % 97 / 128, 0.0)
    rare[1023] = -20.5
    yield draws(
        "points among the lightest tokens", "inner-draw conventions#chunk", [rare] * 4, [868, 384, 2501, 2708],
        row_seed=7, position=[229_564, 1_230_499, 2_826_884, 29_484_353],
    )  # fmt: skip
    ramp = np.linspace(0, 1, 2500)
    # The total by chunks is larger than the sum of the masses relative to 0, by more than 2^-24 of it.
    short = row(2048, {0: 0.0, **dict.fromkeys(range(1025, 2048), -4.13), 1024: -1.9})
    every = short > -INF
    kept_all = Where("all but -inf", lambda probs: bool(((probs[0] > 0) == every).all()))
    for share in (1 - 2**-24, 0.999):
        wanted = kept_all if share > 0.9999 else Where("some", lambda probs: 0 < (probs > 0).sum() < every.sum())
        yield kept(f"a share of {share}", "unreached top-p", [short], wanted, row_top_p=share)
    yield draws(
        "a share that no prefix reaches", "unreached", [short] * 9,
        Where("tokens that are there", lambda tokens: bool(every[tokens].all())), row_top_p=1 - 2**-24,
    )  # fmt: skip
    yield kept("top p over chunks", "top-p filter", [ramp * 9], _half(ramp * 9), row_top_p=0.5)
    yield kept("a filter that keeps everything", "filter ratio", [rare], _softmax(rare[None], 1), row_min_p=1e-30)
    # Drawn by masses relative to the row, not by chunks.
    yield draws(
        "a filter that keeps everything", "filter draw", [rare] * 2, [385, 2502], row_seed=7, row_min_p=1e-30,
        position=[1_230_499, 2_826_884],
    )  # fmt: skip


def _half(ramp: NDArray[np.float64]) -> Where:
    """The upper part of an ascending row that has half of its mass, give or take a token."""
    weights = np.exp(ramp)
    first = int(np.searchsorted(np.cumsum(weights), weights.sum() / 2))
    return Where(f"tokens from about {first} on", lambda p: abs(int(np.argmax(p > 0, 1)[0]) - first) <= 1)


def _scored() -> Iterator[Case]:
    def scored(
        name: str, rules: str, rows: Any, logprobs: Any, ranks: Any, dtype: str = "float32", **params: Any
    ) -> Case:
        array = logits(rows, dtype)
        n = len(array)
        given = {name: [value] * n if np.isscalar(value) else value for name, value in params.items() if name != "mode"}
        outputs = {"logprobs": np.full(n, 7, F), "ranks": np.full(n, 7)}
        return edge(
            "sample_target", name, rules, {"logprobs": logprobs, "ranks": ranks}, logits=array,
            **{"position": list(range(n)), "logprob_mode": params.get("mode", LogprobMode.RAW), **given, **outputs},
        )  # fmt: skip

    processed = LogprobMode.PROCESSED
    flat, pair = [[0.5] * 4] * 3, [[0.0, float(np.log(3.0))]]
    ln = {n: float(np.log(n)) for n in (2, 4, 2500)}
    yield scored(
        "raw, whatever is kept", "raw rank", flat, Close([-ln[4]] * 3), [4] * 3, row_temperature=3, row_top_k=2
    )
    yield scored("raw, greedy", "raw rank", pair, Close([np.log(0.75)]), [1], row_temperature=0)
    yield scored("raw at temperature 1", "raw rank", flat, Close([-ln[4]] * 3), [4] * 3)
    yield scored(
        "processed, some kept", "processed rank", flat, Close([-ln[2]] * 3), [4] * 3, row_top_k=2, mode=processed
    )
    yield scored(
        "processed, all kept", "processed", flat, Close([-ln[4]] * 3), [4] * 3, row_temperature=3, mode=processed
    )
    yield scored("processed, greedy", "processed", pair, [0.0], [1], row_temperature=0, mode=processed)
    # With 1 / T = 2 the larger logit has 9 times the mass; the smallest random number of seed 2 draws the other.
    hot = Where("ln(0.9) or ln(0.1)", lambda x: bool(np.isclose(np.exp(x)[:, None], [0.9, 0.1]).any(1).all()))
    both = Where("1 or 2", lambda ranks: set(ranks.tolist()) == {1, 2})
    yield scored("processed, at half the temperature", "processed rank", pair * 60, hot, both, row_temperature=0.5,
               mode=processed)  # fmt: skip
    for dtype in ("float32", "float16", "bfloat16"):
        below = Where("below -ln 2", lambda x: bool(x[0] < -ln[2]))
        yield scored(f"ranks of ties in {dtype}", "rank", [[1.0, 3, 3, 2]], below, [2], dtype, row_temperature=0)
    yield scored("over chunks", "raw rank", [row(2500, {}, 1.0)] * 2, Close([-ln[2500]] * 2), [2500] * 2)
    undefined = [[-INF, -INF], [0.0, np.nan], [0.0, -INF], [0.0, 0.0]]
    for mode in LogprobMode:
        for temperature in (0, 1):
            yield scored(
                f"rows without a distribution at temperature {temperature}, {mode.name}", "no-logprob logprob-tail",
                undefined, [LOWEST, LOWEST, 0.0, 0.0], [-1, -1, 1, -1], position=[0, 1, 2, -1],
                row_temperature=temperature, mode=mode,
            )  # fmt: skip
