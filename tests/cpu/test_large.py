"""Calls that several threads share, or that are searched and summed in pieces, bit-equal to the reference."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.cpu.backend import CpuBackend
from specdec_hal.backends.cpu.options import Options
from specdec_hal.ops import MatchPolicy
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.spec import FLOATS
from tests.support import large, recurrent_shapes, wide_rows
from tests.support.bits import assert_same_bits
from tests.support.redzone import RedZones
from tests.support.running import run, searched, written

ALONE, TOGETHER = CpuBackend(Options(threads=1)), CpuBackend(Options(threads=3))
WIDTHS = (1, 17, 1023, 1025, 3001, 20_011)


def check(op: str, inputs: dict[str, Any], context: object = "", expected: dict[str, Any] | None = None) -> None:
    """On one thread and on several, which write nothing beside the outputs."""
    expected = run(op, inputs) if expected is None else expected
    for backend in (ALONE, TOGETHER):
        zones = RedZones(inputs)
        getattr(backend, op)(**zones.call)
        zones.check()
        assert_same_bits(written(op, zones.call), expected, context)


@pytest.mark.parametrize(
    "op",
    [
        "adjust_batch", "recover_batch", "gather_next_token", "verify_draft_tokens", "ngram_match", "hybrid_mtp_ngram",
        "gather_draft_logits", "reasoning_constraint", "apply_token_bitmask", "map_draft_logits",
    ],
)  # fmt: skip
def test_many_slots(op: str) -> None:
    inputs = generate(op, 1, workspace=ALONE.workspace, **large.BIG[op])
    check(op, inputs, expected=searched(op, inputs))


@pytest.mark.parametrize("op", ["causal_conv1d", "gated_delta_rule", "mamba2_step"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_widths_of_recurrent_layers(op: str, dtype: str) -> None:
    for context, inputs in recurrent_shapes.calls(op, dtype=dtype):
        check(op, inputs, context)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", wide_rows.STYLES)
def test_rows(style: str, dtype: str) -> None:
    for seed, v in enumerate(WIDTHS):
        inputs = wide_rows.sampling(style, dtype, v, seed, some=8)
        check("sample_target", inputs, (style, v))
        check("processed_probs", wide_rows.probabilities(inputs), (style, v))
        n = min(v, 1 + (0, 3, 20, 129)[seed % 4])
        check("token_logprobs", wide_rows.logprobs(style, dtype, v, n, seed), (style, v))


@pytest.mark.parametrize("raised", [-6, -1, 1, 6])
def test_rows_that_are_not_as_their_part_suggests(raised: float) -> None:
    """Where a threshold is, is guessed from the first 64 of 1,024 ids."""
    for seed in range(4):
        inputs = wide_rows.sampling("smooth", "float32", 20_011, seed)
        inputs["logits"][:, np.arange(20_011) % 1024 < 64] += raised
        check("sample_target", inputs, seed)
        check("processed_probs", wide_rows.probabilities(inputs), seed)


@pytest.mark.parametrize("c", [1, 20, 128, 300])
def test_candidates(c: int) -> None:
    for v in (c, c + 1, 500, 3001, 20_011):
        check("top_p_candidates", wide_rows.candidates(v, min(c, v), 0.9), (c, v))


def test_rounding_to_sixteen_bits() -> None:
    for inputs in wide_rows.rounding():
        check("apply_penalties", inputs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_penalties(dtype: str) -> None:
    """One after the other, so that tallies that a call leaves behind would spoil the next."""
    for seed, (v, length) in enumerate(wide_rows.PENALTY_SIZES):
        check("apply_penalties", wide_rows.penalties(dtype, v, length, seed), (v, length))


@pytest.mark.parametrize("drafts", [{"draft_probs": None}, {}], ids=["one-hot", "dense"])
@pytest.mark.parametrize("v", [1, 63, 1024, 1025, 5000])
def test_residual_draws(v: int, drafts: dict[str, Any]) -> None:
    """Probabilities of every kind: a distribution, NaN, infinite, negative, above one, denormal."""
    odd = np.array([np.nan, np.inf, -np.inf, -1, 2, 1, 1e-45, 2**-40, 2**-41, 0.25, 0, -0.0], np.float32)
    for seed in range(8):
        rng = np.random.default_rng([seed, v])
        inputs = generate("verify_draft_tokens", seed, M=40, S=4, V=v, strategy="REJECTION", accept_policy="NORMAL",
                          states=("decode",), **drafts)  # fmt: skip
        for name in ("target_probs", "draft_probs"):
            if inputs.get(name) is not None and seed % 2:
                wild = rng.random(inputs[name].shape) < (0.01 if seed % 4 == 1 else 0.9)
                inputs[name][wild] = rng.choice(odd, int(wild.sum()))
        check("verify_draft_tokens", inputs, seed)


@pytest.mark.parametrize("policy", MatchPolicy)
def test_the_same_ngram_in_several_places(policy: MatchPolicy) -> None:
    for trial, inputs in enumerate(large.repeated_ngrams(policy)):
        check("ngram_match", inputs, trial)


@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram"])
@pytest.mark.parametrize("policy", MatchPolicy)
def test_matches_around_the_seam_of_a_text_in_two_arrays(policy: MatchPolicy, op: str) -> None:
    """A prompt, then tokens in an array of their own (pre_ids, or drafts), with few tokens that recur at random."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        in_history = op == "ngram_match" or seed % 2 == 0
        inputs = generate(op, seed, M=5, B=5, S=30, L=300, P=300, states=("decode",), index=False, pre_ids=in_history,
                          match_policy=policy, max_ngram_size=1 + seed % 16, min_ngram_size=1,
                          token_budget=10**6)  # fmt: skip
        inputs["max_dec_len"][:], inputs["draft_token_num"][:] = 10**6, 30
        for name in ("token_ids_all", "draft_tokens", "pre_ids"):
            if inputs.get(name) is not None:
                inputs[name][...] = rng.integers(0, (2, 3, 9, 80)[seed % 4], inputs[name].shape)
        inputs["prompt_lens"][:] = rng.choice([0, 1, 5, 15, 16, 17, 64, 200, 299, 300], 5)
        inputs["step_idx"][:] = rng.choice([0, 1, 2, 15, 16, 17, 100, 299], 5)
        check(op, inputs, seed)


@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram"])
@pytest.mark.parametrize("period", [1, 2, 50, 127, 300])
def test_cycles(op: str, period: int) -> None:
    inputs, expected = large.cycles(op, period)
    for backend in (ALONE, TOGETHER):
        actual = run(op, inputs, backend)
        assert {name: actual[name].tolist() for name in expected} == expected


POOL = """
import os
import numpy as np
import specdec_hal as sd
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.models import linear

def threads():
    return len(os.listdir("/proc/self/task"))

rows = generate("sample_target", 1, M=16, B=16, S=4, V=20_000)
backends = [sd.get_backend("cpu", options={"threads": n}) for n in (1, 3)]
weight, x = linear.Weights().pack(np.ones((1024, 1024), np.float32)), np.ones((64, 1024), np.float32)
before = threads()
for backend in backends:
    backend.sample_target(**rows)
    print(threads() - before)
assert (linear.multiply(x, weight, None, None, 3, np.empty_like(x)) == 1024).all()
print(threads() - before)
"""


def test_ops_and_products_of_models_share_one_pool() -> None:
    done = subprocess.run([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["0", "2", "2"]
