"""Conversions and the arithmetic of halves against NumPy's, on numbers of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.xpu.calls import Call
from tests.support.xpu_program import SOURCES


@pytest.fixture(scope="module")
def call(xpu_programs):
    program = xpu_programs([SOURCES / "numbers.xpu"], ["narrow", "halves"], "fast", profiles=["portable"])

    def run(kernel, *arguments):
        ran = program.run([Call(kernel, arguments, 1, 16)])
        assert (ran.statuses, ran.findings) == ([0], []), ran.err

    return run


def assert_same_bits(got, expected):
    """But for NaN, of which there are many."""
    both = np.isnan(got) & np.isnan(expected)
    bits = f"u{expected.itemsize}"
    np.testing.assert_array_equal(got.view(bits)[~both], expected.view(bits)[~both])


def floats():
    rng = np.random.default_rng(39)
    edges = [
        0.0,
        -0.0,
        0.5,
        -0.5,
        2.7,
        -2.7,
        65504,
        65519.99,
        65520,
        2**-24,
        2**-25,
        2**31,
        -(2**31),
        127.9,
        -128.9,
        np.inf,
    ]
    narrow = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    # Of every exponent; of those that halves and bytes have; halves, and the middles between them; the edges.
    every = rng.integers(0, 2**32, 2**15, dtype=np.uint32).view(np.float32)
    small = rng.normal(scale=100, size=2**15).astype(np.float32)
    middles = (narrow.view(np.uint32) + 0x1000).view(np.float32)
    x = np.concatenate([every, small, narrow, middles, np.array(edges, np.float32), [-np.inf, np.nan]]).astype(
        np.float32
    )
    return np.pad(x, (0, -len(x) % 32))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.filterwarnings("ignore:invalid value")
def test_narrowing(call):
    x = floats()
    n = len(x)
    nearest, cut = np.zeros((2, n), np.float16)
    brain, whole, byte = np.zeros(n, np.uint16), np.zeros(n, np.int32), np.zeros(n, np.int8)
    call("narrow", x, nearest, cut, brain, whole, byte, n)
    rounded = x.astype(np.float16)
    assert_same_bits(nearest, rounded)
    # The next half toward zero, where rounding went away from it.
    beyond = np.abs(rounded.astype(np.float32)) > np.abs(x)
    assert_same_bits(cut, np.where(beyond, np.nextafter(rounded, np.float16(0)), rounded))
    np.testing.assert_array_equal(brain, (x.view(np.uint32) >> 16).astype(np.uint16))
    wide = np.where(np.isnan(x), 0, np.trunc(x.astype(np.float64)))
    np.testing.assert_array_equal(whole, np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32))
    np.testing.assert_array_equal(byte, np.clip(wide, -128, 127).astype(np.int8))


@pytest.mark.filterwarnings("ignore")
def test_halves(call):
    """Every half with some other: NumPy rounds once, as a lane does."""
    rng = np.random.default_rng(40)
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    y = np.where(rng.integers(0, 8, len(x)) == 0, x, rng.permutation(x))
    n = len(x)
    wide, out, masks = np.zeros(n, np.float32), np.zeros((n // 32, 6, 32), np.float16), np.zeros((n // 32, 2), np.int32)
    call("halves", x.copy(), y.copy(), wide, out, masks, n)
    assert_same_bits(wide, x.astype(np.float32))
    expected = (x + y, x - y, x * y, x / y, np.where(x > y, x, y), np.abs(x))
    for k, values in enumerate(expected):
        assert_same_bits(np.ascontiguousarray(out[:, k]).reshape(-1), values)
    found = (masks[:, :, None] >> np.arange(32) & 1).astype(bool)
    np.testing.assert_array_equal(found[:, 0].reshape(-1), x < y)
    np.testing.assert_array_equal(found[:, 1].reshape(-1), x == y)
