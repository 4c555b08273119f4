"""The first token of an answer, constrained: whatever is drafted, the tokens are those of plain decoding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.errors import ConfigError, RequestError
from specdec_hal.runner import ModelRunner, Request, SamplingParams
from tests.runner.conftest import make_runner
from tests.support.decoding import (
    ANSWER_STARTS,
    LINE_BREAK,
    THINK_END,
    THINKS_WITH,
    outputs_of,
    plain_decoding,
    prompts,
)
from tests.support.history_model import END, DeviceHistoryModel, HistoryModel
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
    for (prompt, wanted), request, output in zip(asked, requests, outputs_of(runner, *asked), strict=True):
        tokens = list(output.token_ids)
        assert tokens == plain_decoding(prompt, wanted, BORDER).tokens
        if wanted.constrains_answer:
            assert set(answers_of(tokens, request[2])) <= set(ANSWER_STARTS)


@pytest.mark.parametrize("k", [0, 2, 5])
def test_steps_that_pass_the_border_are_constrained_after_it(k: int) -> None:
    """The text that separates thinking from the answer is drafted and accepted, here and there in one step."""
    runner = reasoning_runner(speculative={"method": "ngram", "num_speculative_tokens": k})
    asked = [([seed % 20 + 1, *BORDER, 5, seed % 20 + 1], params(seed)) for seed in range(60)]
    outputs, began = outputs_of(runner, *asked), 0
    for (prompt, wanted), output in zip(asked, outputs, strict=True):
        tokens = list(output.token_ids)
        assert tokens == plain_decoding(prompt, wanted, BORDER).tokens
        assert set(answers_of(tokens)) <= set(ANSWER_STARTS)
        began += len(answers_of(tokens))
    assert began >= 15
    assert k == 0 or sum(output.accepted for output in outputs) > 100


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
