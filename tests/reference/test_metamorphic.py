"""What must not change when a batch does: results belong to requests, not to slots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.ops import OPS, MatchPolicy, TokenOrder
from specdec_hal.ops.generate import generate
from tests.strategies import op_inputs
from tests.support.relayout import Relayout
from tests.support.running import BACKEND, assert_same, run

BY_SLOT = [op for op in OPS if op not in ("sample_target", "processed_probs")]
FIXED = {
    # In backend order, rows of one slot need not be together; test_oracles covers that order.
    "adjust_batch": {"token_order": TokenOrder.SLOT},
    "recover_batch": {"token_order": TokenOrder.SLOT},
    "gather_next_token": {"token_order": TokenOrder.SLOT},
    # The budget is the one thing that requests share.
    "ngram_match": {"token_budget": 10**9},
    "hybrid_mtp_ngram": {"token_budget": 10**9},
    "ngram_index_update": {"workspace": BACKEND.workspace, "max_ngram_size": 3},
    "ngram_index_reset": {"workspace": BACKEND.workspace},
}


def slots_in_use(inputs):
    for name in ("seq_lens_this_time", "cu_seqlens_q_output", "cu_batch_token_offset"):
        if name in inputs:
            return len(inputs[name]) - (name != "seq_lens_this_time")
    if "batch_id_per_token_output" in inputs:
        return int(inputs["batch_id_per_token_output"].max(initial=-1)) + 1
    return len(next(iter(inputs.values())))  # ops over all M slots


@pytest.mark.parametrize("op", BY_SLOT)
@settings(max_examples=60)
@given(data=st.data())
def test_a_slot_depends_on_nothing_but_itself(op, data):
    """Permuted, alone, without some of the others, or among more padding: always the same."""
    inputs = data.draw(op_inputs(op, **FIXED.get(op, {})), label="inputs")
    if "index" in inputs:
        inputs["index"][:] = 0
    slots = slots_in_use(inputs)
    count = data.draw(st.integers(0 if slots == 0 else 1, slots), label="kept")
    order = data.draw(st.permutations(range(slots)), label="order")[:count]
    m = len(order) + data.draw(st.integers(not order, 3), label="padding")
    if op == "top_p_candidates":  # its slots are those of a [M] tensor
        m = max(m, 1)

    before = run(op, inputs)
    place = Relayout(op, {**inputs, **before}, slots, order, m)
    after = run(op, {name: place.move(name, value)[0] for name, value in inputs.items()})
    for name, value in before.items():
        if count == slots or name not in ("has_running", "num_tokens"):  # these two are about the whole batch
            moved, known = place.move(name, value)
            np.testing.assert_array_equal(after[name][:known], moved[:known], name)


@pytest.mark.parametrize("op", ["sample_target", "processed_probs"])
@settings(max_examples=60)
@given(data=st.data())
def test_a_row_depends_on_nothing_but_itself(op, data):
    inputs = data.draw(op_inputs(op))
    order = data.draw(st.permutations(range(len(inputs["logits"]))))
    order = order[: data.draw(st.integers(0, len(order)))]
    moved = {name: value[order] for name, value in inputs.items()}
    before, after = run(op, inputs), run(op, moved)
    for name in before:
        np.testing.assert_array_equal(after[name], before[name][order])


@settings(max_examples=100)
@given(op_inputs("gather_next_token"))
def test_plain_and_speculative_gathering_hold_the_same_rows(inputs):
    """For slots with at most one output row: packed or scattered."""
    slt, enc = inputs["seq_lens_this_time"], inputs["seq_lens_encoder"][: len(inputs["seq_lens_this_time"])]
    inputs["x"] = np.arange(1, inputs["x"].size + 1, dtype=np.float32).reshape(inputs["x"].shape)
    width, capacity = inputs["x"].shape[1], len(inputs["batch_id_per_token_output"])
    packed = {**inputs, "is_speculative": True, "out": np.full((capacity, width), 9, np.float32)}
    scattered = {**inputs, "is_speculative": False, "out": np.full((len(slt), width), 9, np.float32)}
    packed_rows, scattered_rows = (run("gather_next_token", a)["out"] for a in (packed, scattered))
    for b in np.flatnonzero((slt == 1) | ((enc > 0) & (slt > 0))):
        np.testing.assert_array_equal(packed_rows[inputs["cu_seqlens_q_output"][b]], scattered_rows[b])
    assert not scattered_rows[slt == 0].any()


@settings(max_examples=60)
@given(op_inputs("adjust_batch"), st.sampled_from(TokenOrder))
def test_recover_undoes_adjust(inputs, order):
    inputs["token_order"] = order
    adjusted = run("adjust_batch", inputs)["out"]
    recovered = run("recover_batch", {**inputs, "x": adjusted})["out"]
    tokens = int(inputs["cu_seqlens_q"][-1])
    np.testing.assert_array_equal(recovered[:tokens], inputs["x"][:tokens])
    assert not recovered[tokens:].any()


@settings(max_examples=60)
@given(op_inputs("apply_penalties", nan=False))
def test_penalties_of_a_draft_row_are_those_of_plain_decoding(inputs):
    """Row i equals the only row of a request that has already accepted the first i drafts."""
    penalised = run("apply_penalties", inputs)["logits"]
    length = inputs["token_ids_all"].shape[1]
    for r, b in enumerate(inputs["batch_id_per_token_output"]):
        if b < 0:
            continue
        i = r - int(inputs["cu_seqlens_q_output"][b])
        start = int(inputs["prompt_lens"][b] + inputs["step_idx"][b])
        if start + i > length:
            continue  # plain decoding has no room for that history
        plain = {n: v[b : b + 1].copy() for n, v in inputs.items() if n not in ("logits", "end_tokens")}
        plain["token_ids_all"][0, start : start + i] = inputs["draft_tokens"][b, 1 : i + 1]
        plain["step_idx"] += i
        plain["cu_seqlens_q_output"] = np.array([0, 1], np.int32)
        plain["batch_id_per_token_output"] = np.array([0], np.int32)
        plain.update(logits=inputs["logits"][r : r + 1], end_tokens=inputs["end_tokens"])
        np.testing.assert_array_equal(run("apply_penalties", plain)["logits"][0], penalised[r])


@pytest.mark.parametrize("policy", MatchPolicy)
def test_renaming_tokens_renames_the_drafts(policy):
    """A look-up compares tokens and nothing else."""
    for seed in range(60):
        inputs = generate("ngram_match", seed, match_policy=policy, states=("decode", "idle"))
        renamed = {**inputs, **{n: inputs[n] * 3 + 11 for n in ("token_ids_all", "draft_tokens")}}
        expected = run("ngram_match", inputs)
        expected["draft_tokens"] = expected["draft_tokens"] * 3 + 11
        assert_same(run("ngram_match", renamed), expected, seed)
