"""Philox4x32-10 against Random123's published known-answer vectors, and how a decision becomes counter and key."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_hal.backends.reference import primitives as p
from specdec_hal.ops.enums import Purpose

# The philox4x32 lines with 10 rounds of the file kat_vectors that comes with Random123.
KNOWN_ANSWERS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]

seeds = st.integers(-(2**63), 2**63 - 1)
u32s = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(native, counter, key, expected):
    np.testing.assert_array_equal(p.philox4x32_10(counter, key), expected)
    np.testing.assert_array_equal(native.philox4x32_10([counter], [key]), [expected])


@given(seed=seeds, position=seeds, purpose=st.sampled_from(list(Purpose)), index=u32s)
def test_words_of_a_decision(native, seed, position, purpose, index):
    s, q = seed % 2**64, position % 2**64
    expected = p.philox4x32_10([q % 2**32, q >> 32, purpose, index], [s % 2**32, s >> 32])
    np.testing.assert_array_equal(p.philox_words(seed, position, purpose, index), expected)
    np.testing.assert_array_equal(native.philox_words([seed], [position], int(purpose), [index]), [expected])


def test_u32_and_u64_are_words_0_and_1():
    seed, position = np.arange(5), np.arange(5) * 1000
    w0, w1, _, _ = p.philox_words(seed, position, Purpose.RESIDUAL)
    np.testing.assert_array_equal(p.philox_u32(seed, position, Purpose.RESIDUAL), w0)
    u64 = p.philox_u64(seed, position, Purpose.RESIDUAL)
    assert u64.dtype == np.uint64
    assert [int(x) for x in u64] == [int(high) << 32 | int(low) for low, high in zip(w0, w1, strict=True)]


def test_no_two_decisions_share_a_number():
    position = np.arange(2000)
    words = [p.philox_u64(seed, position, purpose) for seed in (0, 1, -1) for purpose in Purpose]
    assert len(np.unique(np.concatenate(words))) == 3 * len(Purpose) * len(position)
