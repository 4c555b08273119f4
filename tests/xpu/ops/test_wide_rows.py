"""Rows longer than a core's local memory, on awkward launches, bit-equal to the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.spec import FLOATS
from specdec_hal_xpu.backend import XpuSimBackend
from specdec_hal_xpu.options import Options
from tests.support import wide_rows
from tests.support.bits import assert_same_bits
from tests.support.redzone import RedZones
from tests.support.running import run, written

# One core with the whole row, cores with nothing to do, more clusters than rows; every copy late or at random.
LAUNCHES = (
    Options(clusters=1, cores=1),
    Options(clusters=12, cores=64, seed=1, dma="deferred"),
    Options(clusters=3, cores=16, seed=2, dma="random"),
    Options(clusters=255, cores=3, seed=3, dma="deferred"),
    Options(seed=4),
)
WIDTHS = (1, 17, 1023, 1025, 3001, 20_011)


STRICT = [
    Options(mode="strict", clusters=2, cores=cores, seed=seed, dma=dma)
    for seed, (cores, dma) in enumerate(
        [(64, "eager"), (64, "deferred"), (16, "random"), (5, "deferred"), (1, "random")]
    )
]


def check(op: str, inputs: dict[str, Any], options: Options, context: object = "") -> None:
    zones = RedZones(inputs)
    getattr(XpuSimBackend(options), op)(**zones.call)
    zones.check()
    assert_same_bits(written(op, zones.call), run(op, inputs), (context, options))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", wide_rows.STYLES)
def test_sampling(style, dtype):
    for seed, v in enumerate(WIDTHS):
        inputs = wide_rows.sampling(style, dtype, v, seed, some=8)
        options = LAUNCHES[(seed + len(style)) % len(LAUNCHES)]
        check("sample_target", inputs, options, (style, v))
        check("processed_probs", wide_rows.probabilities(inputs), options, (style, v))


@pytest.mark.parametrize("c", [1, 20, 128, 300])
def test_candidates(c):
    for v, options in zip((c, c + 1, 500, 3001, 20_011), LAUNCHES, strict=True):
        check("top_p_candidates", wide_rows.candidates(v, min(c, v), 0.9), options, (c, v))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", wide_rows.STYLES)
def test_logprobs(style, dtype):
    for case, v in enumerate(WIDTHS):
        n = min(v, 1 + (0, 3, 20, 129)[case % 4])
        inputs = wide_rows.logprobs(style, dtype, v, n, case)
        check("token_logprobs", inputs, LAUNCHES[case % len(LAUNCHES)], (style, v))


def test_rounding_to_sixteen_bits():
    for case, inputs in enumerate(wide_rows.rounding()):
        check("apply_penalties", inputs, LAUNCHES[case % len(LAUNCHES)])


@pytest.mark.parametrize("options", LAUNCHES, ids=str)
def test_penalties_of_a_long_history(options):
    """More ids than are tallied at a time, histories that fill several tiles of every core, drafts that repeat them."""
    rng = np.random.default_rng(5)
    m, s, length, v = 3, 4, 5000, 110_000
    inputs = generate("apply_penalties", 3, M=m, B=m, S=s, L=length, V=v, R_cap=m * s, dtype="float32", nan=False)
    text = np.where(rng.random((m, length)) < 0.5, rng.integers(0, v, (m, length)), rng.integers(0, 40, (m, length)))
    inputs |= {
        "token_ids_all": text,
        "prompt_lens": np.array([0, 2000, 4999]),
        "step_idx": np.array([5000, 1500, 1]),
        "draft_tokens": np.where(rng.random((m, s)) < 0.5, text[:, :s], rng.integers(0, v, (m, s))),
        "cu_seqlens_q_output": np.arange(m + 1, dtype=np.int32) * s,
        "batch_id_per_token_output": np.repeat(np.arange(m, dtype=np.int32), s),
        "repetition": np.array([1.1, 1.0, 2.0], np.float32),
        "frequency": np.array([0.1, 0.3, 0.0], np.float32),
        "presence": np.array([0.0, 0.7, 0.1], np.float32),
    }
    check("apply_penalties", inputs, options)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("options", [*LAUNCHES, *STRICT], ids=str)
def test_penalties_by_tiles_and_by_tokens(options, dtype):
    for seed, (v, length) in enumerate(wide_rows.PENALTY_SIZES):
        if options.mode != "strict" or length < 10_000:
            check("apply_penalties", wide_rows.penalties(dtype, v, length, seed), options, (v, length))


@pytest.mark.parametrize("options", STRICT, ids=str)
def test_clean_in_strict_mode(options):
    """No race, missing fence, bad copy or uninitialised read, whichever way a threshold is found."""
    for case, style in enumerate(wide_rows.STYLES):
        inputs = wide_rows.sampling(style, FLOATS[case % 3], 1500, options.seed, some=4)
        check("sample_target", inputs, options, style)
        check("processed_probs", wide_rows.probabilities(inputs), options, style)
        check("token_logprobs", wide_rows.logprobs(style, FLOATS[case % 3], 1500, 70, rows=3), options, style)
    check("top_p_candidates", wide_rows.candidates(700, 130, 0.9), options)
    for seed in range(20):
        check("apply_penalties", generate("apply_penalties", seed, L=40, V=111), options, seed)
