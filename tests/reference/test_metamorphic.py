"""Relations between ops, and between an op's answers to related questions.

That results belong to requests and not to slots is the conformance suite's to check.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.conformance.generated import op_inputs
from specdec_hal.conformance.inputs.generate import generate
from specdec_hal.ops import MatchPolicy, SlotAction, TokenOrder
from tests.support.running import assert_same, run


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
        texts = [name for name in ("token_ids_all", "draft_tokens", "pre_ids") if name in inputs]
        renamed = {**inputs, **{name: inputs[name] * 3 + 11 for name in texts}}
        expected = run("ngram_match", inputs)
        expected["draft_tokens"] = expected["draft_tokens"] * 3 + 11
        assert_same(run("ngram_match", renamed), expected, seed)


@settings(max_examples=100)
@given(op_inputs("set_stop_sequences"))
def test_a_step_of_many_tokens_stops_where_plain_decoding_stops(inputs):
    """Feeding the emitted tokens one a step, until one ends a stop sequence."""
    out = run("set_stop_sequences", inputs)
    length = inputs["token_ids_all"].shape[1]
    for b, count in enumerate(inputs["accept_num"]):
        start = int(inputs["prompt_lens"][b] + inputs["step_idx"][b])
        if start + count > length:
            continue  # plain decoding has no room for that history
        shared = ("end_tokens", "end_after_stop", "keep_tail")
        plain = {n: v if n in shared else v[b : b + 1].copy() for n, v in inputs.items()}
        plain["accept_num"][:] = 1
        kept, limit = count, inputs["max_dec_len"][b]
        for i, token in enumerate(inputs["accept_tokens"][b, :count]):
            plain["accept_tokens"][0, 0], plain["max_dec_len"][0] = token, -1
            if (stopped := run("set_stop_sequences", plain)["max_dec_len"][0]) != -1:
                kept, limit = i + 1, stopped
                break
            plain["token_ids_all"][0, start + i] = token
            plain["step_idx"] += 1
        assert (out["accept_num"][b], out["max_dec_len"][b]) == (kept, limit)


@settings(max_examples=100)
@given(op_inputs("limit_thinking"))
def test_a_step_of_many_tokens_is_limited_as_plain_decoding_is(inputs):
    """Feeding the emitted tokens one a step, until another one takes the place of one."""
    out = run("limit_thinking", inputs)
    shared = ("end_tokens", "inject_token_ids", "think_end_id", "fastdeploy", "keep_tail")
    for b, count in enumerate(inputs["accept_num"]):
        plain = {n: v if n in shared else v[b : b + 1].copy() for n, v in inputs.items()}
        plain["accept_num"][:] = 1
        emitted = []
        for token in inputs["accept_tokens"][b, :count]:
            plain["accept_tokens"][0, 0] = token
            step = run("limit_thinking", plain)
            emitted.append(step["accept_tokens"][0, 0])
            plain |= {name: step[name] for name in ("limit_status", "max_reply_lens")}
            plain["step_idx"] += 1
            if emitted[-1] != token:
                break
        assert out["accept_tokens"][b, : len(emitted)].tolist() == emitted
        assert (out["accept_num"][b], out["limit_status"][b]) == (len(emitted), plain["limit_status"][0])
        assert out["max_reply_lens"][b] == plain["max_reply_lens"][0]


@settings(max_examples=60)
@given(op_inputs("schedule_slots", M=3, B=3), st.integers(1, 9))
def test_chunks_cover_a_text_whatever_their_width(inputs, width):
    """Cut anywhere, the chunks of a prefill hold the row's tokens in order, and the last one ends with the row."""
    rows, length = inputs["token_ids_all"], inputs["token_ids_all"].shape[1]
    inputs["slot_actions"][:] = SlotAction.PREFILL
    inputs["input_ids"] = np.full((len(rows), width), -7, np.int64)
    seen: list[np.ndarray] = []
    for start in range(0, length, width):
        inputs["chunk_starts"][:], inputs["chunk_lens"][:] = start, width
        out = run("schedule_slots", inputs)
        assert (out["seq_lens_decoder"] == start).all()
        seen.append(out["input_ids"][:, : out["seq_lens_this_time"][0]])
    np.testing.assert_array_equal(np.concatenate(seen, axis=1), rows)
