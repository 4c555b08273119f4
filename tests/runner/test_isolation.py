"""What one request, callback, thread or proposer does wrong stays with it; every stream ends."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import QueueFullError, RequestError, RunnerBusyError
from specdec_hal.runner import ModelRunner, Request, SamplingParams, StreamDelta
from tests.runner.conftest import make_runner
from tests.support.decoding import BYSTANDER, alone
from tests.support.guess import Guess, runner_with
from tests.support.history_model import HistoryModel

LONG = SamplingParams(max_new_tokens=40, bad_token_ids=[0])


class TestWhatIsAsked:
    @pytest.mark.parametrize(
        "prompt",
        [
            *(b"abc", bytearray(b"abc"), "abc", {1: 2}, {1, 2}, iter([1]), None, 7, np.array(5)),
            *(np.ma.array([1, 2], mask=[0, 1]), np.ma.masked),
            *([1.0, 2.0], [1, "2"], [1, 2.0], [1, None], [1, 1 << 70], [1, [2]], [[1, 2]], [True], [True, False]),
        ],
        ids=lambda prompt: (
            repr(prompt) if isinstance(prompt, (list, bytes, str)) else type(prompt).__name__
        ),  # repr may hold an address
    )
    def test_prompt(self, prompt: Any) -> None:
        self.refused(Request("a", prompt), r"request 'a': prompt: expected a flat list of integers, got .*; pass token")

    def test_id_params_and_callback(self) -> None:
        for request_id in (None, 3, ["a"], {}):
            self.refused(Request(request_id, [1]), "request_id: expected a string, got ")  # type: ignore[arg-type]
        self.refused(Request("a", [1], {"top_p": 1.0}), "params: expected SamplingParams, got ")  # type: ignore[arg-type]
        self.refused(Request("a", [1], callback=3), "callback: expected a function, got 3")  # type: ignore[arg-type]
        self.refused("a", "expected a Request, got 'a'")
        for seconds in (0, -1.0, float("nan"), float("inf"), "1"):
            self.refused(Request("a", [1], timeout_s=seconds), "timeout_s: expected seconds > 0")  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=r"min_new_tokens: expected at most max_new_tokens = 3, got 4"):
            SamplingParams(min_new_tokens=4, max_new_tokens=3)

    def refused(self, request: Any, message: str) -> None:
        runner = make_runner()
        runner.add_request(BYSTANDER)
        with pytest.raises(RequestError, match=message):
            runner.add_request(request)
        assert runner.run() == {"bystander": alone()}

    @pytest.mark.parametrize(
        "kind", [list, tuple, np.array, lambda ids: np.array(ids, np.uint16), lambda ids: list(np.array(ids)), range]
    )
    def test_forms_of_a_prompt(self, kind: Callable[[Any], Any]) -> None:
        prompt = range(3, 9)
        runner = make_runner()
        runner.add_request(Request("a", kind(6) if kind is range else kind(list(prompt)), LONG))
        expected = range(6) if kind is range else prompt
        assert json.loads(json.dumps(runner.snapshot()))[0]["prompt_token_ids"] == list(expected)
        assert runner.run()["a"].token_ids == alone(Request("a", list(expected), LONG)).token_ids

    @pytest.mark.parametrize("kind", [list, np.array])
    def test_later_changes_of_what_was_given_have_no_effect(self, kind: Callable[[Any], Any]) -> None:
        prompt, stops = kind([7, 8, 9]), [[3, 4]]
        params = SamplingParams(max_new_tokens=20, stop_sequences=stops)
        runner = make_runner(runner={"max_num_seqs": 1})
        expected = alone(Request("a", [7, 8, 9], SamplingParams(max_new_tokens=20, stop_sequences=[[3, 4]])))
        runner.add_request(BYSTANDER)
        runner.add_request(Request("a", prompt, params))
        prompt[:] = kind([4, 4, 4])
        params.stop_sequences[0][0] = 99
        params.bad_token_ids.append(expected.token_ids[0])
        assert runner.run()["a"] == expected


class TestCallbacks:
    @pytest.mark.parametrize("what", ["step", "run"])
    def test_driving_from_inside(self, what: str) -> None:
        runner, caught = make_runner(), list[Exception]()

        def drive(delta: StreamDelta) -> None:
            try:
                getattr(runner, what)()
            except RunnerBusyError as error:
                caught.append(error)

        runner.add_request(replace(BYSTANDER, callback=drive))
        assert runner.run()["bystander"] == alone()
        assert caught and "from a callback of this runner's step" in str(caught[0])

    def test_ctrl_c_loses_nothing_of_others(self) -> None:
        runner, deltas = make_runner(runner={"max_num_seqs": 3}), list[StreamDelta]()

        def interrupt(delta: StreamDelta) -> None:
            raise KeyboardInterrupt

        runner.add_request(Request("a", [7, 8], LONG, interrupt))
        for name in "bc":
            runner.add_request(Request(name, BYSTANDER.prompt_token_ids, BYSTANDER.params, deltas.append))
        returned, interrupts = [], 0
        while runner.has_requests:
            try:
                returned += runner.step()
            except KeyboardInterrupt:
                interrupts += 1
        outputs = runner.take_finished()
        assert interrupts > 1
        for seen in (deltas, returned):
            for name in "bc":
                assert sum((d.token_ids for d in seen if d.request_id == name), ()) == outputs[name].token_ids
                assert [d.finish_reason for d in seen if d.request_id == name][-1] is not None
        assert outputs["b"].token_ids == outputs["c"].token_ids == alone().token_ids

    def test_cancelling_another_whose_delta_is_due(self) -> None:
        """It gets one last delta, with all its tokens, and no call after that."""
        runner, seen = make_runner(runner={"max_num_seqs": 2}), list[StreamDelta]()

        def cancel(delta: StreamDelta) -> None:
            if len(seen) == 2:
                runner.cancel("b")

        runner.add_request(Request("a", [7, 8], LONG, cancel))
        runner.add_request(Request("b", [9, 8], LONG, seen.append))
        outputs = runner.run()
        assert outputs["b"].finish_reason == "cancelled"
        assert [d.finish_reason for d in seen] == [None] * (len(seen) - 1) + ["cancelled"]
        assert sum((d.token_ids for d in seen), ()) == outputs["b"].token_ids
        assert outputs["b"].token_ids == alone(Request("b", [9, 8], LONG)).token_ids[: len(outputs["b"].token_ids)]


def test_two_threads() -> None:
    inside, leave, caught = threading.Event(), threading.Event(), list[RunnerBusyError]()

    def wait(delta: StreamDelta) -> None:
        inside.set()
        assert leave.wait(30)

    runner = make_runner()
    runner.add_request(replace(BYSTANDER, callback=wait))
    thread = threading.Thread(target=runner.run)
    thread.start()
    assert inside.wait(30)
    for intrude in (runner.step, lambda: runner.add_request(Request("b", [1])), lambda: runner.cancel("bystander")):
        with pytest.raises(RunnerBusyError, match="another thread is inside step") as error:
            intrude()
        caught.append(error.value)
    leave.set()
    thread.join()
    assert not runner.has_requests and len(caught) == 3


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


class TestDeadlines:
    def test_of_a_request(self, clock: Clock) -> None:
        runner, seen = make_runner(runner={"max_num_seqs": 2}), list[StreamDelta]()
        runner.add_request(Request("a", [7, 8], LONG, seen.append, timeout_s=5))
        runner.add_request(BYSTANDER)
        for _ in range(4):
            runner.step()
        assert seen and seen[-1].finish_reason is None
        clock.now += 5
        outputs = runner.run()
        assert outputs["a"].finish_reason == seen[-1].finish_reason == "timeout"
        assert outputs["a"].error == "timeout_s of 5 s has passed"
        assert sum((d.token_ids for d in seen), ()) == outputs["a"].token_ids
        assert outputs["bystander"] == alone()
        assert runner.summary()["finished"]["timeout"] == 1

    def test_to_the_first_token(self, clock: Clock) -> None:
        runner = make_runner(runner={"max_num_seqs": 1})
        runner.add_request(Request("first", [7, 8], LONG, ttft_timeout_s=1))
        runner.add_request(Request("late", [7, 8], LONG, ttft_timeout_s=1))
        runner.step()
        clock.now += 2
        outputs = runner.run()
        assert outputs["first"].finish_reason == "length"
        assert (outputs["late"].finish_reason, outputs["late"].token_ids) == ("timeout", ())
        assert outputs["late"].error == "ttft_timeout_s of 1 s has passed"

    def test_of_the_line(self, clock: Clock) -> None:
        runner = make_runner(runner={"max_num_seqs": 1, "queue_timeout_s": 3.0})
        for name in "ab":
            runner.add_request(Request(name, [7, 8], LONG))
        runner.step()
        clock.now += 3
        outputs = runner.run()
        assert outputs["a"].finish_reason == "length"
        assert outputs["b"].error == "runner.queue_timeout_s of 3 s has passed"

    @pytest.mark.parametrize(
        ("own", "why"),
        [
            ({"timeout_s": 5}, "timeout_s of 5 s"),
            ({"ttft_timeout_s": 4.0}, "ttft_timeout_s of 4 s"),
            ({}, "runner.queue_timeout_s of 3 s"),
        ],
    )
    def test_time_before_the_line_counts(self, clock: Clock, own: dict[str, Any], why: str) -> None:
        runner = make_runner(runner={"max_num_seqs": 2, "queue_timeout_s": None if own else 3.0})
        clock.now += 10
        waited = float(next(iter(own.values()), 3.0))
        runner.add_request(Request("late", [7, 8], LONG, **own, arrived_s=clock.now - waited))
        runner.add_request(Request("in time", [7, 8], LONG, **own, arrived_s=clock.now - waited + 0.5))
        outputs = runner.run()
        assert (outputs["late"].finish_reason, outputs["late"].error) == ("timeout", f"{why} has passed")
        assert outputs["late"].token_ids == () and outputs["late"].queue_s is None
        assert (outputs["in time"].finish_reason, outputs["in time"].queue_s) == ("length", waited - 0.5)

    @pytest.mark.parametrize("arrived", ["now", float("nan")])
    def test_an_arrival_that_is_no_time(self, arrived: Any) -> None:
        runner = make_runner()
        with pytest.raises(RequestError, match=r"'a': arrived_s: expected a time\.monotonic"):
            runner.add_request(Request("a", [7, 8], LONG, arrived_s=arrived))
        assert not runner.has_requests

    def test_a_line_that_is_full(self, clock: Clock) -> None:
        runner = make_runner(runner={"max_num_seqs": 1, "max_waiting_requests": 1})
        for name in "ab":
            runner.add_request(Request(name, [7, 8], LONG))
        clock.now += 8
        with pytest.raises(
            QueueFullError, match=r"'c': expected at most 1 waiting requests .* try again in 8 s"
        ) as full:
            runner.add_request(Request("c", [7, 8], LONG))
        assert full.value.retry_after_s == 8
        assert set(runner.run()) == {"a", "b"}
        runner.add_request(Request("c", [7, 8], LONG))
        assert set(runner.run()) == {"c"}


def _poisonous(token: int) -> HistoryModel:
    """Fails on a request that holds the token."""

    class Poisonous(HistoryModel):
        def forward(self, batch: Any) -> Any:
            if token in batch.token_ids:
                raise ArithmeticError(f"token {token}")
            return super().forward(batch)

    return Poisonous()


def test_a_request_that_the_model_fails_on_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    token = next(t for t in range(1, 24) if t not in (*BYSTANDER.prompt_token_ids, *alone().token_ids))
    runner, seen = make_runner(model=_poisonous(token), runner={"max_num_seqs": 8}), list[StreamDelta]()
    for n in range(7):
        runner.add_request(replace(BYSTANDER, request_id=str(n)))
    runner.add_request(Request("culprit", [3, token], LONG, seen.append))
    with caplog.at_level(logging.CRITICAL):
        outputs = runner.run()
    assert outputs["culprit"].finish_reason == seen[-1].finish_reason == "error"
    assert outputs["culprit"].error == f"its step raised ArithmeticError: token {token}"
    assert {outputs[str(n)].token_ids for n in range(7)} == {alone().token_ids}
    assert runner.summary()["failed_steps"] <= 5  # 8, 4, 2, 1, and once more


def test_a_request_that_the_proposer_fails_on_goes_on_without_drafts(caplog: pytest.LogCaptureFixture) -> None:
    class Picky(Guess):
        def propose(self, step: Any) -> Any:
            if any(view.request_id == "culprit" for view in step.slots):
                raise LookupError("what is that")
            return super().propose(step)

    runner: ModelRunner = runner_with(Picky)
    params = SamplingParams(max_new_tokens=12, bad_token_ids=[0])
    for name in ("a", "culprit", "b"):
        runner.add_request(Request(name, [7, 8, 9], params))
    outputs = runner.run()
    expected = alone(Request("a", [7, 8, 9], params)).token_ids
    assert {(output.token_ids, output.error) for output in outputs.values()} == {(expected, "")}
    assert outputs["culprit"].drafted == 0 < outputs["a"].drafted
    assert runner.summary()["failed_proposals"] >= 2
    assert "the proposer failed on ['culprit']; decoding without drafts" in caplog.text
    assert "LookupError: what is that" in caplog.text


def test_the_watchdog_names_what_does_not_return(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(HistoryModel):
        def forward(self, batch: Any) -> Any:
            deadline = time.perf_counter() + 30
            while "has not returned" not in caplog.text and time.perf_counter() < deadline:
                time.sleep(0.01)
            return super().forward(batch)

    runner = make_runner(model=Slow(), runner={"watchdog_s": 0.05})
    runner.add_request(Request("a", [1, 2], SamplingParams(max_new_tokens=1)))
    with caplog.at_level(logging.WARNING):
        runner.run()
    assert "the model has not returned for 0.05 s (runner.watchdog_s)" in caplog.text
