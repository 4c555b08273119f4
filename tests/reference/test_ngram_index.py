"""With an up-to-date index, look-ups give what they give without one: for every input, policy and series of updates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.conformance.inputs.generate import cases, generate
from specdec_hal.errors import ArgumentError
from specdec_hal.ops import MatchPolicy
from tests.support.building import build
from tests.support.running import BACKEND, assert_same, run

MATCHERS = ("ngram_match", "hybrid_mtp_ngram")
HISTORY = ("token_ids_all", "prompt_lens", "step_idx", "seq_lens_encoder", "seq_lens_decoder")
SIZES = ("max_ngram_size", "min_ngram_size")


def fresh_index(m, length, sizes):
    layout = BACKEND.workspace("ngram_match", M=m, L=length, **sizes)["index"]
    index = np.full(layout.shape, 0xA5, layout.dtype)
    BACKEND.ngram_index_reset(index, np.ones(m, np.bool_))
    return index


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
        index = fresh_index(*inputs["token_ids_all"].shape, sizes)
        BACKEND.ngram_index_update(index, *(inputs[name] for name in HISTORY), **sizes)
        for policy in MatchPolicy:
            assert_index_changes_nothing(op, {**inputs, "match_policy": policy}, index)


TEXTS = {
    "two letters": lambda rng, n: rng.integers(0, 2, n),
    "all equal": lambda rng, n: np.full(n, 7),
    "periodic": lambda rng, n: np.resize(rng.integers(0, 9, int(rng.integers(1, 6))), n),
    "wide ids": lambda rng, n: rng.integers(0, 3, n) * (1 << 40) - 5,
    "mixed": lambda rng, n: np.where(
        np.arange(n) < n // 2, rng.integers(0, 30, n), np.resize(rng.integers(0, 30, 4), n)
    ),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), largest=st.integers(1, 6), smallest=st.integers(1, 6))
def test_kept_up_to_date(text, seed, largest, smallest):
    """Requests come, grow by accepted tokens, leave, and others take their slots."""
    rng = np.random.default_rng(seed)
    m, length, s = 3, 48, 5
    sizes = {"max_ngram_size": max(largest, smallest), "min_ngram_size": min(largest, smallest)}
    state = build(
        "ngram_match", {"M": m, "L": length, "S": s, "B": m}, draft_token_num=[s - 1] * m, **sizes,
        token_budget=10**9, match_policy=MatchPolicy.LATEST,
    )  # fmt: skip
    index = fresh_index(m, length, sizes)
    for _ in range(20):
        ends = state["prompt_lens"] + state["step_idx"]
        leaving = (state["seq_lens_decoder"] == 0) | (ends >= length) | (rng.random(m) < 0.1)
        BACKEND.ngram_index_reset(index, leaving)
        for b in range(m):
            if leaving[b]:
                state["token_ids_all"][b] = text(rng, length)
                state["prompt_lens"][b] = rng.integers(1, length)
                state["step_idx"][b] = 1
            else:
                state["step_idx"][b] += rng.integers(0, s + 1)  # an idle step, or accepted tokens
            state["seq_lens_decoder"][b] = min(state["prompt_lens"][b] + state["step_idx"][b] - 1, length)
        state["draft_tokens"][:] = text(rng, m * s).reshape(m, s)
        state["seq_lens_this_time"][:] = rng.integers(1, s + 1, m)
        BACKEND.ngram_index_update(index, *(state[name] for name in HISTORY), **sizes)
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
    index = fresh_index(inputs["token_ids_all"].shape[0], 8, {"max_ngram_size": 9, "min_ngram_size": 1})
    with pytest.raises(ArgumentError, match=r"'index': expected shape .*backend.workspace"):
        BACKEND.ngram_match(**inputs, index=index)
    with pytest.raises(ArgumentError, match=r"'max_ngram_size'.*got M, L; pass it to workspace"):
        BACKEND.workspace("ngram_match", M=1, L=8)
