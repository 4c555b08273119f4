"""Limits of thinking: what is refused, and what a request keeps that changes its slot, or its process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.errors import ConfigError, RequestError
from specdec_hal.runner import ModelRunner, Request, SamplingParams
from specdec_hal.runner.sequence import Sequence
from tests.runner.conftest import make_runner
from tests.support.decoding import THINK_END, THINKS_WITH, outputs_of, plain_decoding
from tests.support.history_model import END, HistoryModel

TEXT = [4, THINK_END, 2, 5]
LIMITS = {"max_tokens": 5, "max_reply_tokens": 4}


def thinking_runner(*, text: list[int] = TEXT, **sections: Any) -> ModelRunner:
    return make_runner(model_settings={"think_end_id": THINK_END, "think_end_text": text}, **sections)


def params(seed: int, limits: Any = LIMITS, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.7, seed=seed, max_new_tokens=20, thinking=limits, **more)


def test_a_model_that_does_not_think() -> None:
    runner = make_runner()
    with pytest.raises(RequestError, match=r"request 'a': thinking: .*set model.think_end_id"):
        runner.add_request(Request("a", [1], params(0)))
    runner.add_request(Request("a", [1], params(0, {})))  # no limit at all


def test_an_answer_without_end_tokens_has_no_limit() -> None:
    class Endless(HistoryModel):
        def __init__(self) -> None:
            super().__init__()
            self.config = type(self.config)(
                vocab_size=self.config.vocab_size, hidden_size=self.config.hidden_size,
                max_position_embeddings=self.config.max_position_embeddings,
            )  # fmt: skip

    runner = thinking_runner(model=Endless())
    with pytest.raises(RequestError, match=r"thinking.max_reply_tokens: the model has no end token"):
        runner.add_request(Request("a", [1], params(0)))
    runner.add_request(Request("a", [1], params(0, {"max_tokens": 3})))


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"think_end_id": 24}, "model.think_end_id: expected ids below 24, got 24"),
        ({"think_end_id": 3, "think_end_text": [3, 99]}, "model.think_end_text: expected ids below 24, got 99"),
        ({"think_end_id": 3, "think_end_text": [4]}, r"model.think_end_text: .*think_end_id \(3\) among them"),
        ({"think_end_text": [4]}, "model.think_end_text"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        make_runner(model_settings=settings)


@pytest.mark.parametrize(
    "limits", [{"max_tokens": -1}, {"max_tokens": 1 << 31}, {"max_reply_tokens": 0.5}, {"x": 1}, 3]
)
def test_limits_that_cannot_be(limits: Any) -> None:
    with pytest.raises(RequestError, match="sampling parameter thinking"):
        SamplingParams(thinking=limits)


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize(("most", "answer", "reason"), [(2, [4, 1, END], "stop"), (3, [4, 1], "error")])
def test_an_answer_at_its_limit_ends_where_no_token_is_allowed(
    k: int, most: int, answer: list[int], reason: str
) -> None:
    """The end token replaces whatever is drawn, so a row without a token is an error only before the limit."""
    wanted = params(
        0, {"max_tokens": 3, "max_reply_tokens": most, "constrain_answer": True}, bad_sequences=[[1, 2]],
        structured={"choice": ["ebcbef"], "after_thinking": True},
    )  # fmt: skip
    runner = make_runner(model_settings=THINKS_WITH, speculative={"method": "ngram", "num_speculative_tokens": k})
    output = outputs_of(runner, ([3, 4, 5] * 4, wanted))[0]
    assert (list(output.token_ids[-len(answer) :]), output.finish_reason) == (answer, reason)
    expected = plain_decoding([3, 4, 5] * 4, wanted)
    assert (list(output.token_ids), output.finish_reason) == (expected.tokens, expected.finish_reason)


@pytest.mark.parametrize("text", [[], [8, 9], [4, 9, 4]])
def test_the_status_after_a_part_of_a_text(text: list[int]) -> None:
    """With it the same token follows, whether thinking ended by itself, at its limit, or instead of the request."""
    backend, rng = sd.get_backend("reference"), np.random.default_rng(0)
    for _ in range(150):
        limit, drawn = int(rng.integers(0, 9)), rng.integers(4, 10, 12)
        sequence = Sequence(Request("a", [1, 2], SamplingParams(thinking={"max_tokens": limit})), 20)

        def limited(step: int, status: int, limit: int = limit, drawn: Any = drawn) -> tuple[int, int]:
            token, phase = drawn[step : step + 1, None].copy(), np.array([status], np.int32)
            backend.limit_thinking(
                step_idx=np.array([step]), max_think_lens=np.array([limit], np.int32),
                max_reply_lens=np.array([-1], np.int32), stop_flags=np.zeros(1, bool), end_tokens=np.array([5]),
                inject_token_ids=np.array(text, np.int64), accept_tokens=token, accept_num=np.ones(1, np.int32),
                limit_status=phase, think_end_id=9,
            )  # fmt: skip
            return int(token[0, 0]), int(phase[0])

        for size in range(1, 13):
            token, sequence.limit_status = limited(size - 1, sequence.limit_status)
            sequence.extend([token], [False])
            again = [limited(step, sequence.limit_status_at(2 + step, text))[0] for step in range(size)]
            assert again == sequence.token_ids
            assert sequence.limit_status_at(2 + size, text) == sequence.limit_status
