"""Probabilities, fractions and ratios of integer masses, against exact rational and integer arithmetic."""

from __future__ import annotations

from fractions import Fraction
from math import floor, inf, isnan, nan

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from specdec_hal.backends.reference import primitives as p

any_f32 = st.floats(width=32)
unit_f32 = st.floats(0, 1, width=32)
totals = st.integers(0, 2**64 - 1) | st.integers(0, 2**58)
INSIDE = [0.0, -0.0, 1e-45, 1.1754942e-38, 2.0**-41, 2.0**-40, 2.0**-24, 0.1, 0.5, 0.99999994, 1.0]
OUTSIDE = [1.0000001, 3e38, inf, -inf, nan, -nan, -1.0, -1e-45]
EDGE_WEIGHTS = np.array([*INSIDE, *OUTSIDE], np.float32)


def clamp(x: float, if_nan: float) -> Fraction:
    return Fraction(if_nan if isnan(x) else min(max(x, 0.0), 1.0))


def test_edge_weights(native):
    expected = [floor(clamp(w, 0.0) * 2**40) for w in EDGE_WEIGHTS.tolist()]
    np.testing.assert_array_equal(p.prob_mass(EDGE_WEIGHTS), expected)
    np.testing.assert_array_equal(native.map("prob_mass", EDGE_WEIGHTS), expected)


def test_signalling_nan_is_a_nan_without_a_warning(native):
    x = np.array([0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    np.testing.assert_array_equal(p.prob_mass(x), [0, 0])
    np.testing.assert_array_equal(p.exp2_mass(x), [0, 0])
    np.testing.assert_array_equal(native.map("prob_mass", x), [0, 0])
    np.testing.assert_array_equal(native.map("exp2_mass", x), [0, 0])


@given(any_f32 | unit_f32)
def test_prob_mass(native, weight):
    expected = floor(clamp(weight, 0.0) * 2**40)
    assert p.prob_mass(weight) == expected
    assert native.map("prob_mass", [weight]) == [expected]


@given(any_f32 | unit_f32)
@example(nan)
def test_fraction_mass(native, fraction):
    expected = floor(clamp(fraction, 1.0) * 2**40)
    assert p.fraction_mass(fraction) == expected
    assert native.map("fraction_mass", [fraction]) == [expected]


def test_prob_mass_of_every_pattern_in_the_unit_interval_at_a_stride(native):
    w = np.arange(0, 0x3F800001, 251, dtype=np.uint32).view(np.float32)
    expected = np.floor(w.astype(np.float64) * 2**40).astype(np.uint64)  # exact: 24 bits
    np.testing.assert_array_equal(p.prob_mass(w), expected)
    np.testing.assert_array_equal(native.map("prob_mass", w), expected)


@given(any_f32 | unit_f32, totals)
def test_threshold(native, fraction, total):
    expected = floor(clamp(fraction, 1.0) * 2**24) * total >> 24
    assert p.mass_threshold(fraction, np.uint64(total)) == expected
    assert native.map("mass_threshold", [fraction], [total]) == [expected]


def test_threshold_edges(native):
    total = np.array([0, 1, 2**24 - 1, 2**40, 2**58, 2**64 - 1], np.uint64)
    fraction, total = (x.ravel() for x in np.meshgrid(EDGE_WEIGHTS, total))
    expected = [floor(clamp(f, 1.0) * 2**24) * int(t) >> 24 for f, t in zip(fraction.tolist(), total, strict=True)]
    np.testing.assert_array_equal(p.mass_threshold(fraction, total), np.array(expected, np.uint64))
    np.testing.assert_array_equal(native.map("mass_threshold", fraction, total), np.array(expected, np.uint64))


def nearest_f32(x: Fraction) -> np.float32:
    """Round a non-negative rational to float32, half to even."""
    if x == 0:
        return np.float32(0)
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > x
    unit = Fraction(2) ** (exponent - 23)
    return np.float32(float(round(x / unit) * unit))


@given(totals, totals)
def test_mass_ratio_rounds_three_times(native, mass, total):
    m, n = (Fraction(float(nearest_f32(Fraction(x)))) for x in (mass, total))
    expected = nearest_f32(m / n) if total else np.float32(0)
    assert p.mass_ratio(np.uint64(mass), np.uint64(total)) == expected
    assert native.map("mass_ratio", [mass], [total]) == [expected]


def test_many_masses_over_one_total(native):
    """The division that processed_probs writes with, whose corrections must give the rounded quotient's bits."""
    rng = np.random.default_rng(0)
    weights = np.concatenate([rng.random(200_000, np.float32) * np.exp2(-rng.integers(0, 40, 200_000)), [0, 1]])
    mass = np.floor(np.ldexp(weights.astype(np.float32), 40)).astype(np.uint64)
    random = rng.integers(1, 1 << 58, len(mass), dtype=np.uint64) >> rng.integers(0, 57, len(mass), dtype=np.uint64)
    ones = np.uint64(2**24 - 1) << rng.integers(0, 34, len(mass), dtype=np.uint64)  # a mantissa of ones
    for total in (np.maximum(random, 1), ones, np.zeros_like(mass)):
        mine = np.where(total == 0, 0, mass)
        found = native.map("mass_ratio_by_reciprocal", mine, total)
        np.testing.assert_array_equal(found.view(np.uint32), p.mass_ratio(mine, total).view(np.uint32))


def test_every_bfloat16_widens_exactly(native):
    bits = np.arange(2**16, dtype=np.uint16)
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(p.bf16_to_f32(bits).view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(native.map("bf16_to_f32", bits).view(np.uint32), expected.view(np.uint32))


def test_every_half_widens_exactly(native):
    bits = np.arange(2**16, dtype=np.uint16)
    got, expected = native.map("f16_to_f32", bits), bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(got.view(np.uint32)[numbers], expected.view(np.uint32)[numbers])  # signed zeros
