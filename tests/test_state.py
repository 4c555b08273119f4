"""The tensors of a decode loop: admitting, feeding, freeing; which operands an op gets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import specdec_hal as sd
from specdec_hal.errors import RequestError
from specdec_hal.ops import OPS, Strategy

PAGE = Path(__file__).parents[1] / "docs/use/own_decode_loop.md"


def make_state() -> sd.DecodeState:
    return sd.DecodeState(
        max_num_seqs=3, num_speculative_tokens=4, max_model_len=10, prefill_chunk=4, end_tokens=[9], max_bad_tokens=2,
        max_stop_sequences=(2, 2), think_end_text=[4, 3], answer_start_ids=[5, 6],
    )  # fmt: skip


@pytest.fixture
def state() -> sd.DecodeState:
    return make_state()


@pytest.fixture
def slots(state: sd.DecodeState) -> sd.SlotWriter:
    return sd.SlotWriter(state)


def carry_out(slots: sd.SlotWriter, backend: str = "reference") -> None:
    """The state before a step."""
    slots.upload()
    sd.get_backend(backend).schedule_slots(**slots.state.args("schedule_slots"))


def values(state: sd.DecodeState) -> dict[str, bytes]:
    return {name: tensor.tobytes() for op in OPS for name, tensor in state.args(op).items()}


def test_a_request_takes_a_slot_and_leaves_it(state: sd.DecodeState, slots: sd.SlotWriter) -> None:
    params = sd.SamplingParams(
        max_new_tokens=3, temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, seed=-5, bad_token_ids=[8],
        stop_token_ids=[7], stop_sequences=[[5, 6]],
    )  # fmt: skip
    assert slots.admit(1, [1, 2, 3], params) == 3
    carry_out(slots)
    slot = {name: state[name][1].tolist() for name in ("temperature", "top_p", "top_k", "min_p", "seed", "bad_tokens")}
    assert slot == {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "seed": -5, "bad_tokens": [8, -1]}
    assert state["stop_flags"].tolist() == [True, False, True]
    for name in ("seq_lens_encoder", "seq_lens_this_time", "prompt_lens", "max_dec_len"):
        assert state[name].tolist() == [0, 3, 0]
    assert state["draft_token_num"].tolist() == [0, 4, 0]
    assert state["token_ids_all"][1, :3].tolist() == state["input_ids"][1, :3].tolist() == [1, 2, 3]
    assert (state["stop_seqs"][1].tolist(), state["stop_seqs_lens"][1].tolist()) == ([[7, 0], [5, 6]], [1, 2])
    slots.free(1)
    assert not state["stop_flags"][1]  # decided, and not yet carried out
    carry_out(slots)
    assert state["stop_flags"].all()
    assert not state["seq_lens_encoder"].any() and not state["seq_lens_this_time"].any()


def test_nothing_stays_of_the_request_before(state: sd.DecodeState, slots: sd.SlotWriter) -> None:
    fresh = make_state()
    harsh = sd.SamplingParams(
        temperature=1.0, repetition_penalty=2.0, frequency_penalty=1.0, presence_penalty=1.0, min_new_tokens=2,
        bad_token_ids=[1, 2], num_speculative_tokens=1, max_new_tokens=4, stop_sequences=[[1], [2]],
        thinking={"max_tokens": 5, "max_reply_tokens": 4, "constrain_answer": True},
    )  # fmt: skip
    slots.admit(0, [1, 2, 3, 4], harsh)
    carry_out(slots)
    assert (state["max_think_lens"].tolist(), state["max_reply_lens"].tolist()) == ([5, 0, 0], [4, 0, 0])
    assert state["inject_token_ids"].tolist() == [4, 3] and state["allowed_tokens"].tolist() == [5, 6]
    for name in ("step_idx", "seq_lens_decoder", "is_block_step", "reasoning_status", "reasoning_seen", "limit_status"):
        state.write(name, 0, 1)
    slots.free(0)
    for each in (slots, sd.SlotWriter(fresh)):
        each.admit(0, [5, 6, 7, 8], sd.SamplingParams(thinking={"max_tokens": 2}))
        carry_out(each)
        each.state.write("stop_seqs", slice(None), 0)  # of these, only what `stop_seqs_lens` covers counts
    assert values(state) == values(fresh)


def test_lists_are_sent_where_a_request_or_the_one_before_has_some(
    state: sd.DecodeState, slots: sd.SlotWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[list[list[int]]]()
    lists = state.request_lists
    monkeypatch.setattr(lists, "upload", lambda: sent.append(lists.host["bad_tokens"].tolist()))
    for slot, bad in ((0, []), (0, []), (2, []), (0, [3]), (0, [4]), (0, []), (0, []), (2, [])):
        slots.admit(slot, [1], sd.SamplingParams(bad_token_ids=bad))
        carry_out(slots)
    rows = [[-1, -1]], [[-1, -1]], [[3, -1]], [[4, -1]], [[-1, -1]]
    assert [values[:1] for values in sent] == [*rows]
    carry_out(slots)
    assert len(sent) == len(rows)


def test_a_decision_is_for_one_step(state: sd.DecodeState, slots: sd.SlotWriter) -> None:
    slots.admit(0, [1, 2], sd.SamplingParams())
    carry_out(slots)
    assert state["seq_lens_encoder"].tolist() == [2, 0, 0]
    state.write("seq_lens_encoder", 0, 0)
    slots.admit(2, [3], sd.SamplingParams())
    carry_out(slots)
    assert state["seq_lens_encoder"].tolist() == [0, 0, 1]
    state.write("seq_lens_encoder", 2, 0)
    carry_out(slots)
    assert not state["seq_lens_encoder"].any()


def test_the_last_decision_counts(state: sd.DecodeState, slots: sd.SlotWriter) -> None:
    slots.admit(0, [1, 2], sd.SamplingParams())
    slots.free(0)
    slots.free(1)
    slots.admit(1, [3, 4, 5], sd.SamplingParams())
    carry_out(slots)
    assert state["stop_flags"].tolist() == [True, False, True]
    assert state["seq_lens_this_time"].tolist() == [0, 3, 0]


def test_a_long_prompt_is_fed_in_pieces(state: sd.DecodeState, slots: sd.SlotWriter) -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7]
    assert slots.admit(2, prompt, sd.SamplingParams()) == 4
    carry_out(slots)
    assert state["input_ids"][2].tolist() == [1, 2, 3, 4]
    assert state["token_ids_all"][2].tolist() == [*prompt, 0, 0, 0]
    assert state["max_dec_len"][2] == 3  # what is left of the slot
    assert slots.feed(2, 4) == 7
    carry_out(slots)
    assert state["input_ids"][2, :3].tolist() == [5, 6, 7]
    assert state["seq_lens_encoder"][2] == state["seq_lens_this_time"][2] == 3
    assert state["seq_lens_decoder"][2] == 4


@pytest.mark.parametrize(
    ("slot", "prompt", "params", "message"),
    [
        (3, [1], {}, r"expected one in \[0, 3\)"),
        (-1, [1], {}, r"expected one in \[0, 3\)"),
        (0, [], {}, "slot 0: empty prompt"),
        (0, [1] * 10, {}, "or raise max_model_len"),
        (0, [[1]], {}, r"expected a flat list of integers, got \[\[1\]\]"),
        (0, [[1], [2, 3]], {}, "expected a flat list of integers"),
        (0, [1.5], {}, r"expected a flat list of integers, got \[1\.5\]"),
        (0, [1], {"bad_token_ids": [1, 2, 3]}, "at most 2 bad_token_ids, got 3"),
        (0, [1], {"stop_token_ids": [1, 2], "stop_sequences": [[3]]}, "at most 2 stop_token_ids and .* got 3"),
        (0, [1], {"stop_sequences": [[3, 4, 5]]}, "of at most 2 tokens, got one of 3"),
        (0, [1], {"num_speculative_tokens": 5}, "num_speculative_tokens 5 exceeds 4"),
    ],
)
def test_what_there_is_no_room_for_is_refused(
    state: sd.DecodeState, slots: sd.SlotWriter, slot: int, prompt: Any, params: dict[str, Any], message: str
) -> None:
    before = values(state)
    with pytest.raises(RequestError, match=message):
        slots.admit(slot, prompt, sd.SamplingParams(**params))
    assert values(state) == before


@pytest.mark.parametrize("strategy", [*Strategy, *(member.name.lower() for member in Strategy)])
def test_an_op_gets_what_its_attributes_want(state: sd.DecodeState, strategy: Strategy | str) -> None:
    args = state.args("verify_draft_tokens", strategy=strategy, end_at_limit=True)
    refused = {
        "greedy": {"top_p"},
        "target_match": {"top_p"},
        "topp": {"target_tokens"},
        "rejection": {"top_p", "target_tokens"},
    }
    name = strategy if isinstance(strategy, str) else strategy.name.lower()
    assert state.args("verify_draft_tokens").keys() - args.keys() == refused[name]
    assert (args["strategy"], args["end_at_limit"]) == (strategy, True)
    v, rows = {"V": 12}, state.symbols["R_cap"]
    mine = {
        "topp": {n: state.allocate(n, C=3, **v) for n in ("candidate_ids", "candidate_scores", "candidate_lens")},
        "rejection": {"target_probs": state.allocate("target_probs", **v)},
    }
    assert rows == len(state["target_tokens"])
    sd.get_backend("reference").bind("verify_draft_tokens", **args, **mine.get(name, {}))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_the_loop_of_the_page_gives_sampled_requests_their_plain_tokens(backend: str) -> None:
    """Two at once, one of them joining late, one with drafts."""
    code = "".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S))
    page: dict[str, Any] = {}
    exec(compile(code.replace('"reference"', f'"{backend}"'), PAGE.name, "exec"), page)
    state, slots, step, generate = (page[name] for name in ("state", "slots", "step", "generate"))
    running = {0, 1}
    how = [{"temperature": 0.25, "seed": seed, "max_new_tokens": 30} for seed in (1, 2)]
    plain = [generate(0, [3 + i, 5], num_speculative_tokens=0, **how[i])[0] for i in range(2)]
    out: list[list[int]] = [[], []]
    slots.admit(1, [3, 5], sd.SamplingParams(**how[0]))
    for _ in range(4):
        out[0] += step()[1]
    slots.admit(0, [4, 5], sd.SamplingParams(**how[1]))
    while running:
        gained = step()
        out = [out[0] + gained[1], out[1] + gained[0]]
        running = {slot for slot in running if not state["stop_flags"][slot]}
    assert out == plain
    assert len(plain[0]) > 4


@pytest.mark.parametrize("op", ["draft_model_preprocess", "draft_model_update"])
def test_draft_models_keep_no_second_history(state: sd.DecodeState, op: str) -> None:
    """With FastDeploy's `pre_ids` these ops work in another way."""
    assert "draft_tokens" in state.of_draft_model({}).args(op)
    assert "pre_ids" not in state.of_draft_model({}).args(op)
