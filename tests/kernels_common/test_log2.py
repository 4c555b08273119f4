"""Fixed-point logarithms against 60-digit decimal arithmetic."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specdec_hal.backends.reference import primitives as p

# Spread over all magnitudes, not only the 64-bit ones that uniform integers mostly are.
u64s = st.integers(0, 63).flatmap(lambda bits: st.integers(2**bits, 2 ** (bits + 1) - 1))
totals = st.integers(40, 63).flatmap(lambda bits: st.integers(2**bits, 2 ** (bits + 1) - 1))

EDGES = [m for k in range(1, 64) for m in (2**k - 1, 2**k, 2**k + 1, 2**k + 2 ** (k - 1))] + [2**64 - 1]


def log2_error(got: int, m: int) -> Decimal:
    """Error of a Q32 logarithm, to 50 decimals."""
    with localcontext() as context:
        context.prec = 60
        return round(Decimal(int(got)) / 2**32 - Decimal(m).ln() / Decimal(2).ln(), 50)


@given(u64s)
def test_log2(native, m):
    got = p.log2_q32(np.uint64(m))
    assert -(Decimal(2) ** -31) < log2_error(int(got), m) <= 0
    assert native.map("log2_q32", [m]) == [got]


def test_log2_edges(native):
    m = np.array(EDGES, np.uint64)
    got = p.log2_q32(m)
    np.testing.assert_array_equal(native.map("log2_q32", m), got)
    for value, log in zip(EDGES, got, strict=True):
        assert -(Decimal(2) ** -31) < log2_error(log, value) <= 0
    powers = np.uint64(1) << np.arange(64, dtype=np.uint64)
    np.testing.assert_array_equal(p.log2_q32(powers), np.arange(64) << 32)


def test_log2_of_zero_is_that_of_one(native):
    assert p.log2_q32(0) == 0
    assert native.map("log2_q32", [0]) == [0]


def test_log2_of_many(native):
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 63, 200_000, dtype=np.uint64)
    m = rng.integers(1, 2**64 - 1, 200_000, dtype=np.uint64) >> bits
    np.testing.assert_array_equal(native.map("log2_q32", m), p.log2_q32(m))
    np.testing.assert_array_equal(native.map("ln_ratio", m), p.ln_ratio(m))


@given(totals)
def test_ln_ratio(native, total):
    got = p.ln_ratio(np.uint64(total))
    assert got.dtype == np.float32
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(total).ln() - Decimal(2**40).ln()
        # 2^-30 for the logarithm, and half a unit in the last place for the one rounding.
        assert abs(Decimal(float(got)) - exact) <= Decimal(2) ** -30 + exact * Decimal(2) ** -24
    assert native.map("ln_ratio", [total]) == [got]


def test_ln_ratio_edges(native):
    total = np.array([0, 1, 2**39, 2**40 - 1, 2**40, 2**40 + 1, 2**41, 2**58, 2**64 - 1], np.uint64)
    got = p.ln_ratio(total)
    np.testing.assert_array_equal(native.map("ln_ratio", total), got)
    np.testing.assert_array_equal(got[:5], 0)
    np.testing.assert_allclose(got[6:8], np.log(2.0) * np.array([1, 18]), rtol=2.0**-24)


def test_the_constant():
    with localcontext() as context:
        context.prec = 60
        assert round(Decimal(2).ln() * 2**64) == p.LN2_Q64
