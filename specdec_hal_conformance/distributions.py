"""Emitted tokens against the exact distribution, with fixed seeds, so that the outcome is deterministic.

Requests decode two tokens of a Markov chain: the first from FIRST, the second from THEN[first]. Drafts determine the
branches taken but must not affect the joint distribution of the two tokens. Tokens that a step does not reach are
emitted by another step, as in a runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import Strategy
from specdec_hal_conformance.building import build
from specdec_hal_conformance.statistics import ALPHA, g_test, verdict
from specdec_hal_conformance.subject import Subject

Array = NDArray[Any]

SAMPLES = 73_728
"""Requests per test: enough to detect a total variation of 0.02 (`tests/conformance/test_statistics.py`)."""
BATCH = 8192
V = 3
# Multiples of 1/16 and the like are exact in float32.
FIRST = np.array([8, 5, 3]) / 16
THEN = np.array([[4, 10, 2], [2, 7, 7], [11, 1, 4]]) / 16
AFTER = np.array([5, 6, 5]) / 16
DRAFT_FIRST = np.array([3, 3, 10]) / 16
DRAFT_THEN = np.array([9, 3, 4]) / 16
JOINT = FIRST[:, None] * THEN
PROMPT = 7


@dataclass(frozen=True)
class DistributionTest:
    """A test of one op in one mode.

    `run` takes the number of samples and returns the fault, or None; `refusal` says why the backend does not claim it.
    """

    op: str
    mode: str
    name: str
    rules: tuple[str, ...]
    run: Callable[[Subject, int], str | None]
    refusal: Callable[[Subject], str | None]


def distribution_tests(op: str) -> list[DistributionTest]:
    """The tests of one op."""
    return [test for test in _TESTS if test.op == op]


def _verify(strategy: Strategy, drafts: Array, seed: Array, step: int, **inputs: Any) -> dict[str, Any]:
    m, s = drafts.shape
    return build(
        "verify_draft_tokens",
        draft_tokens=drafts,
        seed=seed,
        seq_lens_this_time=np.full(m, s, np.int32),
        seq_lens_decoder=np.full(m, PROMPT + step, np.int32),
        prompt_lens=np.full(m, PROMPT),
        step_idx=np.full(m, step),
        end_tokens=np.zeros(0, np.int64),
        cu_seqlens_q_output=np.arange(m + 1, dtype=np.int32) * s,
        strategy=strategy,
        **inputs,
    )


def _sample(rows: Array, seed: Array, positions: Array) -> dict[str, Any]:
    """`sample_target` with these distributions: logits are their logarithms."""
    with np.errstate(divide="ignore"):
        logits = np.log(rows).astype(np.float32)
    return build("sample_target", logits=logits, row_seed=seed, position=positions)


def _batches(subject: Subject, samples: int) -> Iterator[tuple[Array, Array]]:
    """(seeds, drafts [m, 3]), m as large as the backend takes.

    Seeds are consecutive, as users choose them; the drafts' random numbers are independent.
    """
    rng = np.random.default_rng(20_230_111)
    m = _largest_batch(subject)
    for start in range(0, samples, m):
        count = min(m, samples - start)
        seed = np.arange(start, start + count, dtype=np.int64)
        first = rng.choice(V, count, p=DRAFT_FIRST)
        then = rng.choice(V, count, p=DRAFT_THEN)
        yield seed, np.stack([np.zeros(count, np.int64), first, then], 1)


def _largest_batch(subject: Subject) -> int:
    capabilities = [subject.backend.capability(op) for op in ("verify_draft_tokens", "sample_target")]
    limits = [c.limits for c in capabilities if c is not None]
    rows = min((limit.get("R_cap", 3 * BATCH) for limit in limits), default=3 * BATCH)
    return max(min([BATCH, rows // 3, *(limit.get("M", BATCH) for limit in limits)]), 1)


def _targets(drafts: Array) -> Array:
    """[BATCH, 3, V]: after the base token, after the first draft, after the second."""
    m = len(drafts)
    return np.stack([np.tile(FIRST, (m, 1)), THEN[drafts[:, 1]], np.tile(AFTER, (m, 1))], 1)


def _outside(tokens: Array, vocabulary: int, seeds: Array, positions: Array | None = None) -> str | None:
    """A message about the first token outside the vocabulary."""
    flat = tokens.reshape(-1)
    outside = np.flatnonzero((flat < 0) | (flat >= vocabulary))
    if not len(outside):
        return None
    at = int(outside[0])
    where = f"seed {seeds[at]}" + ("" if positions is None else f", position {positions[at]}")
    return f"{len(outside)} of {len(flat)} tokens outside a vocabulary of {vocabulary}: {flat[at]} first, for {where}"


Step = Callable[[Subject, Array, Array, int, Array], tuple[Array, Array]]
"""(subject, drafts, seeds, step, target distributions [m, S, V]) -> accept_tokens, accept_num."""


def _joint(step: Step) -> Callable[[Subject, int], str | None]:
    """Counts of the first two emitted tokens of requests, over as many steps as needed."""

    def run(subject: Subject, samples: int) -> str | None:
        counts = np.zeros((V, V))
        for seed, drafts in _batches(subject, samples):
            tokens, emitted = step(subject, drafts, seed, 0, _targets(drafts))
            if (emitted < 1).any():
                return f"a decoding slot emitted nothing: seed {seed[np.argmax(emitted < 1)]}, prompt_lens {PROMPT}"
            if wrong := _outside(tokens[:, 0], V, seed):
                return wrong
            open_slots = np.flatnonzero(emitted == 1)
            first, second = tokens[:, 0], tokens[:, 1].copy()
            if len(open_slots):
                base = first[open_slots, None]
                rows = THEN[first[open_slots]][:, None, :]
                more, _ = step(subject, base, seed[open_slots], 1, rows)
                second[open_slots] = more[:, 0]
            if wrong := _outside(second, V, seed):
                return wrong
            np.add.at(counts, (first, second), 1)
        return verdict(counts, JOINT)

    return run


def _accepted(subject: Subject, inputs: dict[str, Any]) -> tuple[Array, Array]:
    outputs = subject.run("verify_draft_tokens", inputs).outputs
    return outputs["accept_tokens"], outputs["accept_num"]


def _match(subject: Subject, drafts: Array, seed: Array, step: int, rows: Array) -> tuple[Array, Array]:
    m, s, _ = rows.shape
    positions = (PROMPT + step + np.tile(np.arange(s), m)).astype(np.int64)
    sampled = subject.run("sample_target", _sample(rows.reshape(-1, V), np.repeat(seed, s), positions))
    targets = sampled.outputs["target_tokens"]
    return _accepted(subject, _verify(Strategy.TARGET_MATCH, drafts, seed, step, target_tokens=targets))


def _rejection(dense: bool) -> Step:
    def step(subject: Subject, drafts: Array, seed: Array, done: int, rows: Array) -> tuple[Array, Array]:
        m, s, _ = rows.shape
        inputs: dict[str, Any] = {"target_probs": rows.reshape(-1, V).astype(np.float32)}
        if dense:
            both = np.stack([DRAFT_FIRST, DRAFT_THEN])[: s - 1]
            inputs["draft_probs"] = np.tile(both, (m, 1, 1)).astype(np.float32).reshape(m, s - 1, V)
        return _accepted(subject, _verify(Strategy.REJECTION, drafts, seed, done, **inputs))

    return step


CANDIDATES = np.array([[2, 0, 1], [1, 2, 0], [0, 2, 1]])
SCORES = np.array([[8, 5, 3], [7, 6, 3], [10, 4, 2]]) / 16
LENGTHS = np.array([2, 3, 2])
TOP_P = np.array([12, 16, 16]) / 16


def _topp(subject: Subject, samples: int) -> str | None:
    """The draw among candidates, for the masses of the first lens of them up to top_p, at two positions.

    Both tokens are phase 2 draws: the first after a rejected draft, the second without a draft.
    """
    totals = np.minimum(TOP_P, [SCORES[k, :n].sum() for k, n in enumerate(LENGTHS)])
    exact = np.zeros((3, V))
    for row, (n, total) in enumerate(zip(LENGTHS, totals, strict=True)):
        left = total
        for token, score in zip(CANDIDATES[row, :n], SCORES[row, :n], strict=True):
            exact[row, token] = min(score, left) / total
            left -= min(score, left)
    counts = np.zeros((V, V))
    for seed, _ in _batches(subject, samples):
        m = len(seed)
        impossible = np.full((m, 2), V)
        inputs = {
            "candidate_ids": np.tile(CANDIDATES[:2], (m, 1)),
            "candidate_scores": np.tile(SCORES[:2], (m, 1)).astype(np.float32),
            "candidate_lens": np.tile(LENGTHS[:2], m).astype(np.int32),
            "top_p": np.full(m, TOP_P[0], np.float32),
        }
        tokens, _ = _accepted(subject, _verify(Strategy.TOPP, impossible, seed, 0, **inputs))
        first = tokens[:, 0]
        if wrong := _outside(first, V, seed):
            return wrong
        k: Array = np.where(first == 0, 1, 2)
        inputs = {
            "candidate_ids": CANDIDATES[k],
            "candidate_scores": SCORES[k].astype(np.float32),
            "candidate_lens": LENGTHS[k].astype(np.int32),
            "top_p": np.ones(m, np.float32),
        }
        more, _ = _accepted(subject, _verify(Strategy.TOPP, first[:, None], seed, 1, **inputs))
        if wrong := _outside(more[:, 0], V, seed):
            return wrong
        np.add.at(counts, (first, more[:, 0]), 1)
    joint = exact[0][:, None] * np.stack([exact[1], exact[2], exact[2]])
    return verdict(counts, joint)


def _tempered(subject: Subject, samples: int) -> str | None:
    """`sample_target` at temperature 2 with top_k, top_p and min_p, over positions of few requests."""
    counts = np.zeros(5)
    probs = np.array([16, 9, 4, 1, 1]) / 31
    for seed, _ in _batches(subject, samples):
        m = len(seed)
        inputs = _sample(np.tile(probs, (m, 1)), np.repeat(seed, 8)[:m], np.resize(np.arange(8), m))
        inputs["row_temperature"][:] = 2
        inputs["row_top_k"][:] = 4
        inputs["row_min_p"][:] = 0.3
        tokens = subject.run("sample_target", inputs).outputs["target_tokens"]
        if wrong := _outside(tokens, len(probs), inputs["row_seed"], inputs["position"]):
            return wrong
        np.add.at(counts, tokens, 1)
    exact = np.array([4, 3, 2, 0, 0]) / 9  # square roots; min_p drops the fourth
    return verdict(counts, exact)


STREAM_REQUESTS, STREAM_LENGTH, STREAM_V = 64, 256, 64


def _stream_tokens(subject: Subject, seeds: Array) -> Array:
    """[requests, positions]: tokens drawn uniformly from 64."""
    rows = np.zeros((len(seeds) * STREAM_LENGTH, STREAM_V), np.float32)
    positions = np.tile(np.arange(STREAM_LENGTH), len(seeds))
    inputs = build("sample_target", logits=rows, row_seed=np.repeat(seeds, STREAM_LENGTH), position=positions)
    drawn = subject.run("sample_target", inputs).outputs["target_tokens"]
    return drawn.reshape(len(seeds), STREAM_LENGTH)


def _streams(subject: Subject, samples: int) -> str | None:
    """Per-request seeds: streams differ between requests and positions, and do not depend on the slot.

    Ignores `samples`.
    """
    rng = np.random.default_rng(3)
    near = np.arange(STREAM_REQUESTS // 2)
    seeds = np.concatenate([near, (near + 1) << 32])  # neighbours in the low half, then in the high one
    tokens = _stream_tokens(subject, seeds)
    if wrong := _outside(
        tokens, STREAM_V, np.repeat(seeds, STREAM_LENGTH), np.tile(np.arange(STREAM_LENGTH), len(seeds))
    ):
        return wrong
    # Two fair streams agree at 4 of 256 positions; 32 or more have a probability below 1e-17 for a pair.
    for lag in (0, 1, 2, 3, 7):
        left, right = tokens[:, : STREAM_LENGTH - lag], tokens[:, lag:]
        equal = (left[:, None, :] == right[None, :, :]).sum(2)
        if lag == 0:
            equal -= np.diag(np.diag(equal))
        worst = np.unravel_index(int(np.argmax(equal)), equal.shape)
        if equal[worst] >= 32:
            where = f"request {worst[0]}" if worst[0] == worst[1] else f"requests {worst[0]} and {worst[1]}"
            return f"{where}: {equal[worst]} of {STREAM_LENGTH - lag} tokens equal at lag {lag}, expected about 4"
    # Correlation of neighbouring draws over all streams: 16,320 pairs, standard deviation 0.0078.
    uniform = (tokens - tokens.mean()) / tokens.std()
    for name, correlation in (
        ("positions", float((uniform[:, 1:] * uniform[:, :-1]).mean())),
        ("requests", float((uniform[1:] * uniform[:-1]).mean())),
    ):
        if abs(correlation) > 0.05:
            return f"neighbouring {name} are correlated: {correlation:.3f}"
    if g_test(np.bincount(tokens.reshape(-1), minlength=STREAM_V), np.full(STREAM_V, 1 / STREAM_V)) < ALPHA:
        return "the tokens of uniform rows are not uniform"
    order = rng.permutation(STREAM_REQUESTS)
    if not np.array_equal(_stream_tokens(subject, seeds[order]), tokens[order]):
        return "a request's tokens changed when it was moved to another slot"
    return None


def _refusal(
    strategy: Strategy | None, *, dense: bool = False, samples: bool = False
) -> Callable[[Subject], str | None]:
    """Whether the backend claims the test's calls, by small ones."""

    def refusal(subject: Subject) -> str | None:
        if samples:
            zeros = np.zeros(3, np.int64)
            found = _claims(subject, "sample_target", lambda: _sample(np.full((3, V), 1 / 3), zeros, zeros))
            if found is not None:
                return f"sample_target: {found}"
        if strategy is None:
            return None
        drafts = np.zeros((1, 3), np.int64)
        inputs: dict[str, Any] = {"target_tokens": np.zeros(3, np.int64)}
        if strategy is Strategy.REJECTION:
            inputs = {"target_probs": np.zeros((3, V), np.float32)}
        elif strategy is Strategy.TOPP:
            inputs = {
                "candidate_ids": np.zeros((3, V), np.int64), "candidate_scores": np.zeros((3, V), np.float32),
                "candidate_lens": np.ones(3, np.int32), "top_p": np.ones(1, np.float32),
            }  # fmt: skip
        if dense:
            inputs["draft_probs"] = np.zeros((1, 2, V), np.float32)
        return _claims(
            subject, "verify_draft_tokens", lambda: _verify(strategy, drafts, np.zeros(1, np.int64), 0, **inputs)
        )

    return refusal


def _claims(subject: Subject, op: str, make: Callable[[], dict[str, Any]]) -> str | None:
    if subject.backend.capability(op) is None:
        return "the op is missing"
    return subject.refusal(op, make())


_TESTS = (
    DistributionTest(
        "verify_draft_tokens", "TARGET_MATCH", "two tokens by target match", ("by-token", "one-more", "position"),
        _joint(_match), _refusal(Strategy.TARGET_MATCH, samples=True),
    ),
    DistributionTest(
        "verify_draft_tokens", "REJECTION", "two tokens by rejection, one-hot", ("one-hot", "residual", "bonus"),
        _joint(_rejection(dense=False)), _refusal(Strategy.REJECTION),
    ),
    DistributionTest(
        "verify_draft_tokens", "REJECTION dense", "two tokens by rejection, dense", ("rejection", "residual", "bonus"),
        _joint(_rejection(dense=True)), _refusal(Strategy.REJECTION, dense=True),
    ),
    DistributionTest(
        "verify_draft_tokens", "TOPP", "two tokens from candidates", ("candidate-draw",),
        _topp, _refusal(Strategy.TOPP),
    ),
    DistributionTest(
        "sample_target", "float32", "one token under temperature, top k and min p", ("draw", "top-k", "min-p"),
        _tempered, _refusal(None, samples=True),
    ),
    DistributionTest(
        "sample_target", "float32", "streams of requests", ("draw",), _streams, _refusal(None, samples=True),
    ),
)  # fmt: skip
