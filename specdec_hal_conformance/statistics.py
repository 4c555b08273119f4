"""The G-test: whether counts fit a distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALPHA = 2e-8
"""Level of one test. With fewer than 50 tests the suite fails a correct backend less than once in a million runs."""


def chi_square_tail(freedom: int, value: float) -> float:
    """The probability of at least this value with so many degrees of freedom: Q(freedom / 2, value / 2)."""
    x = value / 2
    if x <= 0:
        return 1.0
    tail, a = (math.erfc(math.sqrt(x)), 0.5) if freedom % 2 else (math.exp(-x), 1.0)
    while a < freedom / 2:  # Q(a + 1, x) = Q(a, x) + x^a e^-x / gamma(a + 1)
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return tail


def g_test(counts: NDArray[Any], probs: NDArray[np.float64]) -> float:
    """p-value of counts under exact probabilities of the same shape; 0 for impossible counts."""
    observed, expected = counts.reshape(-1).astype(np.float64), probs.reshape(-1)
    if observed[expected <= 0].any():
        return 0.0
    possible = expected > 0
    observed, expected = observed[possible], expected[possible] * observed.sum()
    seen = observed > 0
    g = 2.0 * float((observed[seen] * np.log(observed[seen] / expected[seen])).sum())
    freedom = len(expected) - 1
    return chi_square_tail(freedom, g) if freedom else 1.0


def verdict(counts: NDArray[Any], probs: NDArray[np.float64]) -> str | None:
    """A message about the counts, or None."""
    p = g_test(counts, probs)
    if p < ALPHA:
        share = counts / counts.sum()
        distance = 0.5 * float(np.abs(share - probs).sum())
        worst = np.unravel_index(int(np.argmax(np.abs(share - probs))), probs.shape)
        return (
            f"total variation {distance:.4f} from the exact distribution (p = {p:.1e}, {int(counts.sum())} samples); "
            f"cell {[int(i) for i in worst]} has {share[worst]:.4f}, expected {probs[worst]:.4f}"
        )
    return None
