"""The exponential of activations: C++ equal to NumPy, and both close to float64."""

from __future__ import annotations

from math import inf, nan

import numpy as np

from specdec_hal.backends.reference.primitives import exp_f32

BOUND = 2.0**-22.5


def test_values(native):
    x = np.concatenate([np.linspace(-87, 88, 400_001), np.linspace(-1, 1, 100_001)]).astype(np.float32)
    ours = exp_f32(x)
    np.testing.assert_array_equal(native.map("exp_f32", x), ours)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(ours / exact - 1).max() <= BOUND


def test_edges(native):
    x = np.array([0.0, -0.0, 1e-45, 88, np.nextafter(np.float32(88), inf), -87, -87.00001, -inf, inf, nan, 3e38])
    x = x.astype(np.float32)
    ours = exp_f32(x)
    np.testing.assert_array_equal(native.map("exp_f32", x), ours)
    assert ours[[0, 1, 2]].tolist() == [1, 1, 1]
    assert np.isfinite(ours[3]) and ours[5] > 0
    assert ours[[4, 6, 7, 8, 10]].tolist() == [inf, 0, 0, inf, inf] and np.isnan(ours[9])


def test_each_operation_is_rounded_to_float32():
    x = np.float32(1)
    n, f32 = np.float32(1), np.float32  # 1 * log2(e) = 1.44 is rounded to 1
    rest = f32(f32(x - n * f32(float.fromhex("0x1.62e4p-1"))) - n * f32(float.fromhex("0x1.7f7d1cp-20")))
    f = f32(rest * f32(float.fromhex("0x1.715476p+0")))
    value = f32(float.fromhex("0x1.416b54p-13"))
    for c in ("0x1.5f082ep-10", "0x1.3b2de0p-7", "0x1.c6af7cp-5", "0x1.ebfbdcp-3", "0x1.62e430p-1", "0x1p+0"):
        value = f32(f32(value * f) + f32(float.fromhex(c)))
    assert exp_f32(x) == 2 * value
