"""Wrong, cancelled or failing requests: one clear error or a defined end, without effect on others."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from specdec_hal.errors import ConfigError, EngineDeadError, RequestError
from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams, StreamDelta, scheduler
from tests.runner.conftest import make_runner
from tests.support.decoding import BYSTANDER, alone, plain_decoding
from tests.support.history_model import CONTEXT, VOCABULARY, HistoryModel


@pytest.mark.parametrize(
    ("request_id", "prompt", "params", "message"),
    [
        ("a", [], {}, "empty prompt"),
        ("a", [1] * CONTEXT, {}, f"prompt of {CONTEXT} tokens leaves no room in a context of {CONTEXT}"),
        ("a", [1, VOCABULARY], {}, f"prompt: token {VOCABULARY} is outside the vocabulary"),
        ("a", [-1], {}, "prompt: token -1 is outside the vocabulary"),
        ("a", [1], {"stop_token_ids": [99]}, "stop_token_ids: token 99"),
        ("a", [1], {"bad_token_ids": [99]}, "bad_token_ids: token 99"),
        ("a", [1], {"bad_token_ids": [1] * 65}, "at most 64 bad_token_ids, got 65"),
        ("a", [1], {"logit_bias": {VOCABULARY: 1.0}}, f"logit_bias: token {VOCABULARY} is outside the vocabulary"),
        ("a", [1], {"allowed_token_ids": [1, 99]}, "allowed_token_ids: token 99 is outside the vocabulary"),
        ("a", [1], {"allowed_token_ids": [1, 2], "bad_token_ids": [1], "bad_sequences": [[2]]}, "forbid all of them"),
        ("a", [1], {"bad_sequences": [[1, 2], [3, 99]]}, "bad_sequences: token 99 is outside the vocabulary"),
        ("a", [1], {"bad_words": [" "]}, "bad_words: expected words of at least a token, got [' ']"),
        ("a", [1], {"logit_bias": dict.fromkeys(range(301), 1.0)}, "at most 300 tokens in logit_bias, got 301"),
        ("a", [1], {"num_speculative_tokens": 5}, "num_speculative_tokens 5 exceeds 4"),
        ("bystander", [1], {}, "'bystander': the id is in use"),
    ],
)
def test_a_request_that_cannot_be_served(request_id: str, prompt: list[int], params: dict, message: str) -> None:
    runner = make_runner()
    runner.add_request(BYSTANDER)
    runner.step()
    with pytest.raises(RequestError, match=r"request '.*") as caught:
        runner.add_request(Request(request_id, prompt, SamplingParams(**params)))
    assert message in str(caught.value)
    assert runner.run() == {"bystander": alone()}


def test_a_long_prompt_gets_its_slot_a_step_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """If others decode; nothing else changes."""
    monkeypatch.setattr(scheduler, "LONG_PROMPT", 12)
    long, short = (Request(f"{n} tokens", [7, 8, 9] * (n // 3), SamplingParams(max_new_tokens=3)) for n in (12, 9))

    def slots(runner: ModelRunner, *before: Request) -> list[bool]:
        for request in before:
            runner.add_request(request)
            runner.step()
        runner.add_request(long)
        found = []
        for _ in range(2):
            runner.step()
            sequence = runner.find(long.request_id)
            found.append(sequence is not None and sequence.slot is not None)
        return found

    runner = make_runner()
    assert slots(runner, BYSTANDER, short) == [False, True]
    assert runner.run() == {one.request_id: alone(one) for one in (BYSTANDER, short, long)}
    assert slots(make_runner()) == [True, True]


def test_a_finished_id_is_free_only_once_its_output_is_taken() -> None:
    runner = make_runner()
    runner.add_request(BYSTANDER)
    while runner.has_requests:
        runner.step()
    with pytest.raises(RequestError, match="take the finished output first"):
        runner.add_request(BYSTANDER)
    first = runner.take_finished()
    runner.add_request(BYSTANDER)
    assert runner.run() == first


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("max_new_tokens", 0, "expected an integer in 1.."),
        ("temperature", -0.5, "expected a number >= 0"),
        ("top_p", 0.0, "expected a number > 0 and <= 1"),
        ("seed", 1.5, "expected an integer"),
        ("num_speculative_tokens", 32, "expected an integer in 0..31"),
        ("temprature", 1.0, "did you mean 'temperature'"),
    ],
)
def test_sampling_parameters_out_of_range(field: str, value: object, expected: str) -> None:
    with pytest.raises(RequestError, match=f"sampling parameter {field}: ") as caught:
        SamplingParams(**{field: value})
    assert expected in str(caught.value)


def test_sampling_under_the_greedy_strategy_is_refused() -> None:
    runner = make_runner(speculative={"method": "ngram", "verify_strategy": "greedy"})
    with pytest.raises(RequestError, match=r"temperature 0.5 with strategy greedy"):
        runner.add_request(Request("a", [1], SamplingParams(temperature=0.5)))
    assert not runner.has_requests


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    runner = make_runner()
    runner.tokenizer = None
    with pytest.raises(RequestError, match="stop strings need a tokenizer"):
        runner.add_request(Request("a", [1], SamplingParams(stop=["x"])))


def test_a_context_longer_than_the_model() -> None:
    with pytest.raises(ConfigError, match=f"runner.max_model_len: expected 1..{CONTEXT} for this model"):
        make_runner(runner={"max_model_len": CONTEXT + 1})
    with pytest.raises(ConfigError, match=f"expected 1..{CONTEXT - 3}"):
        ngram = {"pad_to_max": True}
        speculative = {"method": "ngram", "num_speculative_tokens": 3, "ngram": ngram}
        make_runner(runner={"max_model_len": CONTEXT}, speculative=speculative)


def test_the_context_limits_the_output() -> None:
    runner = make_runner()
    prompt = [5, 6] * (CONTEXT // 2 - 2)
    runner.add_request(Request("a", prompt, SamplingParams(max_new_tokens=500, bad_token_ids=[0])))
    output = runner.run()["a"]
    assert len(output.token_ids) == CONTEXT - len(prompt)
    assert output.finish_reason == "length"
    runner.add_request(Request("b", [5] * (CONTEXT - 1), SamplingParams(max_new_tokens=9)))
    assert len(runner.run()["b"].token_ids) == 1


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancelling(steps: int, runner: ModelRunner) -> None:
    """Waiting, in prefill, and running; the slot becomes free and the others are unaffected."""
    victim = Request("victim", [7, 8, 9] * 4, SamplingParams(max_new_tokens=40, bad_token_ids=[0]))
    runner.add_request(victim)
    runner.add_request(BYSTANDER)
    for _ in range(steps):
        runner.step()
    assert runner.cancel("victim")
    assert not runner.cancel("victim")
    assert not runner.cancel("nobody")
    runner.add_request(Request("next", BYSTANDER.prompt_token_ids, BYSTANDER.params))
    outputs = runner.run()
    assert outputs["victim"].finish_reason == "cancelled"
    assert outputs["victim"].token_ids == alone(victim).token_ids[: len(outputs["victim"].token_ids)]
    assert outputs["bystander"] == alone()
    assert outputs["next"].token_ids == alone().token_ids
    assert runner.metrics.requests["cancelled"] == 1


def test_a_callback_that_raises_ends_its_own_request_only(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[StreamDelta] = []

    def fail(delta: StreamDelta) -> None:
        seen.append(delta)
        raise ValueError("no room")

    runner = make_runner()
    runner.add_request(Request("a", [7, 8], SamplingParams(max_new_tokens=30, bad_token_ids=[0]), fail))
    runner.add_request(BYSTANDER)
    with caplog.at_level(logging.ERROR):
        outputs = runner.run()
    assert [delta.finish_reason for delta in seen] == [None, "error"] and outputs["a"].finish_reason == "error"
    assert outputs["a"].error == "its callback raised ValueError: no room"
    assert "request 'a': its callback failed" in caplog.text
    assert outputs["bystander"] == alone()


def test_callbacks_may_add_and_cancel() -> None:
    runner = make_runner(runner={"max_num_seqs": 2})

    def swap(delta: StreamDelta) -> None:
        if runner.cancel("a"):
            runner.add_request(BYSTANDER)

    runner.add_request(Request("a", [7, 8], SamplingParams(max_new_tokens=30, bad_token_ids=[0]), swap))
    outputs = runner.run()
    assert outputs["a"].finish_reason == "cancelled"
    assert outputs["bystander"] == alone()


def test_a_row_without_a_distribution_ends_its_request_with_an_error() -> None:
    model = HistoryModel()
    unseen = next(t for t in range(1, VOCABULARY) if t not in (*BYSTANDER.prompt_token_ids, *alone().token_ids))
    model.poisoned = {unseen}
    runner = make_runner(model=model)
    runner.add_request(Request("a", [3, unseen], SamplingParams(max_new_tokens=9)))
    runner.add_request(BYSTANDER)
    outputs = runner.run()
    assert outputs["a"].finish_reason == "error"
    assert "NaN" in outputs["a"].error
    assert outputs["a"].token_ids == ()
    assert outputs["bystander"] == alone()


def test_an_end_token_is_reported_but_is_no_text() -> None:
    ended = [r for r in (alone(Request("a", [7, s], SamplingParams(temperature=1.5, seed=s))) for s in range(1, 20))]
    stopped = [output for output in ended if output.finish_reason == "stop"]
    assert stopped
    for output in stopped:
        assert output.token_ids[-1] == 0
        assert len(output.text) == len(output.token_ids) - 1


def test_end_tokens_may_be_ignored() -> None:
    ended = 0
    for seed in range(1, 9):
        params = SamplingParams(temperature=1.5, seed=seed, max_new_tokens=40)
        ignoring = params.model_copy(update={"ignore_eos": True})
        whole, plain = (alone(Request("a", [7, seed], one)) for one in (ignoring, params))
        assert whole.finish_reason == "length" and len(whole.token_ids) == 40
        assert list(whole.token_ids) == plain_decoding([7, seed], ignoring).tokens
        assert whole.token_ids[: len(plain.token_ids)] == plain.token_ids
        if plain.finish_reason == "stop":  # the token that ends the one is a token of the other
            ended += 1
            assert whole.token_ids[len(plain.token_ids) - 1] == 0 and whole.text.startswith(plain.text)
    assert ended


def test_logprobs_are_those_of_the_unpenalised_model() -> None:
    from tests.support.history_model import logits_after

    prompt = [3, 4, 5] * 5
    params = SamplingParams(
        max_new_tokens=12, logprobs=3, repetition_penalty=1.3, bad_token_ids=[0], logit_bias={4: -3.5, 9: 2}
    )
    runner = make_runner(runner={"max_num_seqs": 3})
    runner.add_request(BYSTANDER)
    for _ in range(4):  # the others join a decoding request, whose steps need less
        runner.step()
    runner.add_request(Request("a", prompt, params))
    runner.add_request(Request("b", prompt, SamplingParams(max_new_tokens=12, logprobs=0)))
    outputs = runner.run()
    output = outputs["a"]
    assert outputs["bystander"].logprobs == ()
    assert all(entry.top == () for entry in outputs["b"].logprobs)
    assert len(output.logprobs) == len(output.token_ids)
    for i, entry in enumerate(output.logprobs):
        logits = logits_after(prompt + list(output.token_ids[:i])).astype(np.float64)
        exact = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        token = output.token_ids[i]
        assert entry.logprob == pytest.approx(exact[token], abs=1e-5)
        assert entry.rank == int((logits >= logits[token]).sum())
        assert [id_ for id_, _ in entry.top] == np.argsort(-logits, kind="stable")[:3].tolist()


@pytest.mark.parametrize(
    ("strategy", "params", "scored_apart"),
    [
        ("target_match", {"temperature": 0.8}, False),
        ("greedy", {}, False),
        ("target_match", {"temperature": 0.8, "repetition_penalty": 1.2}, True),
        ("target_match", {"temperature": 0.8, "logit_bias": {4: -2, 9: 1}}, True),
        ("rejection", {"temperature": 0.8}, True),
    ],
)
def test_sampling_tells_the_probabilities_of_its_tokens(
    strategy: str, params: dict, scored_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing but the token's is asked for, its row is not read again; the numbers are the same."""
    bound: list[str] = []

    def run(top: int) -> dict[str, RequestOutput]:
        speculative = {"method": "ngram", "num_speculative_tokens": 4, "verify_strategy": strategy}
        runner = make_runner(runner={"max_num_seqs": 2, "prefill_chunk": 3}, speculative=speculative)
        bind = runner.backend.bind
        monkeypatch.setattr(
            runner.backend, "bind", lambda op, *args, **more: bound.append(op) or bind(op, *args, **more)
        )
        for name, prompt in (("a", [3, 4, 5] * 5), ("b", [7, 8]), ("c", [6, 5, 6, 5, 6])):
            given = SamplingParams(seed=len(prompt), max_new_tokens=20, logprobs=top, **params)
            runner.add_request(Request(name, prompt, given))
        return runner.run()

    scored = run(top=1)
    assert "token_logprobs" in bound
    bound.clear()
    told = run(top=0)
    assert ("token_logprobs" in bound) is scored_apart
    for name, output in told.items():
        assert output.token_ids == scored[name].token_ids
        assert output.logprobs == tuple(entry._replace(top=()) for entry in scored[name].logprobs)


def test_more_requests_than_slots_are_served_first_come_first_served() -> None:
    runner = make_runner(runner={"max_num_seqs": 2})
    finished: list[str] = []

    def note(delta: StreamDelta) -> None:
        if delta.finish_reason:
            finished.append(delta.request_id)

    for number in range(7):
        params = SamplingParams(max_new_tokens=5, bad_token_ids=[0])
        runner.add_request(Request(str(number), [number + 1, 2], params, note))
    assert set(runner.run()) == set("0123456")
    assert finished == sorted(finished)
    assert runner.summary()["finished"] == {"length": 7}


def test_metrics_add_up(runner: ModelRunner) -> None:
    for number in range(5):
        runner.add_request(Request(str(number), [3, 4, 5] * 4, SamplingParams(max_new_tokens=20, seed=number)))
    outputs = runner.run()
    summary = runner.summary()
    emitted = sum(len(output.token_ids) for output in outputs.values())
    assert summary["emitted_tokens"] == emitted
    assert summary["drafted_tokens"] == sum(output.drafted for output in outputs.values())
    assert summary["accepted_tokens"] == sum(output.accepted for output in outputs.values())
    decoded = emitted - len(outputs)  # the first token of each comes with its prefill
    assert summary["tokens_per_step"] == pytest.approx(decoded / sum(output.steps for output in outputs.values()))
    assert summary["acceptance_rate"] == summary["accepted_tokens"] / summary["drafted_tokens"]
    assert all(0 <= rate <= 1 for rate in summary["acceptance_by_position"])
    assert set(summary["seconds_by_stage"]) >= {"prepare", "forward", "gather", "sample", "verify", "update", "propose"}
    assert summary["fallback_calls"] == {}


def test_a_model_that_a_later_runner_took_over() -> None:
    model = HistoryModel()
    first = make_runner(model=model)
    first.add_request(BYSTANDER)
    first.step()
    second = make_runner(model=model)
    with pytest.raises(EngineDeadError, match="that a later runner took over; give each runner a model of its own"):
        first.step()
    second.add_request(BYSTANDER)
    assert second.run()["bystander"] == alone()
