"""The generator: what it promises, and that its inputs reach what they are meant to reach."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from specdec_hal.ops import OPS, AcceptPolicy, MatchPolicy, Strategy
from specdec_hal.ops.inputs import generate as generate_module
from specdec_hal.ops.inputs.generate import DEEP, cases, generate, hostile, poison
from specdec_hal.ops.inputs.rows import ModelScene
from specdec_hal.ops.inputs.scene import STATES
from specdec_hal.ops.spec import AttrSpec, Operand, Role, TensorSpec
from specdec_hal.ops.validate import check_call, check_values
from tests.support.running import BACKEND, run


def make(op, seed, **options):
    return generate(op, seed, workspace=BACKEND.workspace, **options)


@pytest.mark.parametrize("op", OPS)
def test_generated_calls_are_valid_and_satisfy_the_value_rules(op):
    for options in cases(op, 60):
        call = make(op, **{**options, "nan": False})
        # A request may have generated more than its row of token_ids_all holds; debug mode would say so.
        checked = check_call(OPS[op], (), call, backend="x")
        if "token_ids_all" not in call and "L" not in checked.symbols:
            check_values(checked, "x")


@pytest.mark.parametrize("op", OPS)
def test_same_seed_same_inputs(op):
    first, second, third = make(op, 3), make(op, 3), make(op, 4)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)
    assert any(np.shape(third.get(n)) != np.shape(v) or not np.array_equal(third.get(n), v) for n, v in first.items())


@pytest.mark.parametrize("op", OPS)
def test_outputs_come_poisoned(op):
    call = make(op, 5, M=3, S=3, R_cap=60, T_cap=90, A_cap=60)
    for operand in OPS[op].operands:
        if operand.role is Role.OUT:
            array = call[operand.name]
            assert array.size and (array.view(np.uint8) == (1 if array.dtype == np.bool_ else 0xA5)).all()


def test_poison():
    assert poison("int32") == int.from_bytes(b"\xa5" * 4, "little", signed=True)
    assert poison("bool") is True and poison("bfloat16") == 0xA5A5 and poison("float32").dtype == np.float32


@pytest.mark.parametrize("op", OPS)
def test_hostile_calls_are_valid_in_all_but_their_values(op):
    changed = Counter()
    for seed in range(20):
        calm, call = make(op, seed), hostile(op, seed, workspace=BACKEND.workspace)
        check_call(OPS[op], (), call, backend="x")
        for name, value in calm.items():
            if isinstance(value, np.ndarray):
                assert call[name].shape == value.shape and call[name].dtype == value.dtype
                changed[name] += not np.array_equal(call[name], value, equal_nan=value.dtype.kind == "f")
            else:
                assert call[name] == value
    for operand in OPS[op].operands:
        assert (changed[operand.name] > 0) == (operand.role is not Role.OUT), operand.name


def test_options_fix_sizes_attributes_and_states():
    call = generate("verify_draft_tokens", 1, M=6, B=4, S=3, V=9, C=2, strategy="topp", verify_window=7)
    assert call["draft_tokens"].shape == (6, 3) and call["seq_lens_this_time"].shape == (4,)
    assert call["candidate_ids"].shape[1] == 2
    assert call["strategy"] is Strategy.TOPP and call["verify_window"] == 7
    assert generate("sample_target", 1, dtype="bfloat16")["logits"].dtype == np.uint16
    assert generate("adjust_batch", 1, dtype="int32")["x"].dtype == np.int32
    decode = generate("prepare_inputs", 1, states=("decode",), B=5, M=5)
    assert not decode["seq_lens_encoder"].any() and (decode["seq_lens_this_time"] >= 1).all()
    assert "draft_probs" in generate("verify_draft_tokens", 1, strategy="REJECTION", draft_probs=True)
    assert "draft_probs" not in generate("verify_draft_tokens", 1, strategy="REJECTION", draft_probs=False)
    equal = generate("ngram_match", 1, min_ngram_size=5)
    assert equal["max_ngram_size"] >= 5 == equal["min_ngram_size"]
    assert generate("ngram_match", 1, max_ngram_size=1)["min_ngram_size"] == 1


def test_wrong_options():
    with pytest.raises(LookupError, match=r"generate\('ngram_match'\): no option 'strategi'"):
        generate("ngram_match", 0, strategi="TOPP")
    with pytest.raises(LookupError, match="no option 'statess'; did you mean 'states'"):
        generate("ngram_match", 0, statess=("decode",))
    with pytest.raises(ValueError, match="break C <= V"):
        generate("top_p_candidates", 0, C=5, V=4)
    with pytest.raises(LookupError, match="only a backend knows the size of 'index'; pass its `workspace`"):
        generate("ngram_index_reset", 0)


def test_what_nobody_taught_the_scene_is_an_error(monkeypatch):
    spec = OPS["ngram_index_reset"]
    unknown = Operand(TensorSpec("novelty", ("int32",), ("M",), "New."), Role.IN)
    extended = replace(spec, name="new_op", operands=(unknown,))
    monkeypatch.setattr(generate_module, "get_op", lambda name: extended)
    with pytest.raises(LookupError, match=r"generate\('new_op'\): no rule for operand 'novelty'"):
        generate("new_op", 0)
    extended = replace(spec, name="new_op", operands=(), attrs=(AttrSpec("knob", int, "New."),))
    with pytest.raises(LookupError, match=r"generate\('new_op'\): no rule for attribute 'knob'"):
        generate("new_op", 0)
    known = Operand(TensorSpec("step_idx", ("int32",), ("M",), "Another dtype."), Role.IN)
    extended = replace(spec, name="new_op", operands=(known,))
    with pytest.raises(TypeError, match=r"rule for 'step_idx': made int64 .*, declared int32"):
        generate("new_op", 0)


def test_scenes_hold_what_they_are_meant_to_hold():
    seen: Counter[str] = Counter()
    for seed in range(300):
        scene = ModelScene(seed)
        length, s = scene.size["L"], scene.size["S"]
        seen["no slot in use"] += scene.size["B"] == 0
        seen["K = 0"] += s == 1
        seen["padding"] += scene.size["B"] < scene.size["M"]
        for b, slot in enumerate(scene.slots):
            seen[slot.state] += 1
            seen["empty prompt"] += slot.prompt_len == 0
            seen["prompt of one"] += slot.prompt_len == 1
            seen["prompt fills the row"] += slot.prompt_len == length
            seen["text fills the row"] += len(slot.text) == length
            seen["text exceeds the row"] += len(slot.text) > length
            seen["drafts to the limit"] += slot.step + slot.slt == scene.max_dec_len[b]
            seen["limit reached"] += slot.step >= scene.max_dec_len[b]
            seen["end token among drafts"] += bool({*slot.drafts} & {*scene.end_tokens.tolist()})
            seen["bad draft"] += any(not 0 <= t < scene.size["V"] for t in slot.drafts)
            if slot.state == "prefill":
                last = slot.dec + slot.enc == slot.prompt_len
                seen[f"{'first' if slot.dec == 0 else 'later'} {'last' if last else 'middle'} chunk"] += 1
                assert slot.enc == slot.slt >= 1 and slot.dec + slot.enc <= slot.prompt_len
            if slot.state == "decode":
                assert slot.enc == 0 < slot.dec and 1 <= slot.slt <= s and len(slot.drafts) == slot.slt - 1
                assert slot.dec == slot.prompt_len + slot.step - 1
    expected = {
        *STATES, "no slot in use", "K = 0", "padding", "empty prompt", "prompt of one", "prompt fills the row",
        "text fills the row", "text exceeds the row", "drafts to the limit", "limit reached", "end token among drafts",
        "bad draft", "first last chunk", "first middle chunk", "later last chunk", "later middle chunk",
    }  # fmt: skip
    assert {name for name, count in seen.items() if count >= 3} >= expected


@pytest.mark.parametrize("strategy", Strategy)
def test_verification_is_reached_in_depth(strategy):
    counts: Counter[object] = Counter()
    for seed in range(150):
        call = generate("verify_draft_tokens", seed, **DEEP["verify_draft_tokens"], strategy=strategy)
        assert call["accept_policy"] is AcceptPolicy.NORMAL
        out = run("verify_draft_tokens", call)
        for b, n in enumerate(out["accept_num"][: len(call["seq_lens_this_time"])]):
            slt = int(call["seq_lens_this_time"][b])
            ended = n and (out["accept_tokens"][b, n - 1] in call["end_tokens"])
            limited = call["step_idx"][b] + n >= call["max_dec_len"][b]
            counts["accepted", min(int(n) - 1, 3)] += 1
            counts["all"] += n == slt > 2
            counts["ended early"] += bool(ended and n < slt)
            counts["limited"] += bool(limited and n < slt)
    for event in (*(("accepted", i) for i in range(4)), "all", "ended early", "limited"):
        assert counts[event] >= 3, (event, counts)


@pytest.mark.parametrize("policy", MatchPolicy)
@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram"])
def test_look_ups_are_reached_in_depth(op, policy):
    proposed: Counter[int] = Counter()
    for seed in range(150):
        call = generate(op, seed, **DEEP[op], match_policy=policy)
        out = run(op, call)
        base = call["seq_lens_this_time"].clip(1) if op == "hybrid_mtp_ngram" else 1
        proposed.update((out["seq_lens_this_time"] - base).tolist())
    assert all(proposed[n] >= 3 for n in range(6)), proposed


def test_cases_alternate_between_free_and_deep_options():
    first, second = list(cases("ngram_match", 4))[:2]
    assert first == {"seed": 0} and second == {"seed": 1, **DEEP["ngram_match"]}
    assert set(DEEP) <= set(OPS)
