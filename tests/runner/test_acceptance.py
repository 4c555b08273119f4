"""Draft counts by vLLM's definitions: verified drafts per step, and accepted ones only if in the output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams
from specdec_hal.runner.metrics import acceptance
from tests.runner.conftest import make_runner
from tests.support.history_model import HistoryModel
from tests.support.random_requests import random_request

PROMPT = [3, 5, 6, 5, 6]


class LikeVLLM:
    """vllm/v1/spec_decode/metrics.py: SpecDecodingStats.observe_draft, and what SpecDecodingLogging makes of it."""

    def __init__(self, outputs: Iterable[RequestOutput]) -> None:
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0
        self.num_accepted_tokens_per_pos = [0] * 4
        for output in outputs:
            for round_ in output.drafts:
                self.num_drafts += 1
                self.num_draft_tokens += len(round_.token_ids)
                self.num_accepted_tokens += round_.accepted
                for position in range(round_.accepted):
                    self.num_accepted_tokens_per_pos[position] += 1

    def figures(self) -> dict[str, Any]:
        return {
            "num_drafts": self.num_drafts,
            "drafted_tokens": self.num_draft_tokens,
            "accepted_tokens": self.num_accepted_tokens,
            "mean_acceptance_length": 1 + (self.num_accepted_tokens / self.num_drafts),
            "acceptance_rate": self.num_accepted_tokens / self.num_draft_tokens,
            "acceptance_by_position": (np.array(self.num_accepted_tokens_per_pos) / self.num_drafts).tolist(),
        }


def test_a_runner_counts_what_vllm_would() -> None:
    """Drafts of every length, with requests that end at stop strings, stop tokens and length limits."""
    runner = make_runner(runner={"max_num_seqs": 4})
    for number in range(60):
        request = random_request(number)
        params = request.params.model_copy(update={"return_drafts": True})
        runner.add_request(Request(request.request_id, request.prompt_token_ids, params))
    outputs = runner.run().values()
    assert {output.finish_reason for output in outputs} == {"stop", "length"}
    expected, summary = LikeVLLM(outputs).figures(), runner.summary()
    assert {name: summary[name] for name in expected} == expected
    lengths = {len(round_.token_ids) for output in outputs for round_ in output.drafts}
    assert lengths >= {1, 4} and 0 < expected["acceptance_rate"] < 1, "or positions would be drafted equally often"
    for output in outputs:
        assert output.accepted == sum(output.accepted_draft) == sum(round_.accepted for round_ in output.drafts)
        assert output.num_drafts == len(output.drafts) <= output.steps
        assert output.drafted == sum(len(round_.token_ids) for round_ in output.drafts)


def test_without_drafts_there_is_no_mean() -> None:
    figures = acceptance(0, 0, 0, [0, 0])
    assert figures["mean_acceptance_length"] is figures["acceptance_rate"] is None
    assert figures["acceptance_by_position"] == []


def decode(runner: ModelRunner, **params: Any) -> RequestOutput:
    runner.add_request(Request("a", PROMPT, SamplingParams(return_drafts=True, bad_token_ids=[0], **params)))
    return runner.run()["a"]


def unlimited() -> RequestOutput:
    """With some round of several accepted drafts."""
    output = decode(make_runner(), max_new_tokens=40)
    assert max(round_.accepted for round_ in output.drafts) >= 3
    return output


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_accepted_drafts_after_a_stop_string_do_not_count(kept: int, overlap: bool) -> None:
    """The string ends with the draft at position `kept` of a round in which more of them are accepted."""
    whole = unlimited()
    long = next(round_ for round_ in whole.drafts if round_.accepted > kept + 1)
    end = long.start + kept + 1
    stop = "".join(chr(ord("a") + token) for token in whole.token_ids[:end])
    runner = make_runner(runner={"overlap": overlap})
    output = decode(runner, max_new_tokens=40, stop=[stop])
    assert (output.finish_reason, output.token_ids) == ("stop", whole.token_ids[:end])
    assert output.drafts[-1] == (long.start, long.token_ids, kept + 1)
    assert output.accepted == sum(output.accepted_draft) == runner.summary()["accepted_tokens"]
    assert output.accepted < len(output.token_ids)


def test_adaptive_lengths_learn_what_the_model_accepted() -> None:
    """A stop string says nothing about the drafts after it."""
    whole = unlimited()
    long = next(round_ for round_ in whole.drafts if round_.accepted > 1)
    stop = "".join(chr(ord("a") + token) for token in whole.token_ids[: long.start + 1])
    runner, told = make_runner(), list[tuple[int, int]]()

    class Lengths:
        def begin(self, requests: Any) -> Any:
            return np.array([0 for _ in requests])

        rows = begin

        def limits(self, rows: Any) -> Any:
            return rows + 4

        def stepped(self, rows: Any, drafted: Any, accepted: Any, seconds: float, narrow: bool) -> None:
            told.extend(zip(drafted.tolist(), accepted.tolist(), strict=True))

    runner.lengths = Lengths()  # type: ignore[assignment]
    output = decode(runner, max_new_tokens=40, stop=[stop])
    assert output.drafts[-1].accepted == 1
    assert told[-1] == (len(long.token_ids), long.accepted)


def test_a_broken_distribution_counts_no_draft() -> None:
    model = HistoryModel()
    model.poisoned = {unlimited().token_ids[9]}
    output = decode(make_runner(model=model), max_new_tokens=40)
    assert output.finish_reason == "error"
    assert output.accepted == sum(output.accepted_draft) == sum(round_.accepted for round_ in output.drafts)
