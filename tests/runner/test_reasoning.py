"""The first token of an answer, constrained: whatever is drafted, the tokens are those of plain decoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specdec_hal as sd
from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.errors import ConfigError, RequestError
from specdec_hal.runner import ModelRunner, Request, SamplingParams
from tests.runner.conftest import make_runner
from tests.runner.test_equality import ANSWER_STARTS, LINE_BREAK, THINK_END, THINKS_WITH, plain_decoding, prompts
from tests.support.history_model import END, DeviceHistoryModel, HistoryModel, logits_after
from tests.support.oracle_phases import awaits_answer

BORDER = [LINE_BREAK, THINK_END, LINE_BREAK, LINE_BREAK]
BORDERS = {LINE_BREAK: 80.0, THINK_END: 75.0}
"""Bias under which texts are made of the two tokens, and so full of borders, which look-ups draft."""


def reasoning_runner(**sections: Any) -> ModelRunner:
    model_settings = {**THINKS_WITH, "think_end_text": BORDER, **sections.pop("model_settings", {})}
    return make_runner(model_settings=model_settings, **sections)


def params(seed: int, **thinking: Any) -> SamplingParams:
    return SamplingParams(
        temperature=10.0, seed=seed, max_new_tokens=24, logit_bias=BORDERS, bad_token_ids=[END],
        thinking={"constrain_answer": True, **thinking},
    )  # fmt: skip


def answers_of(tokens: list[int], thinks: bool = True) -> list[int]:
    """The tokens that had to begin an answer."""
    return [tokens[n] for n in range(len(tokens)) if awaits_answer(tokens[:n], thinks, THINK_END, LINE_BREAK)]


@settings(max_examples=40)
@given(
    requests=st.lists(
        st.tuples(prompts, st.integers(0, 2**32), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=6,
    ),
    k=st.integers(0, 6), slots=st.integers(1, 4), chunk=st.integers(1, 9), method=st.sampled_from(["ngram", "mtp"]),
    device=st.booleans(), overlap=st.booleans(), spare=st.integers(0, 3),
)  # fmt: skip
def test_phases_with_drafts_are_those_without(
    requests: list[tuple[list[int], int, bool, bool, bool]], k: int, slots: int, chunk: int, method: str,
    device: bool, overlap: bool, spare: int,
) -> None:  # fmt: skip
    """Beside requests that are not constrained, or do not think; preempted, and in chunks."""
    runner = reasoning_runner(
        model=DeviceHistoryModel() if device else HistoryModel(),
        runner={
            "max_num_seqs": slots, "prefill_chunk": chunk, "overlap": overlap, "block_size": 4, "debug": True,
            "num_kv_blocks": 12 + spare,
        },
        speculative={"method": method, "num_speculative_tokens": k},
    )  # fmt: skip
    asked = [
        (prompt, params(seed, enabled=thinks, constrain_answer=constrained, max_tokens=6 if limited else None))
        for prompt, seed, thinks, constrained, limited in requests
    ]
    for number, (prompt, wanted) in enumerate(asked):
        runner.add_request(Request(str(number), prompt, wanted))
    outputs = runner.run()
    for number, (prompt, wanted) in enumerate(asked):
        tokens = list(outputs[str(number)].token_ids)
        assert tokens == plain_decoding(prompt, wanted, BORDER).tokens
        if wanted.constrains_answer:
            assert set(answers_of(tokens, requests[number][2])) <= set(ANSWER_STARTS)


@pytest.mark.parametrize("k", [0, 2, 5])
def test_steps_that_pass_the_border_are_constrained_after_it(k: int) -> None:
    """The text that separates thinking from the answer is drafted and accepted, here and there in one step."""
    runner = reasoning_runner(speculative={"method": "ngram", "num_speculative_tokens": k})
    asked = [([seed % 20 + 1, *BORDER, 5, seed % 20 + 1], params(seed)) for seed in range(60)]
    for seed, (prompt, wanted) in enumerate(asked):
        runner.add_request(Request(str(seed), prompt, wanted))
    outputs = runner.run()
    began = 0
    for seed, (prompt, wanted) in enumerate(asked):
        tokens = list(outputs[str(seed)].token_ids)
        assert tokens == plain_decoding(prompt, wanted, BORDER).tokens
        assert set(answers_of(tokens)) <= set(ANSWER_STARTS)
        began += len(answers_of(tokens))
    assert began >= 15
    assert k == 0 or sum(output.accepted for output in outputs.values()) > 100


def test_log_probabilities_are_of_the_models_logits() -> None:
    prompt, wanted = [9, 5, 7], params(3, enabled=False)
    with_scores = wanted.model_copy(update={"logprobs": 0})
    runner = reasoning_runner()
    runner.add_request(Request("a", prompt, with_scores))
    output = runner.run()["a"]
    assert output.token_ids[0] in ANSWER_STARTS
    logits = logits_after(prompt).astype(np.float64)
    raw = logits[output.token_ids[0]] - np.log(np.exp(logits).sum())
    assert output.logprobs[0].logprob == pytest.approx(raw, abs=1e-5)


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_journal_goes_on_at_the_border(steps: int) -> None:
    requests = [Request(str(seed), [9, 5, 6, 7, 5, 6], params(seed, max_tokens=4)) for seed in range(3)]
    runner = reasoning_runner(runner={"max_num_seqs": 2})
    for request in requests:
        runner.add_request(request)
    for _ in range(steps):
        runner.step()
    other = reasoning_runner(runner={"max_num_seqs": 3, "prefill_chunk": 4})
    other.restore(runner.snapshot())
    outputs = other.run()
    for seed, request in enumerate(requests):
        expected = plain_decoding([9, 5, 6, 7, 5, 6], request.params, BORDER).tokens
        assert list(outputs[str(seed)].token_ids) == expected


def test_a_slot_forgets_the_request_before() -> None:
    runner = reasoning_runner(runner={"max_num_seqs": 1})
    asked = [params(seed, constrain_answer=seed % 2 == 0, enabled=seed % 3 > 0) for seed in range(6)]
    for seed, wanted in enumerate(asked):
        runner.add_request(Request(str(seed), [9, 5, 6], wanted))
    outputs = runner.run()
    for seed, wanted in enumerate(asked):
        assert list(outputs[str(seed)].token_ids) == plain_decoding([9, 5, 6], wanted).tokens


def test_a_loop_of_ones_own_starts_every_request_again() -> None:
    state = sd.DecodeState(
        max_num_seqs=2, num_speculative_tokens=3, max_model_len=16, prefill_chunk=8, answer_start_ids=ANSWER_STARTS
    )
    slots = sd.SlotWriter(state)
    for slot, constrained in enumerate([True, False]):
        state["reasoning_status"][slot], state["reasoning_seen"][slot] = 2, 9
        thinking = {"constrain_answer": constrained, "enabled": constrained}
        slots.admit(slot, [1, 2], SamplingParams(thinking=thinking))
    slots.upload()
    assert state["reasoning_status"].tolist() == [0, 3]
    assert state["reasoning_seen"].tolist() == [-1, -1]
    assert state["enable_thinking"].tolist() == [True, False]
    assert state["allowed_tokens"].tolist() == ANSWER_STARTS


def test_what_is_refused() -> None:
    runner = make_runner(model_settings={"think_end_id": THINK_END})
    with pytest.raises(RequestError, match=r"request 'a': thinking.constrain_answer: .*set model.answer_start_ids"):
        runner.add_request(Request("a", [1], params(0)))
    with pytest.raises(ConfigError, match=r"model.answer_start_ids: expected line_break_id beside it"):
        make_runner(model_settings={"think_end_id": THINK_END, "answer_start_ids": [5]})
    with pytest.raises(ConfigError, match=r"model.answer_start_ids: expected ids below 24, got 24"):
        make_runner(model_settings={**THINKS_WITH, "answer_start_ids": [24]})


def test_a_backend_without_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = {op: able for op, able in ReferenceBackend.capabilities.items() if op != "reasoning_constraint"}
    monkeypatch.setattr(ReferenceBackend, "capabilities", lacks)
    with pytest.raises(RequestError, match="needs the op reasoning_constraint, which the backend lacks"):
        reasoning_runner().add_request(Request("a", [1], params(0)))
