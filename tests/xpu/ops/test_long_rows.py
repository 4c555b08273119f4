"""Rows longer than local memory, and more slots than cores."""

from __future__ import annotations

import pytest

from specdec_hal.ops import MatchPolicy
from specdec_hal.ops.inputs.generate import generate
from specdec_hal_xpu.backend import XpuSimBackend
from specdec_hal_xpu.options import Options
from tests.support import large, recurrent_shapes
from tests.support.running import BACKEND, assert_same, run, searched

LAUNCHES = [
    Options(),
    Options(clusters=1, cores=1),
    Options(clusters=5, cores=7, seed=9, dma="deferred"),
    Options(mode="strict", dma="deferred"),
]


@pytest.mark.parametrize("op", large.BIG)
def test_large(op):
    for seed in range(2):
        inputs = generate(op, seed, workspace=XpuSimBackend(LAUNCHES[0]).workspace, **large.BIG[op])
        expected = searched(op, inputs)
        for options in LAUNCHES:
            assert_same(run(op, inputs, XpuSimBackend(options)), expected, (seed, options))


@pytest.mark.parametrize("op", ["causal_conv1d", "gated_delta_rule", "mamba2_step"])
def test_widths_of_recurrent_layers(op):
    for number, (context, inputs) in enumerate(recurrent_shapes.calls(op)):
        options = LAUNCHES[number % len(LAUNCHES)]
        assert_same(run(op, inputs, XpuSimBackend(options)), run(op, inputs), (context, options))


@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram"])
def test_padding_more_slots_than_are_granted_together(op):
    sizes = {"M": 2500, "B": 2500, "S": 4, "L": 6, "token_budget": 5000, "pad_to_max": True, "index": False}
    inputs = generate(op, 1, **sizes)
    expected = run(op, inputs)
    for options in LAUNCHES:
        assert_same(run(op, inputs, XpuSimBackend(options)), expected, options)


@pytest.mark.parametrize("strategy", ["REJECTION", "TOPP"])
def test_a_wide_vocabulary(strategy):
    """More tokens than one core's tiles, so that a draw crosses tiles and cores."""
    for seed in range(6):
        options = {"M": 3, "S": 3, "V": 5000, "C": 900} | ({} if strategy == "TOPP" else {"C": 1})
        inputs = generate("verify_draft_tokens", seed, strategy=strategy, accept_policy="NORMAL", **options)
        expected = run("verify_draft_tokens", inputs)
        for launch in LAUNCHES:
            assert_same(run("verify_draft_tokens", inputs, XpuSimBackend(launch)), expected)


@pytest.mark.parametrize("policy", MatchPolicy)
@pytest.mark.parametrize("cores", [1, 7, 64])
def test_the_same_ngram_in_several_parts_of_the_history(policy, cores):
    """The match that the policy prefers wins, whichever core finds it: longest, then leftmost or latest."""
    backend = XpuSimBackend(Options(clusters=1, cores=cores, seed=2))
    for trial, inputs in enumerate(large.repeated_ngrams(policy)):
        expected = run("ngram_match", inputs, BACKEND)
        assert expected["seq_lens_this_time"][0] > 1 or inputs["pad_to_max"]
        assert_same(run("ngram_match", inputs, backend), expected, trial)


@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram"])
@pytest.mark.parametrize("period", [1, 2, 50, 127, 128, 129, 299, 300])
def test_cycles_longer_and_shorter_than_a_tile(op, period):
    inputs, expected = large.cycles(op, period)
    for options in LAUNCHES:
        actual = run(op, inputs, XpuSimBackend(options))
        assert actual["seq_lens_this_time"].tolist() == expected["seq_lens_this_time"], options
        assert actual["draft_tokens"].tolist() == expected["draft_tokens"], options
