"""The PyTorch forms of the shared arithmetic equal the reference's, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference import primitives
from specdec_hal.ops import Purpose

torch = pytest.importorskip("torch")

from specdec_hal.parallel import masses  # noqa: E402

pytestmark = pytest.mark.torch

RNG = np.random.default_rng(0)
BITS = RNG.integers(0, 1 << 32, 1 << 18, dtype=np.uint64).astype(np.uint32)
EDGES = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1, -1, -0.5, -1.5, -40, -41, -64, 3e38, -3e38], np.float32
)
ANY_FLOAT = np.concatenate([EDGES, BITS.view(np.float32)])
TOTALS = np.concatenate(
    [[0, 1, 1 << 40, (1 << 40) + 1, (1 << 62) - 1], RNG.integers(1, 1 << 62, 20_000) >> RNG.integers(0, 62, 20_000)]
).astype(np.int64)
WORDS = RNG.integers(-(1 << 63), 1 << 63, 20_000, dtype=np.int64)


def same(found: Any, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    got = found.numpy().view(wanted.dtype)
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), wanted.view(f"u{wanted.itemsize}"))


def tensor(array: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(array))


@pytest.mark.parametrize("inverse", [1.0, 1 / 0.7, 0.0, np.inf, 1e30])
@pytest.mark.parametrize("top", [0.0, 17.25, np.inf, -np.inf])
def test_exponents(top: float, inverse: float) -> None:
    x = np.minimum(np.nan_to_num(ANY_FLOAT, nan=-1.0, posinf=np.inf, neginf=-np.inf), np.float32(top))
    near = (np.float32(min(top, 1e30)) - RNG.exponential(10, 1 << 17)).clip(-3e38, top).astype(np.float32)
    x = np.concatenate([x, near])
    wanted = primitives.softmax_t(x[None], np.float32([top]), np.float32([inverse]))[0]
    found = masses.softmax_t(tensor(x), torch.tensor(top), torch.tensor(inverse))
    defined = ~np.isnan(wanted)
    assert np.array_equal(np.isnan(found.numpy()), ~defined)
    same(found[tensor(defined)], wanted[defined])
    same(masses.exp2_mass(found), primitives.exp2_mass(wanted))


def test_masses_of_any_exponent() -> None:
    t = np.concatenate([ANY_FLOAT, -RNG.uniform(0, 66, 1 << 18).astype(np.float32), -np.arange(0, 80, 0.5, np.float32)])
    same(masses.exp2_mass(tensor(t)), primitives.exp2_mass(t))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(masses.mulhi64, primitives.mulhi64), (masses.mass_product, primitives.mass_product)],
)
def test_products(mine: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    a, b = WORDS, RNG.permutation(WORDS)
    if mine is masses.mass_product:
        a, b = a >> 13 & (1 << 50) - 1, b >> 23 & (1 << 40) - 1
        b[:9] = 1 << 40
    same(mine(tensor(a), tensor(b)), theirs(a.view(np.uint64), b.view(np.uint64)))


@pytest.mark.parametrize("purpose", list(Purpose))
def test_random_words(purpose: Purpose) -> None:
    seeds, positions = WORDS[:999], np.concatenate([WORDS[999:1899], np.arange(-9, 90)])
    same(masses.philox_u64(tensor(seeds), tensor(positions), purpose), primitives.philox_u64(seeds, positions, purpose))


def test_thresholds_and_logarithms() -> None:
    fractions = np.resize(np.concatenate([EDGES, RNG.uniform(0, 1, 5000).astype(np.float32)]), len(TOTALS))
    same(masses.threshold(tensor(fractions), tensor(TOTALS)), primitives.threshold(fractions, TOTALS.view(np.uint64)))
    same(masses.ln_ratio(tensor(TOTALS)), primitives.ln_ratio(TOTALS.view(np.uint64)))


def test_places_are_in_the_order_of_a_row() -> None:
    x = np.concatenate([EDGES, EDGES, BITS[:5000].view(np.float32)])
    ids = RNG.permutation(len(x)) + (1 << 30)
    places = masses.place(masses.order_key(tensor(x)), tensor(ids))
    assert (places > masses.NOWHERE).all()
    order = np.lexsort([ids, -np.nan_to_num(x, nan=np.inf, posinf=np.inf, neginf=-np.inf), ~np.isnan(x)])
    np.testing.assert_array_equal(np.argsort(-places.numpy(), kind="stable"), order)
    same(masses.token_at(places), ids)
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(masses.logit_at(places).numpy()[numbers], x[numbers])
