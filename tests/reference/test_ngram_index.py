"""With an up-to-date index, look-ups give what they give without one: for every input, policy and series of updates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.errors import ArgumentError
from specdec_hal.ops import MatchPolicy
from specdec_hal.ops.inputs.generate import cases, generate
from tests.support.ngram_texts import TEXTS, Indexing, come_grow_and_leave, scene
from tests.support.running import BACKEND, assert_same, run

MATCHERS = ("ngram_match", "hybrid_mtp_ngram")
SIZES = ("max_ngram_size", "min_ngram_size")


def assert_index_changes_nothing(op, inputs, index):
    expected = run(op, inputs)
    actual = run(op, {**inputs, "index": index})
    actual.pop("index")
    assert_same(actual, expected)


@pytest.mark.parametrize("op", MATCHERS)
def test_built_at_once(op):
    for options in cases(op, 240):
        inputs = generate(op, index=False, pre_ids=False, **{**options, "max_ngram_size": 4})
        sizes = {name: inputs[name] for name in SIZES}
        indexed = Indexing(BACKEND, run, sizes)
        index = indexed.updated(indexed.fresh(*inputs["token_ids_all"].shape), inputs)
        for policy in MatchPolicy:
            assert_index_changes_nothing(op, {**inputs, "match_policy": policy}, index)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), largest=st.integers(1, 6), smallest=st.integers(1, 6))
def test_kept_up_to_date(text, seed, largest, smallest):
    """Requests come, grow by accepted tokens, leave, and others take their slots."""
    rng = np.random.default_rng(seed)
    m, length, s = 3, 48, 5
    sizes = {"max_ngram_size": max(largest, smallest), "min_ngram_size": min(largest, smallest)}
    state, indexed = scene(m, length, s, sizes), Indexing(BACKEND, run, sizes)
    index = indexed.fresh(m, length)
    for _ in range(20):
        index = indexed.updated(indexed.reset(index, come_grow_and_leave(rng, text, state)), state)
        for op in MATCHERS:
            for policy in MatchPolicy:
                assert_index_changes_nothing(op, {**state, "match_policy": policy}, index)


@pytest.mark.parametrize("op", [*MATCHERS, "ngram_index_update"])
def test_an_index_full_of_anything_stays_inside_its_arrays(op):
    """A stale index (a history changed, no reset) may give other drafts, but only ever tokens of the text."""
    for seed in range(300):
        look_up = {"index": True, "pre_ids": False, "states": ("decode", "idle")}
        given = {} if op == "ngram_index_update" else look_up
        inputs = generate(op, seed, workspace=BACKEND.workspace, L=8, max_ngram_size=2, **given)
        words = inputs["index"].view(np.int32)
        words[:] = np.random.default_rng(seed).integers(-3, 14, words.shape)
        out = run(op, inputs)
        for b in range(len(inputs.get("seq_lens_this_time", ()))):
            changed = out["draft_tokens"][b][out["draft_tokens"][b] != inputs["draft_tokens"][b]]
            assert set(changed) <= {*inputs["token_ids_all"][b], *inputs["draft_tokens"][b]}


def test_an_index_of_the_wrong_size_is_refused():
    inputs = generate("ngram_match", 0, L=8, max_ngram_size=3, min_ngram_size=1, index=False, pre_ids=False)
    index = Indexing(BACKEND, run, {"max_ngram_size": 9, "min_ngram_size": 1}).fresh(len(inputs["step_idx"]), 8)
    with pytest.raises(ArgumentError, match=r"'index': expected shape .*backend.workspace"):
        BACKEND.ngram_match(**inputs, index=index)
    with pytest.raises(ArgumentError, match=r"'max_ngram_size'.*got M, L; pass it to workspace"):
        BACKEND.workspace("ngram_match", M=1, L=8)
