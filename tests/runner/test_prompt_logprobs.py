"""Prompts are scored as if each of their tokens had been emitted, however they are cut, preempted or restarted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import RequestError
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch
from specdec_hal.runner import ModelRunner, Request, SamplingParams, StreamDelta, prompt_logprobs
from tests.runner.conftest import make_runner
from tests.support.decoding import plain_decoding, scored_prompt
from tests.support.history_model import DeviceHistoryModel, HistoryModel

PROMPTS = {str(n): [(3 * n + i * i) % 23 + 1 for i in range(length)] for n, length in enumerate((1, 2, 3, 17, 31, 40))}
WANTED: dict[str, int | None] = {"0": 2, "1": 0, "2": None, "3": 3, "4": 0, "5": 5}


class Frugal(HistoryModel):
    """Has logits for no row that the batch does not ask for."""

    def forward(self, batch: ForwardBatch) -> dict[int, Any]:
        found = super().forward(batch)
        for segment in batch.segments:
            assert segment.outputs is not None
            found[FINAL_NORM][segment.start : segment.start + segment.length - segment.outputs] = np.nan
        return found


def params(name: str, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.8, seed=int(name), max_new_tokens=9, prompt_logprobs=WANTED[name], **more)


def add_all(runner: ModelRunner, **more: Any) -> None:
    for name, prompt in PROMPTS.items():
        runner.add_request(Request(name, prompt, params(name, **more)))


def scored() -> dict[str, Any]:
    return {name: scored_prompt(prompt, WANTED[name]) for name, prompt in PROMPTS.items()}


WHERE = ("host", "host, frugal", "host, prefill first", "device", "device, overlapped", "device, few blocks")


@pytest.mark.parametrize(
    ("where", "blocks", "strategy"),
    [
        (where, [(1, 256), (64, 256), (1, 2)][(at + turn) % 3], ["target_match", "rejection"][turn])
        for at, where in enumerate(WHERE)
        for turn in range(2)
    ],
)
def test_prompts_are_scored(
    blocks: tuple[int, int], where: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_logprobs, "LEAST_BLOCK", blocks[0])
    monkeypatch.setattr(prompt_logprobs, "MOST_BLOCK", blocks[1])
    runner = make_runner(
        prefill_first="prefill first" in where,
        model=DeviceHistoryModel() if "device" in where else Frugal() if "frugal" in where else HistoryModel(),
        runner={
            "max_num_seqs": 3, "prefill_chunk": 11, "max_num_batched_tokens": 40, "block_size": 4,
            "num_kv_blocks": 13 if "few" in where else 48, "overlap": "overlapped" in where, "debug": True,
        },
        speculative={"method": "ngram", "num_speculative_tokens": 4, "verify_strategy": strategy},
    )  # fmt: skip
    add_all(runner, logit_bias={5: 3.0}, repetition_penalty=1.3, logprobs=1)
    streamed: dict[str, list[StreamDelta]] = {name: [] for name in PROMPTS}
    while runner.has_requests:
        for delta in runner.step():
            streamed[delta.request_id].append(delta)
    assert (runner.summary()["preemptions"] > 0) == ("few" in where)
    for name, output in runner.take_finished().items():
        assert output.prompt_logprobs == scored()[name] == streamed[name][0].prompt_logprobs
        assert not any(delta.prompt_logprobs for delta in streamed[name][1:]) and len(streamed[name]) > 1
        assert len(output.logprobs) == len(output.token_ids)
        if strategy == "target_match":
            wanted = plain_decoding(PROMPTS[name], params(name, logit_bias={5: 3.0}, repetition_penalty=1.3))
            assert list(output.token_ids) == wanted.tokens


def test_nobody_else_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner()
    monkeypatch.setattr(runner.compiler, "score_prompts", None)
    runner.add_request(Request("2", PROMPTS["3"], params("2")))
    assert runner.run()["2"].prompt_logprobs == ()


def test_a_request_that_ends_inside_its_prompt_has_none() -> None:
    runner = make_runner(runner={"prefill_chunk": 4})
    runner.add_request(Request("5", PROMPTS["5"], params("5")))
    runner.step()
    runner.cancel("5")
    (delta,) = runner.step()
    assert delta.prompt_logprobs == runner.take_finished()["5"].prompt_logprobs == ()


def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner()
    with pytest.raises(
        RequestError, match="request 'a': prompt_logprobs: at most 20 alternatives, got 21; ask for fewer"
    ):
        runner.add_request(Request("a", [1, 2], SamplingParams(prompt_logprobs=21)))
    monkeypatch.setattr("specdec_hal.runner.admission.MAX_PROMPT_LOGPROBS", (20, 10))
    runner.add_request(Request("a", [1] * 5, SamplingParams(prompt_logprobs=1)))
    message = "6 prompt tokens with 1 alternatives each are 12 log-probabilities, more than 10; ask for fewer"
    with pytest.raises(RequestError, match=message):
        runner.add_request(Request("b", [1] * 6, SamplingParams(prompt_logprobs=1)))
