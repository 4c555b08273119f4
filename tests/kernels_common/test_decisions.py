"""Draws and acceptance tests, against Python's big integers and against the distribution they must follow."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specdec_hal.backends.reference import primitives as p
from specdec_hal.ops.enums import Purpose

u64s = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
u32s = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2**31, 2**32 - 1])
masses = st.integers(0, 2**40) | st.sampled_from([0, 1, 2**40 - 1, 2**40])


@given(u64s, u64s)
def test_mulhi64(native, a, b):
    assert p.mulhi64(np.uint64(a), np.uint64(b)) == a * b >> 64
    assert native.map("mulhi64", [a], [b]) == [a * b >> 64]


def winner(u64: int, row: list[int]) -> int:
    point, total = u64 * sum(row) >> 64, 0
    for index, mass in enumerate(row):
        total += mass
        if total > point:
            return index
    return -1


@given(u64s, st.lists(masses, min_size=1, max_size=40))
def test_draw(native, u64, row):
    expected = winner(u64, row)
    assert expected == -1 or row[expected] > 0
    assert p.draw(np.uint64(u64), row) == expected
    assert native.draw(u64, row) == [expected]


def test_draw_with_a_total_of_2_to_the_58(native):
    row = np.full((3, 2**18), p.MASS_ONE, np.uint64)
    u64 = np.array([0, 2**63, 2**64 - 1], np.uint64)
    np.testing.assert_array_equal(p.draw(u64, row), [0, 2**17, 2**18 - 1])
    np.testing.assert_array_equal(native.draw(u64, row), [0, 2**17, 2**18 - 1])


def chi_square(drawn: np.ndarray, weights: np.ndarray) -> float:
    expected = len(drawn) * weights / weights.sum()
    return float(np.sum((np.bincount(drawn, minlength=len(weights)) - expected) ** 2 / expected))


def test_draws_follow_the_masses():
    # 15 degrees of freedom: a fair generator exceeds 37.7 once in 1,000 seeds. The seeds are fixed.
    weights = np.array([1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597], np.float64)
    row = p.prob_mass((weights / weights.max()).astype(np.float32))
    for purpose in Purpose:
        drawn = p.draw(p.philox_u64(11, np.arange(100_000), purpose), np.broadcast_to(row, (100_000, 16)))
        assert chi_square(drawn, weights) < 37.7
        by_seed = p.draw(p.philox_u64(np.arange(100_000), 11, purpose), np.broadcast_to(row, (100_000, 16)))
        assert chi_square(by_seed, weights) < 37.7


@given(u32s, masses | u64s, masses)
def test_accept(native, u32, q_mass, p_mass):
    expected = (u32 * q_mass) >> 32 < p_mass
    assert bool(p.accept_test(u32, np.uint64(q_mass), p_mass)) is expected
    assert bool(native.map("accept_test", [u32], [q_mass], [p_mass])[0]) is expected
