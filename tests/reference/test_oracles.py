"""Every op of the reference against an independent brute-force oracle, on generated inputs."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.conformance.inputs.generate import cases, generate
from specdec_hal.ops import OPS, Purpose
from tests.support import (
    exact,
    oracle_bitmask,
    oracle_drafter,
    oracle_ngram,
    oracle_phases,
    oracle_rows,
    oracle_slots,
    wide_rows,
)
from tests.support.running import assert_same, run

ORACLES = {
    name: getattr(module, name)
    for module in (oracle_slots, oracle_rows, oracle_ngram, oracle_phases, oracle_bitmask, oracle_drafter)
    for name in OPS
    if hasattr(module, name)
}
INEXACT = ("apply_penalties", "token_logprobs")  # compared below: their oracles answer in other types
CLOSE = {"rtol": 3e-7, "atol": 3e-7}
"""Masses are good to 2^-22, their logarithm to 2^-30, and two float32 operations round."""
COUNT = {"sample_target": 80, "processed_probs": 80, "apply_penalties": 80}  # slow oracles; 200 of the others


def test_every_op_has_an_oracle():
    assert set(OPS) - set(ORACLES) == {"ngram_index_update", "ngram_index_reset"}  # test_ngram_index


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("op", [op for op in ORACLES if op not in INEXACT])
def test_op(op, part):
    for options in list(cases(op, COUNT.get(op, 200)))[part::2]:
        inputs = generate(op, **options)
        actual, expected = run(op, inputs), ORACLES[op](inputs)
        if op == "sample_target":
            compare_logprobs(actual, expected, options)
        assert_same(actual, expected, options)


def compare_logprobs(actual, expected, context):
    """Those of `sample_target`, if there are any; takes them away."""
    if "logprobs" in actual:
        np.testing.assert_allclose(actual.pop("logprobs"), expected.pop("logprobs"), **CLOSE, err_msg=str(context))


@pytest.mark.parametrize("style", ["smooth", "mostly -inf"])
def test_rows_of_several_chunks(style):
    some = 2
    inputs = wide_rows.sampling(style, "float32", v=1100, seed=1, some=some)
    few = [0, 1, *(some + wide_rows.ODD_PARAMS.index((t, 1, 0, 0)) for t in (1, 0.7))]
    inputs = {name: value[few] if isinstance(value, np.ndarray) else value for name, value in inputs.items()}
    inputs["purpose"] = Purpose.SAMPLE
    actual, expected = run("sample_target", inputs), ORACLES["sample_target"](inputs)
    compare_logprobs(actual, expected, style)
    assert_same(actual, expected, style)
    probs = wide_rows.probabilities(inputs)
    assert_same(run("processed_probs", probs), ORACLES["processed_probs"](probs), style)


def test_apply_penalties():
    for options in cases("apply_penalties", COUNT["apply_penalties"]):
        inputs = generate("apply_penalties", **options)
        expected = ORACLES["apply_penalties"](inputs)["logits"]
        actual = run("apply_penalties", inputs)["logits"]
        assert actual.dtype == inputs["logits"].dtype
        widened = [exact.widen(row) for row in actual]
        np.testing.assert_array_equal(np.array(widened).reshape(-1), np.array(expected).reshape(-1), str(options))


def test_token_logprobs():
    for options in cases("token_logprobs", 200):
        inputs = generate("token_logprobs", **options)
        expected, actual = ORACLES["token_logprobs"](inputs), run("token_logprobs", inputs)
        for name in ("ids", "ranks"):
            np.testing.assert_array_equal(actual[name].reshape(-1), np.ravel(expected[name]), f"{name} {options}")
        np.testing.assert_allclose(
            actual["logprobs"].reshape(-1), np.ravel(expected["logprobs"]), **CLOSE, err_msg=str(options)
        )


def test_logprobs_of_a_large_vocabulary():
    rng = np.random.default_rng(5)
    inputs = generate("token_logprobs", 3, V=50_000, R_cap=4, A_cap=4, B=1, M=1, N=5, dtype="float32")
    inputs["logits"] = rng.normal(scale=3, size=(4, 50_000)).astype(np.float32)
    inputs["rows"], inputs["token_ids"] = np.arange(4, dtype=np.int32), np.arange(4) * 1000
    inputs["cu_batch_token_offset"] = np.array([0, 4], np.int32)
    x = inputs["logits"].astype(np.float64)
    exact_logprobs = x - x.max(1, keepdims=True) - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True))
    actual = run("token_logprobs", inputs)
    wanted = np.take_along_axis(exact_logprobs, actual["ids"], 1)
    np.testing.assert_allclose(actual["logprobs"], wanted, rtol=1e-6)
    np.testing.assert_array_equal(actual["ranks"], (x >= x[np.arange(4), inputs["token_ids"]][:, None]).sum(1))
