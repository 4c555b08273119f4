"""The one-slot rules of the C++ headers, run serially over batches, give the reference's bits for any input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.conformance.inputs.generate import cases, generate, hostile
from specdec_hal.ops import get_op
from specdec_hal.tensors.native import load_library
from tests.support.running import BACKEND, assert_same, copied, run, written

PARTS = {"verify_draft_tokens": (0, 1, 3, 1000), "ngram_match": (1, 4), "hybrid_mtp_ngram": (1, 3)}
"""Ops whose bulk work the test splits, and into how many parts; 0: the form for lanes that take a position each."""
OPS = (
    "prepare_inputs",
    "update_model_status",
    "gather_accepted",
    "schedule_slots",
    "set_stop_sequences",
    "write_accepted",
    "limit_thinking",
    "insert_first_token",
    "ngram_index_update",
    "apply_token_bitmask",
    "truncate_drafts",
    *PARTS,
)


def run_native(op: str, inputs: dict[str, Any], *parts: int) -> dict[str, np.ndarray]:
    spec, call = get_op(op), copied(inputs)
    tensors = [call.get(operand.name) for operand in spec.operands]
    load_library("specdec_common")[op](*tensors, *(int(call[attr.name]) for attr in spec.attrs), *parts)(0)
    return written(op, call)


@pytest.mark.parametrize("make", [generate, hostile])
@pytest.mark.parametrize("op", OPS)
def test_equal_to_the_reference(op, make):
    count = 20 if op == "ngram_index_update" and make is hostile else 90
    for options in cases(op, count):
        inputs = make(op, workspace=BACKEND.workspace, **options)
        if op == "ngram_index_update" and make is generate:
            inputs["index"][:] = 0
        expected = run(op, inputs)
        for parts in PARTS.get(op, ()):
            assert_same(run_native(op, inputs, parts), expected, (options, parts))
        if op not in PARTS:
            assert_same(run_native(op, inputs), expected, options)


def test_a_top_p_that_is_not_a_number():
    """Counts as 1 in every form of the draw."""
    drawn = 0
    for seed in range(40):
        inputs = generate("verify_draft_tokens", seed, strategy="TOPP", accept_policy="REJECT_ALL", C=4, V=40)
        inputs["top_p"][:] = np.nan
        expected = run("verify_draft_tokens", inputs)
        for parts in (0, 1):
            assert_same(run_native("verify_draft_tokens", inputs, parts), expected, (seed, parts))
        drawn += int(expected["accept_num"].sum())
    assert drawn > 20


@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram"])
def test_with_an_index_of_the_history(op):
    """An index that the reference built, so that look-ups find something."""
    names = ("token_ids_all", "prompt_lens", "step_idx", "seq_lens_encoder", "seq_lens_decoder")
    found = 0
    for options in cases(op, 200):
        inputs = generate(op, index=True, pre_ids=False, workspace=BACKEND.workspace, **options)
        inputs["index"][:] = 0
        sizes = {name: inputs[name] for name in ("max_ngram_size", "min_ngram_size")}
        built = {"index": inputs["index"], **{name: inputs[name] for name in names}, **sizes}
        inputs["index"] = run("ngram_index_update", built)["index"]
        assert_same(run_native("ngram_index_update", built), {"index": inputs["index"]}, options)
        expected = run(op, inputs)
        assert_same(run_native(op, inputs, 1), expected, options)
        found += int((expected["draft_tokens"] != inputs["draft_tokens"]).any())
    assert found > 40
