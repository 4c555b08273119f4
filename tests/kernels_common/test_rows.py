"""The row rules in C++ (sampling, candidates, log-probabilities, penalties) against the reference, bit by bit.

Every op runs with one rank and with several that share a row, some of them without a chunk of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.primitives import chunk_masses, mass_product
from specdec_hal.conformance.inputs.generate import cases, generate, hostile
from specdec_hal.ops import OPS
from specdec_hal.ops.spec import FLOATS
from specdec_hal.tensors.native import load_library
from tests.support import wide_rows
from tests.support.bits import assert_same_bits
from tests.support.redzone import RedZones
from tests.support.running import run, written

ROW_OPS = ("sample_target", "processed_probs", "top_p_candidates", "token_logprobs", "apply_penalties")
SPLITS = ((1, 1000), (2, 7), (3, 16), (5, 33))
BY_TILES = 0  # instead of a window of tallies
WIDTHS = (1, 2, 17, 257, 1023, 1024, 1025, 2999)


def check(op: str, inputs: dict[str, Any], split: tuple[int, int], context: object = "", window: int = 50) -> None:
    zones = RedZones(inputs)
    operands = [zones.call.get(name) for name in OPS[op].by_name]
    attrs = [int(zones.call.get(attr.name, attr.default)) for attr in OPS[op].attrs]
    extra = (window,) if op == "apply_penalties" else ()
    load_library("specdec_common")[op](*operands, *attrs, *split, *extra)(0)
    zones.check()
    assert_same_bits(written(op, zones.call), run(op, inputs), (context, split))


@pytest.mark.parametrize("make", [generate, hostile])
@pytest.mark.parametrize("op", ROW_OPS)
def test_generated(op, make):
    for options in cases(op, 120):
        check(op, make(op, **options), SPLITS[options["seed"] // 2 % len(SPLITS)], options)


@pytest.mark.parametrize("style", ["smooth", "tied", "constant", "mostly -inf", "steep"])
def test_draws_at_prefix_sums(style):
    """Points that random numbers hardly ever meet: just before, at and behind the sum over the first tokens."""
    row = wide_rows.row_of(style, 2300, np.random.default_rng(4))
    chunks = chunk_masses(row, np.float32(1))
    inside = mass_product(np.cumsum(chunks.masses, axis=1, dtype=np.uint64), chunks.weights[:, None])
    before = np.cumsum(chunks.shares, dtype=np.uint64) - chunks.shares
    sums = (inside + before[:, None]).reshape(-1)[: len(row)]
    points = np.unique(np.concatenate([np.zeros(1, np.uint64), sums - np.uint64(1), sums, sums + np.uint64(1)]))
    points = points[points < chunks.total]
    found = np.full(len(points), -7, np.int64)
    load_library("specdec_common")["row_draw"](row, points, found)
    np.testing.assert_array_equal(found, np.searchsorted(sums, points, side="right"))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", wide_rows.STYLES)
def test_sampling_wide_rows(style, dtype):
    """Rows with more elements than the short list and than the buckets, so that every kind of search is made."""
    for seed, v in enumerate(WIDTHS):
        inputs = wide_rows.sampling(style, dtype, v, seed)
        split = SPLITS[(seed + len(style)) % len(SPLITS)]
        check("sample_target", inputs, split, (style, v))
        check("processed_probs", wide_rows.probabilities(inputs), split, (style, v))


@pytest.mark.parametrize("c", [1, 5, 127, 128, 129, 300, 2000])
def test_candidates_of_wide_rows(c):
    for v in (w for w in (c, c + 1, 500, 2999) if w >= c):
        for split, top_p in zip(SPLITS, (0.9, 0.0, 1.0, 0.3), strict=True):
            check("top_p_candidates", wide_rows.candidates(v, c, top_p), split, (c, v))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", wide_rows.STYLES)
def test_logprobs_of_wide_rows(style, dtype):
    for case, v in enumerate(WIDTHS):
        n = min(v, 1 + (0, 3, 20, 128, 129, 200)[case % 6])
        check("token_logprobs", wide_rows.logprobs(style, dtype, v, n), SPLITS[case % len(SPLITS)], (style, v))


@pytest.mark.parametrize("window", [BY_TILES, 1, 3, 64, 10**4])
def test_penalties_tallied_in_windows(window):
    for options in cases("apply_penalties", 60):
        inputs = generate("apply_penalties", **{**options, "L": 40, "V": 111})
        check("apply_penalties", inputs, SPLITS[options["seed"] % len(SPLITS)], options, window)


@pytest.mark.parametrize("dtype", FLOATS)
def test_penalties_by_tiles(dtype):
    for seed, (v, length) in enumerate(wide_rows.PENALTY_SIZES):
        if length < 10_000:
            inputs = wide_rows.penalties(dtype, v, length, seed)
            check("apply_penalties", inputs, SPLITS[seed % 4], (v, length), BY_TILES)


@pytest.mark.parametrize("short", [0, 1])
def test_penalties_of_as_many_tokens_as_are_listed(short):
    """Each token once: they just fit the rank's list; with one place less the history is searched again instead."""
    length = 64
    inputs = generate("apply_penalties", 3, M=4, B=4, S=5, L=length, V=111, W=0, dtype="float32", states=("decode",))
    inputs["token_ids_all"][:] = np.random.default_rng(0).permutation(111)[:length]
    inputs["draft_tokens"][:] = np.setdiff1d(np.arange(111), inputs["token_ids_all"][0])[:5]
    inputs["prompt_lens"][:], inputs["step_idx"][:] = 30, length - 30
    inputs["repetition"][:], inputs["frequency"][:], inputs["presence"][:] = 1.3, 0.5, 0.25
    check("apply_penalties", inputs, (1, length + 5 - short), window=111)


def test_rounding_to_sixteen_bits():
    for inputs in wide_rows.rounding():
        for window in (8192, BY_TILES):
            check("apply_penalties", inputs, (1, 512), inputs["repetition"], window)
