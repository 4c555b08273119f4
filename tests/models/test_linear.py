"""Products and RMS norms on a CPU: against float64, and bit for bit against themselves in calls of other sizes."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.models.linear import Weights, function, multiply, panel, replace, rms_norm, unpack
from specdec_hal.tensors.native import load_library
from tests.support.graphs import together

Array = npt.NDArray[np.float32]

NATIVE = load_library("specdec_cpu")
SETS = range(NATIVE["instruction_sets"]())


def random(rng: np.random.Generator, *shape: int, offset: int = 0) -> Array:
    """Normal numbers, `offset` floats after a cache line."""
    size = int(np.prod(shape))
    memory = np.empty(size + 32, np.float32)
    start = -memory.ctypes.data % 64 // 4 + offset
    memory[start : start + size] = rng.standard_normal(size, np.float32)
    return memory[start : start + size].reshape(shape)


def product(x: Array, weight: Any, bias: Array | None, residual: Array | None, *, threads: int = 1, set: int) -> Array:
    out = np.full((len(x), weight.outputs), np.nan, np.float32)
    NATIVE["linear"](x, weight.panels, bias, residual, threads, set, out)
    return out


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_product_is_one_and_its_bits_are_those_of_each_row_alone(data: st.DataObject) -> None:
    """Widths that are no multiple of anything, tensors at any address, by any threads."""
    inputs, outputs = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 4 * panel()))
    rows, offset = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 15))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    x, w = random(rng, rows, inputs, offset=offset), random(rng, outputs, inputs)
    bias = random(rng, outputs, offset=offset) if data.draw(st.booleans()) else None
    residual = random(rng, rows, outputs, offset=offset) if data.draw(st.booleans()) else None
    weight, chosen = Weights().pack(w), data.draw(st.sampled_from(SETS))
    got = product(x, weight, bias, residual, threads=data.draw(st.sampled_from([1, 3])), set=chosen)
    wide = x.astype(np.float64) @ w.T.astype(np.float64)
    expected = wide + (0 if bias is None else bias) + (0 if residual is None else residual)
    np.testing.assert_allclose(got, expected, rtol=0, atol=4e-6 * inputs**0.5)
    for row in range(rows):
        alone = product(
            x[row : row + 1].copy(), weight, bias, None if residual is None else residual[row : row + 1], set=chosen
        )
        assert alone.tobytes() == got[row].tobytes()


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("shape", [(576, 1536), (100, 1024), (33, 2048)])
def test_bits_in_steps_of_any_size(shape: tuple[int, int], instructions: int) -> None:
    rng = np.random.default_rng(0)
    weight, x = Weights().pack(random(rng, *shape)), random(rng, 300, shape[1])
    whole = product(x, weight, None, None, threads=3, set=instructions)
    for rows in (*range(1, 26), 95, 96, 97, 193, 256):
        for threads in (1, 2):
            part = product(x[300 - rows :], weight, None, None, threads=threads, set=instructions)
            assert part.tobytes() == whole[300 - rows :].tobytes(), (rows, threads)


@pytest.mark.parametrize("instructions", SETS)
def test_rows_and_columns_do_not_mix(instructions: int) -> None:
    """NaN in a row of x or of the weight is in that row or column of the result alone."""
    rng = np.random.default_rng(0)
    x, w = random(rng, 30, 50), random(rng, 45, 50)
    x[7, 3] = w[44, 2] = np.nan
    got = product(x, Weights().pack(w), None, None, set=instructions)
    bad = np.zeros((30, 45), bool)
    bad[7] = bad[:, 44] = True
    np.testing.assert_array_equal(np.isnan(got), bad)


def test_any_leading_dimensions_and_a_residual_in_place() -> None:
    rng = np.random.default_rng(0)
    x, weight = random(rng, 2, 3, 20), Weights().pack(random(rng, 40, 20))
    out = np.ones((2, 3, 40), np.float32)
    plain = multiply(x, weight, None, None, 1, np.empty((2, 3, 40), np.float32))
    assert multiply(x, weight, None, out, 1, out) is out
    np.testing.assert_array_equal(out, plain + np.float32(1))
    assert multiply(x[:0], weight, None, None, 2, np.empty((0, 3, 40), np.float32)).size == 0


def test_packing() -> None:
    """Weights lie one after the other, can be read back and replaced, and may come in any order of memory."""
    rng, weights = np.random.default_rng(0), Weights()
    one, two = random(rng, 2 * panel() + 5, 7), random(rng, 11, 3).T
    first, second = weights.pack(one), weights.pack(two)
    assert second.panels.ctypes.data == first.panels.ctypes.data + first.panels.nbytes
    np.testing.assert_array_equal(unpack(first), one)
    np.testing.assert_array_equal(unpack(second), two)
    replace(first, 2 * one)
    np.testing.assert_array_equal(unpack(first), 2 * one)
    np.testing.assert_array_equal(unpack(second), two)


def test_calls_at_any_distance_and_from_several_threads() -> None:
    """Helpers are awake, asleep or about to sleep, or busy for another thread."""
    rng = np.random.default_rng(0)
    x, weight = random(rng, 4, 256), Weights().pack(random(rng, 1024, 256))
    expected = product(x, weight, None, None, set=SETS[-1]).tobytes()
    wrong: list[int] = []

    def work(index: int) -> None:
        for turn in range(300):
            if product(x, weight, None, None, threads=3, set=SETS[-1]).tobytes() != expected:
                wrong.append(turn)
            end = time.perf_counter() + (turn + index) % 5 * 40e-6
            while time.perf_counter() < end:
                pass

    work(0)
    together(*(partial(work, index) for index in range(3)))
    assert wrong == []


@pytest.mark.parametrize("instructions", SETS)
@pytest.mark.parametrize("width", [1, 3, 10, 16, 64, 100, 576])
def test_norms(width: int, instructions: int) -> None:
    rng = np.random.default_rng(0)
    x, weight = random(rng, 5, width, offset=1), random(rng, width, offset=3)
    x[0], x[1] = 0, 1e-3 * x[1]
    out = np.full_like(x, np.nan)
    NATIVE["rms_norm"](x, weight, 1e-5, instructions, out)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-7)
    for row in range(5):
        alone = np.empty((1, width), np.float32)
        NATIVE["rms_norm"](x[row : row + 1].copy(), weight, 1e-5, instructions, alone)
        assert alone.tobytes() == out[row].tobytes()


def test_the_fastest_instruction_set_is_used() -> None:
    assert function("linear")[1] == SETS[-1]
    x, weight = np.ones((2, 4), np.float32), np.full(4, 2, np.float32)
    np.testing.assert_array_equal(rms_norm(x, weight, 0.0, np.empty_like(x)), 2 * x)


def refuse(message: str, **changes: Any) -> None:
    tensors = {
        "x": np.zeros((2, 5), np.float32), "weight": np.zeros((1, 5, panel()), np.float32),
        "bias": np.zeros(8, np.float32), "residual": np.zeros((2, 8), np.float32), "threads": 1, "set": 0,
        "out": np.zeros((2, 8), np.float32), **changes,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        NATIVE["linear"](*tensors.values())


def test_arguments_are_checked() -> None:
    refuse("'x': expected float32 .*2, 5.* got float64", x=np.zeros((2, 5)))
    refuse("'x': expected", x=np.zeros((5, 2), np.float32).T)
    refuse(r"'x': expected \[.., K\], got a scalar", x=np.zeros((), np.float32))
    refuse("'weight': expected float32 .*1, 6, ", x=np.zeros((2, 6), np.float32))
    refuse("'weight': expected float32 .*2, 5, ", out=np.zeros((2, panel() + 1), np.float32))
    refuse("'bias': expected float32 .*8", bias=np.zeros(7, np.float32))
    refuse("'residual': expected float32 .*2, 8", residual=np.zeros((1, 8), np.float32))
    refuse("'out': expected float32 .*2, 8", out=np.zeros((3, 8), np.float32))
    refuse("'set': expected 0", set=len(SETS))
    with pytest.raises(ValueError, match=r"rms_norm: argument 'weight': expected float32 .*5"):
        NATIVE["rms_norm"](np.zeros((2, 5), np.float32), np.zeros(4, np.float32), 0.0, 0, np.zeros((2, 5), np.float32))
