"""Conversions and the arithmetic of halves against NumPy's, on numbers of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.xpu.calls import Call
from tests.support.xpu_program import SOURCES


@pytest.fixture(scope="module")
def call(xpu_programs):
    kernels = ["narrow", "halves", "convert_float16", "convert_bfloat16", "moves"]
    program = xpu_programs([SOURCES / "numbers.xpu"], kernels, "fast", profiles=["portable"])

    def run(kernel, *arguments):
        ran = program.run([Call(kernel, arguments, 1, 16)])
        assert (ran.statuses, ran.findings) == ([0], []), ran.err

    return run


def assert_same_bits(got, expected):
    """Except for NaN, of which there are many."""
    both = np.isnan(got) & np.isnan(expected)
    bits = f"u{expected.itemsize}"
    np.testing.assert_array_equal(got.view(bits)[~both], expected.view(bits)[~both])


def floats():
    rng = np.random.default_rng(39)
    edges = [
        0.0, -0.0, 0.5, -0.5, 2.7, -2.7, 65504, 65519.99, 65520, 2**-24, 2**-25, 2**31, -(2**31), 127.9, -128.9, np.inf,
    ]  # fmt: skip
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
    nearest, truncated = np.zeros((2, n), np.float16)
    brain, whole, byte = np.zeros(n, np.uint16), np.zeros(n, np.int32), np.zeros(n, np.int8)
    call("narrow", x, nearest, truncated, brain, whole, byte, n)
    rounded = x.astype(np.float16)
    assert_same_bits(nearest, rounded)
    # The next half toward zero, where rounding went away from it.
    beyond = np.abs(rounded.astype(np.float32)) > np.abs(x)
    assert_same_bits(truncated, np.where(beyond, np.nextafter(rounded, np.float16(0)), rounded))
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


MASK = 0x5A31C00F


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_lines_of_halves(call, kind):
    """Loaded as floats, and floats stored as halves: every half; floats of every kind."""
    every, f = np.arange(2**16, dtype=np.uint16), floats()[: 2**16].copy()
    n = len(every)
    on = np.tile(MASK >> np.arange(32) & 1, n // 32).astype(bool)
    wide, out = np.zeros((n // 32, 3, 32), np.float32), np.zeros((n // 32, 4, 32), np.uint16)
    if kind == "float16":
        x, expected, rounded = every.view(np.float16), every.view(np.float16).astype(np.float32), f.astype(np.float16)
        call("convert_float16", x.copy(), f, wide, out.view(np.float16), MASK, n)
    else:
        x, expected, rounded = every, (every.astype(np.uint32) << 16).view(np.float32), f.view(np.uint32) >> 16
        call("convert_bfloat16", every.copy(), f, wide, out, MASK, n)
    assert_same_bits(np.ascontiguousarray(wide[:, 0]).reshape(-1), expected)
    assert_same_bits(np.ascontiguousarray(wide[:, 1]).reshape(-1), np.where(on, expected, np.float32(0)))
    assert_same_bits(np.sort(wide[:, 2]), np.sort(expected.reshape(-1, 32)))  # in any order

    def check(row, values, bits):
        got = np.ascontiguousarray(out[:, row]).reshape(-1)
        if kind == "float16":
            return assert_same_bits(got.view(np.float16), values)
        np.testing.assert_array_equal(got, bits)

    check(0, x if kind == "float16" else None, every)  # what the unordered load gave, stored as unordered
    for row, values in ((1, rounded), (2, np.where(on, rounded, np.zeros(1, rounded.dtype))), (3, rounded)):
        check(row, values, values)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_words_are_moved_as_they_are(call):
    """Loads, stores, gathers and scatters with their masks: any bits, in LM as floats and in SM as integers."""
    rng = np.random.default_rng(41)
    x = np.concatenate([floats().view(np.uint32)[-256:], rng.integers(0, 2**32, 2**10, dtype=np.uint32)])
    n = len(x)
    y, index = rng.permutation(x), rng.integers(0, 16, n).astype(np.int32)
    index[: n // 2] = np.concatenate([rng.permutation(16) for _ in range(n // 32)])
    out = np.zeros((n // 16, 2, 9, 16), np.uint32)
    mask = 0xC35A
    call("moves", x.view(np.float32), y.view(np.float32), index, out.view(np.float32).reshape(-1), mask, n)
    v, w, at = x.reshape(-1, 16), y.reshape(-1, 16), index.reshape(-1, 16)
    on = (mask >> np.arange(16) & 1).astype(bool)
    gathered = np.take_along_axis(v, at, 1)
    scattered, part = w.copy(), w.copy()
    for lane in range(16):  # the last of those that go to one place stays
        for target, wanted in ((scattered, True), (part, on[lane])):
            if wanted:
                np.put_along_axis(target, at[:, lane : lane + 1], v[:, lane : lane + 1], 1)
    expected = (
        np.where(on, v, 0), np.where(on, v, w), gathered, np.where(on, gathered, 0), np.where(on, gathered, w),
        np.where(on, v, 0), np.where(on, v, w), scattered, part,
    )  # fmt: skip
    for space in range(2):
        for row, values in enumerate(expected):
            np.testing.assert_array_equal(out[:, space, row], values, err_msg=f"{('LM', 'SM')[space]}, form {row}")
