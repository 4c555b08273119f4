"""Steps as device graphs beside proposers on the host: recorded once, replayed, drafts written in between."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.errors import CaptureError, EngineDeadError
from specdec_hal.plugin.proposer import StepView
from specdec_hal.plugin.registry import Registry
from specdec_hal.runner import ModelRunner, Request, SamplingParams, build_runner
from tests.proposers.conftest import registry_with_draft_model, settings_of
from tests.support.graphs import GraphDevice, LaunchingBackend
from tests.support.guess import Guess, GuessSettings, with_proposer
from tests.support.history_model import DeviceHistoryModel, HistoryModel, LetterTokenizer

PROMPTS = ([3, 4, 5] * 4, [7, 8], [9] * 11, [1, 2, 3, 4] * 3)


@pytest.fixture(autouse=True)
def _graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_hal.runner.build.get_device", lambda place, framework: GraphDevice())


def make(method: str, registry: Registry, settings: Any, strategy: str = "target_match", **keys: Any) -> ModelRunner:
    speculative = {"method": method, "num_speculative_tokens": 3, "verify_strategy": strategy, method: settings}
    speculative["adaptive"] = False
    config = parse(
        {"speculative": speculative, "runner": {"max_num_seqs": 2, "prefill_chunk": 5, **keys}}, registry=registry
    )
    tokenizer: Any = LetterTokenizer()
    return build_runner(config, LaunchingBackend(), DeviceHistoryModel(), tokenizer, registry=registry)


def decode(runner: ModelRunner, turn: int = 0) -> list[tuple[int, ...]]:
    for number, prompt in enumerate(PROMPTS):
        # One of them never drafts.
        wanted = 0 if number == 2 else None
        params = SamplingParams(
            max_new_tokens=24, temperature=0.8, seed=number, num_speculative_tokens=wanted, bad_token_ids=[0]
        )
        runner.add_request(Request(f"{turn}.{number}", prompt, params))
    outputs = runner.run()
    return [outputs[f"{turn}.{number}"].token_ids for number in range(len(PROMPTS))]


def plain() -> list[tuple[int, ...]]:
    tokenizer: Any = LetterTokenizer()
    return decode(build_runner(parse({"runner": {"max_num_seqs": 1}}), ReferenceBackend(), HistoryModel(), tokenizer))


@pytest.mark.parametrize("method", ["suffix", "guess"])
def test_drafts_of_the_host_between_replays(method: str) -> None:
    registry = with_proposer(Guess)
    runner = make(method, registry, {"guess": 4} if method == "guess" else {})
    assert decode(runner) == plain()
    before = runner.summary()
    assert before["graphs"] == 2
    assert before["accepted_tokens"] > 0
    assert not runner.overlap
    assert decode(runner, 1) == plain()
    after = runner.summary()
    assert after["graph_failures"] == after["failed_steps"] == after["failed_proposals"] == 0
    # Whatever was launched for the second time is replayed from then on: nothing calls the model by itself any more.
    runner.forget()
    assert decode(runner, 2) == plain()
    assert set(runner.summary()["seconds_by_stage"]) == {"replay", "wait", "host", "propose"}


def test_draft_probabilities_of_the_host() -> None:
    """They are bound into the plans, which are captured after the first step that has them."""
    runner = make("imitation", registry_with_draft_model(HistoryModel), settings_of("imitation"), "rejection")
    for turn in range(3):
        decode(runner, turn)
    summary = runner.summary()
    assert summary["graphs"] == 2
    assert summary["graph_failures"] == summary["failed_steps"] == summary["failed_proposals"] == 0
    assert summary["acceptance_rate"] == 1  # a draft model that is the target


@pytest.mark.parametrize("strategy", ["target_match", "rejection"])
def test_a_draft_model_is_captured_with_the_step(strategy: str) -> None:
    runner = make("imitation", registry_with_draft_model(DeviceHistoryModel), settings_of("imitation"), strategy)
    assert runner.overlap
    for turn in range(3):
        outputs = decode(runner, turn)
        assert strategy == "rejection" or outputs == plain()
        if turn < 2:
            runner.forget()
    summary = runner.summary()
    assert summary["graphs"] > 1
    assert summary["graph_failures"] == summary["failed_steps"] == summary["failed_proposals"] == 0
    assert summary["acceptance_rate"] > 0.95  # it does not know of the forbidden token
    assert set(summary["seconds_by_stage"]) == {"replay", "wait", "host"}


def test_a_host_proposer_that_fails_between_replays() -> None:
    class Sometimes(Guess):
        calls = 0

        def propose(self, step: StepView) -> Any:
            self.calls += 1
            if self.calls % 5 == 2:
                raise RuntimeError("no idea")
            super().propose(step)

    runner = make("guess", with_proposer(Sometimes, settings=GuessSettings), {"guess": 4})
    assert decode(runner) == plain()
    assert runner.summary()["graphs"] == 2
    assert runner.summary()["failed_proposals"] > 1


def test_graphs_can_be_turned_off() -> None:
    runner = make("suffix", with_proposer(Guess), {}, graph=False)
    assert decode(runner) == plain()
    assert runner.summary()["graphs"] == 0


def test_a_runner_that_is_closed() -> None:
    """Its graphs are released, and what ends with it has ended; what it has is still there."""
    runner = make("suffix", with_proposer(Guess), {})
    assert decode(runner) == plain()
    graphs = [graph for plan in runner.compiler.plans.values() for graph in plan.replays]
    assert len(graphs) == 4  # two plans of two parts: `bad_token_ids` are not for all requests
    runner.add_request(Request("late", [3, 4, 5]))
    ended = list[str]()
    runner.resources.callback(ended.append, "once")
    runner.close()
    runner.close()
    assert ended == ["once"] and runner.summary()["graphs"] == 2
    for graph in graphs:
        with pytest.raises(CaptureError, match="one that was released"):
            graph()
    with pytest.raises(EngineDeadError, match=r"step\(\): expected a runner that works, got one that was closed"):
        runner.step()
    assert runner.cancel("late") and runner.take_finished()["late"].finish_reason == "cancelled"
