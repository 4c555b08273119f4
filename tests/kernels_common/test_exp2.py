"""The one exponential: C++ equal to NumPy, and both close to float64, over every float32 that can occur."""

from __future__ import annotations

import struct
from math import floor, inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_hal.backends.reference import primitives as p

BOUND = 2.0**-22
"""The contract's relative error; 2^-23.39 is what the polynomial reaches."""

SMALL = [0.0, -0.0, -1e-45, -1.2e-38, -(2.0**-25), -0.5, -0.50000006, -1.0, -1.5, -2.5]
LARGE = [-39.99999, -40.0, -40.000004, -40.5, -41.0, -63.5, -64.0, -64.5, -126.0, -150.0, -3e38, -inf]
OUTSIDE = [nan, 1e-45, 5.0, inf]
EDGES = np.array([*SMALL, *LARGE, *OUTSIDE], np.float32)


def negatives(binade: int) -> np.ndarray:
    """Every float32 in (-2^(binade+1), -2^binade]."""
    first = 0x80000000 | (binade + 127) << 23
    return np.arange(first, first + 2**23, dtype=np.uint32).view(np.float32)


# t in [-0.5, 0] gives the polynomial every negative argument and t in [-1.5, -0.5] every positive one that occurs;
# together the 32 binades hold every t that has a mass and is not so small that p rounds to 1.
@pytest.mark.parametrize("step", [61, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "every"])
@pytest.mark.parametrize("binade", range(-26, 6))
def test_float32(native, binade, step):
    t = negatives(binade)[::step]
    mass = p.exp2_mass(t)
    np.testing.assert_array_equal(native.map("exp2_mass", t), mass)
    np.testing.assert_array_equal(native.map("exp2_mass_at", np.minimum(t / -64, 1)), mass)
    exact = np.exp2(t.astype(np.float64)) * p.MASS_ONE
    # The mass is p itself as long as its last bit is above the mass unit; below, it is p rounded down.
    excess = mass.astype(np.float64) - exact
    assert np.all(excess <= exact * BOUND)
    assert np.all(excess >= -exact * BOUND - (t < -16))
    assert mass.max() <= p.MASS_ONE


@pytest.mark.parametrize("binade", [-126, -100, -60, -40, -30, -27])
def test_tiny_arguments_weigh_one(native, binade):
    t = negatives(binade)[:: 2**10 + 1]
    assert np.all(p.exp2_mass(t) == p.MASS_ONE)
    assert np.all(native.map("exp2_mass", t) == p.MASS_ONE)


def test_edges(native):
    mass = p.exp2_mass(EDGES)
    np.testing.assert_array_equal(native.map("exp2_mass", EDGES), mass)
    by_value = dict(zip(EDGES.tolist(), mass.tolist(), strict=True))
    assert by_value[0.0] == by_value[5.0] == by_value[inf] == 2**40
    assert by_value[-1.0] == 2**39 and by_value[-40.0] == 1
    assert by_value[-41.0] == by_value[-64.5] == by_value[-inf] == 0
    assert mass[np.isnan(EDGES)] == [0]


def test_nothing_outweighs_zero():
    # The polynomial may step the wrong way by one unit in the last place elsewhere, but never above its value at 0.
    below = negatives(-25)
    assert p.exp2_mass(np.float32(0)) == p.MASS_ONE
    assert p.exp2_mass(below).max() <= p.MASS_ONE


def f32(x: float) -> float:
    """Round to float32. Products and sums of two float32 in float64 round to float32 as if rounded once."""
    return struct.unpack("f", struct.pack("f", x))[0]


@given(st.floats(-45, 0, width=32))
def test_each_operation_is_rounded_to_float32(native, t):
    n = round(t)  # half to even
    f = t - n
    value = float(p.EXP2_COEFFICIENTS[-1])
    for c in reversed(p.EXP2_COEFFICIENTS[:-1]):
        value = f32(f32(value * f) + float(c))
    expected = floor(value * 2.0 ** (n + 40))
    assert p.exp2_mass(t) == expected
    assert native.map("exp2_mass", [t]) == [expected]


@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=8),
    st.floats(0, width=32, allow_nan=False, allow_infinity=True),
)
def test_softmax_t(native, logits, inv_temperature):
    x = np.array(logits, np.float32)
    top = np.fmax.reduce(x)
    t = p.softmax_t(x, top, inv_temperature)
    np.testing.assert_array_equal(native.map("softmax_t", x, top, inv_temperature), t)
    assert np.all(t[x == top] == 0)
    assert not np.any(t > 0)
    np.testing.assert_array_equal(p.exp2_mass(t) == p.MASS_ONE, (t > -(2.0**-24)))


def test_softmax_t_rows_and_limits():
    logits = np.array([[1.0, 2.0, -inf], [inf, 0.0, inf], [3.0, nan, 3.0]], np.float32)
    t = p.softmax_t(logits, [2.0, inf, 3.0], [0.5, 1.0, inf])
    assert t.dtype == np.float32
    np.testing.assert_array_equal(t[0], [-0.5 * p.LOG2E, 0.0, -inf])
    np.testing.assert_array_equal(t[1], [0.0, -inf, 0.0])
    np.testing.assert_array_equal(t[2], [0.0, nan, 0.0])
    np.testing.assert_array_equal(p.exp2_mass(t)[1:] // p.MASS_ONE, [[1, 0, 1], [1, 0, 1]])
