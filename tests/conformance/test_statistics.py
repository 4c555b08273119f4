"""The distribution tests pass what is fair and, the negative controls, fail what is not."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specdec_hal.ops import Strategy
from specdec_hal.plugin import registry
from specdec_hal.plugin.backend import Capability
from specdec_hal_conformance.distributions import FIRST, JOINT, SAMPLES, distribution_tests
from specdec_hal_conformance.statistics import ALPHA, chi_square_tail, g_test, verdict
from specdec_hal_conformance.subject import Subject
from specdec_hal_xpu.backend import XpuSimBackend
from specdec_hal_xpu.options import Options

TESTS = [test for op in ("verify_draft_tokens", "sample_target") for test in distribution_tests(op)]


@pytest.mark.parametrize(
    "freedom, value, expected",  # quantiles of tables
    [(1, 3.841459, 0.05), (8, 15.507313, 0.05), (8, 26.124482, 0.001), (15, 6.2621378, 0.975), (2, 40, 2.0611536e-9)],
)
def test_the_tail_of_chi_square(freedom: int, value: float, expected: float) -> None:
    assert chi_square_tail(freedom, value) == pytest.approx(expected, rel=1e-5)
    assert chi_square_tail(freedom, 0) == 1


def threshold(freedom: int) -> float:
    """The critical G for these degrees of freedom."""
    low, high = 0.0, 1000.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if chi_square_tail(freedom, middle) > ALPHA else (low, middle)
    return high


def visible(samples: int, cells: int) -> float:
    """The total variation surely detected by this many samples: the mean of G is three standard deviations above the
    limit.

    The hardest error of total variation t to detect, spread evenly, gives G a mean of freedom + 4 t^2 samples.
    """
    freedom = cells - 1
    shift, limit = 0.0, threshold(freedom)
    while freedom + shift - 3 * math.sqrt(2 * (freedom + 2 * shift)) < limit:
        shift += 0.25
    return math.sqrt(shift / (4 * samples))


def shifted(probs: NDArray[np.float64], variation: float) -> NDArray[np.float64]:
    """The shift of `probs` by the given total variation that is hardest to detect.

    Mass moves from one half of the cells to the other, in proportion to their mass.
    """
    flat = probs.reshape(-1)
    up = np.arange(len(flat)) % 2 == 0
    moved = flat.copy()
    moved[up] *= 1 + variation / flat[up].sum()
    moved[~up] *= 1 - variation / flat[~up].sum()
    return moved.reshape(probs.shape)


def test_a_total_variation_of_two_hundredths_is_seen() -> None:
    """Of the joint distribution, with the number of samples that the suite takes."""
    assert visible(SAMPLES, JOINT.size) <= 0.02
    rng = np.random.default_rng(0)
    for _ in range(200):
        wrong = shifted(JOINT, 0.02)
        assert 0.5 * np.abs(wrong - JOINT).sum() == pytest.approx(0.02)
        assert verdict(rng.multinomial(SAMPLES, wrong.reshape(-1)).reshape(JOINT.shape), JOINT) is not None
        fair = rng.multinomial(SAMPLES, JOINT.reshape(-1)).reshape(JOINT.shape)
        assert verdict(fair, JOINT) is None


def test_the_impossible_fails_at_once() -> None:
    assert g_test(np.array([10, 1, 0]), np.array([0.5, 0.0, 0.5])) == 0
    assert g_test(np.array([7]), np.array([1.0])) == 1


class Broken(XpuSimBackend):
    """The simulated XPU with the inputs of one op changed before each launch."""

    def __init__(self, op: str, spoil: Any) -> None:
        super().__init__(Options())
        self.op, self.spoil = op, spoil

    def plan(self, call: Any) -> Any:
        if call.op.name == self.op:
            tensors = {n: np.array(t) if n in self.spoil else t for n, t in call.tensors.items()}
            for name, change in self.spoil.items():
                if tensors[name] is not None:
                    tensors[name] = np.ascontiguousarray(change(tensors[name]))
            call.tensors = tensors
        return super().plan(call)


@cache
def fair() -> Subject:
    return Subject(registry.get_backend("cpu"))


def first_slot_only(seed: np.ndarray) -> np.ndarray:
    return np.full_like(seed, seed[0])


UNIFORM = {"draft_probs": lambda q: np.full_like(q, 1 / 3)}
VERIFY, SAMPLE = "verify_draft_tokens", "sample_target"
CONTROLS = [
    # What is broken, and the tests that must see it.
    (VERIFY, {"seed": first_slot_only}, ["one-hot", "dense", "candidates"]),
    (VERIFY, UNIFORM, ["dense"]),
    (VERIFY, {"draft_probs": lambda q: q * np.float32(0.9)}, ["dense"]),
    (VERIFY, {"target_probs": lambda p: p * p}, ["one-hot", "dense"]),
    (VERIFY, {"step_idx": np.zeros_like}, ["one-hot", "dense", "candidates"]),
    (VERIFY, {"candidate_scores": np.sqrt}, ["candidates"]),
    (VERIFY, {"top_p": np.ones_like}, ["candidates"]),
    (SAMPLE, {"row_seed": np.zeros_like}, ["target match", "streams"]),
    (SAMPLE, {"row_seed": lambda seed: seed & 0xFFFFFFFF}, ["streams"]),
    (SAMPLE, {"position": np.zeros_like}, ["streams"]),
    (SAMPLE, {"position": lambda p: p // 2}, ["streams"]),
    (SAMPLE, {"row_temperature": np.zeros_like}, ["target match", "temperature", "streams"]),
    (SAMPLE, {"row_temperature": np.ones_like}, ["temperature"]),
    (SAMPLE, {"row_top_k": np.zeros_like, "row_min_p": np.zeros_like}, ["temperature"]),
]  # fmt: skip


@pytest.mark.parametrize(
    "op, spoil, seen_by", CONTROLS, ids=lambda value: "+".join(value) if not isinstance(value, str) else value
)
def test_negative_controls(op: str, spoil: dict[str, Any], seen_by: list[str]) -> None:
    broken = Subject(Broken(op, spoil))
    for words in seen_by:
        (test,) = (test for test in TESTS if words in test.name)
        assert test.run(broken, SAMPLES) is not None, test.name


def test_what_was_not_claimed_is_refused_with_the_reason() -> None:
    class Half(XpuSimBackend):
        def capability(self, op: str) -> Capability | None:
            return super().capability(op) if op == VERIFY else None

    subject = Subject(Half(Options()))
    refusals = {test.name: test.refusal(subject) for test in TESTS}
    assert refusals["two tokens by target match"] == "sample_target: the op is missing"
    assert refusals["two tokens from candidates"] is None
    assert FIRST.sum() == 1 and Strategy.TOPP in Strategy
