"""The G-test: whether counts fit a distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALPHA = 2e-8
"""Level of one test. With fewer than 50 tests the suite fails a correct backend less than once in a million runs."""


def upper_gamma(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(a, x), by its series or its continued fraction (Lentz)."""
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1.0 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= x / n
            total += term
        return 1.0 - scale * total
    b = x + 1 - a
    c, d = math.inf, 1.0 / b
    fraction = d
    for i in range(1, 1000):
        factor = -i * (i - a)
        b += 2
        d = 1.0 / (factor * d + b)
        c = b + factor / c
        delta = d * c
        fraction *= delta
        if abs(delta - 1) < 1e-15:
            break
    return scale * fraction


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
    return upper_gamma(freedom / 2, g / 2) if freedom else 1.0


def threshold(freedom: int) -> float:
    """The critical G for these degrees of freedom."""
    low, high = 0.0, 1000.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if upper_gamma(freedom / 2, middle / 2) > ALPHA else (low, middle)
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
