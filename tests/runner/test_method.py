"""`speculative.method: auto`: what drafts by default, with which model and backend, and that the log says why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.engine import LLM
from specdec_hal.models.llama import LlamaMTP
from specdec_hal.plugin.model import ModelCapabilities
from specdec_hal.plugin.registry import default as registry
from specdec_hal.proposers.switched import FED, LIMIT
from specdec_hal.runner import ModelRunner, SamplingParams, build_runner
from specdec_hal.runner.draft_length import DraftLengths
from specdec_hal.runner.method import LONGEST_PAUSE, DraftMethods, chosen, methods_of
from specdec_hal.runner.step_cost import Rate
from tests.runner.conftest import make_runner
from tests.support.decoding import outputs_of, plain_decoding
from tests.support.history_model import DeviceHistoryModel, HistoryModel

ROOT = Path(__file__).parents[2]
PROMPT = [3, 5, 6, 5, 6]


class WithoutModule(HistoryModel):
    capabilities = ModelCapabilities(stable_row_counts=None)


def lacking(*ops: str) -> ReferenceBackend:
    backend = ReferenceBackend()
    backend.capabilities = {name: one for name, one in backend.capabilities.items() if name not in ops}
    return backend


def drafting(runner: ModelRunner) -> tuple[str, int, bool | None]:
    speculative = runner.config.speculative
    return speculative.method, speculative.num_speculative_tokens, speculative.adaptive


@pytest.mark.parametrize("model", [HistoryModel, DeviceHistoryModel])
def test_the_default_drafts_with_the_models_module(
    model: type[HistoryModel], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        DraftLengths, "limits", lambda self, rows: np.full(len(rows), 5)
    )  # whatever the time of steps is
    with caplog.at_level(logging.INFO, "specdec_hal"):
        runner = make_runner(model=model(), speculative={})
    assert drafting(runner) == ("mtp", 5, True)
    assert [record.getMessage() for record in caplog.records] == [
        "speculative.method auto: mtp, since the model has an MTP module; at most 5 drafts a step, adaptive"
    ]
    params = SamplingParams(max_new_tokens=40, temperature=0.4, seed=3, bad_token_ids=[0])
    (output,) = outputs_of(runner, (PROMPT, params))
    assert list(output.token_ids) == plain_decoding(PROMPT, params).tokens and output.accepted > 0
    assert runner.summary()["failed_proposals"] == runner.summary()["failed_steps"] == 0


@pytest.mark.parametrize(
    ("speculative", "model", "missing", "expected", "why"),
    [
        ({}, WithoutModule, (), ("ngram", 5, True), "the model has no MTP module"),
        ({"num_speculative_tokens": 3}, WithoutModule, (), ("ngram", 3, True), "the model has no MTP module"),
        ({"num_speculative_tokens": 0}, HistoryModel, (), ("naive", 0, False), "num_speculative_tokens is 0"),
        ({"adaptive": False}, HistoryModel, (), ("mtp", 5, False), "the model has an MTP module"),
        (
            {}, HistoryModel, ("draft_model_update", "eagle_get_hidden_states"), ("ngram", 5, True),
            "the backend lacks draft_model_update, eagle_get_hidden_states, which the model's MTP module needs",
        ),
        ({"ngram": {"pad_to_max": True}}, WithoutModule, (), ("ngram", 5, False), "the model has no MTP module"),
    ],
)  # fmt: skip
def test_what_is_chosen_otherwise(
    speculative: dict[str, Any], model: type[HistoryModel], missing: tuple[str, ...], expected: tuple[str, int, bool],
    why: str, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with caplog.at_level(logging.INFO, "specdec_hal"):
        runner = build_runner(parse({"speculative": speculative}), lacking(*missing), model())
    assert drafting(runner) == expected
    (record,) = (one for one in caplog.records if one.levelno == logging.INFO)
    assert f": {expected[0]}, since {why}; at most {expected[1]} drafts a step, " in record.getMessage()
    assert record.getMessage().endswith("not adaptive" if not expected[2] else ", adaptive")
    asked = PROMPT, SamplingParams(max_new_tokens=20)
    assert list(outputs_of(runner, asked)[0].token_ids) == plain_decoding(*asked).tokens


@pytest.mark.parametrize("method", ["naive", "ngram", "mtp"])
def test_a_method_that_is_named_is_taken_without_a_word(method: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "specdec_hal"):
        runner = make_runner(speculative={"method": method, "num_speculative_tokens": 1, "adaptive": None})
    drafts = method != "naive"
    assert drafting(runner) == (method, int(drafts), drafts) and not caplog.records
    assert (runner.lengths is not None) is drafts and runner.methods is None


def test_a_method_that_is_named_drafts_as_much_as_asked_for() -> None:
    runner = make_runner(speculative={"method": "ngram", "adaptive": False})
    assert drafting(runner) == ("ngram", 5, False) and runner.lengths is None


def test_ranks_that_must_agree_do_not_adapt() -> None:
    config = parse({"engine": {"tensor_parallel": 2}})
    found = chosen(config, ReferenceBackend(), HistoryModel(), registry)
    assert (found.speculative.method, found.speculative.adaptive) == ("mtp", False)


def test_the_module_needs_no_op_but_those_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend with the runner's ops and those of section 9 can run it."""

    def bound(method: str) -> set[str]:
        names = set[str]()
        bind = ReferenceBackend.bind
        with monkeypatch.context() as patch:
            patch.setattr(
                ReferenceBackend, "bind", lambda self, op, *args, **more: names.add(op) or bind(self, op, *args, **more)
            )
            runner = make_runner(model=DeviceHistoryModel(), speculative={"method": method})
            outputs_of(runner, (PROMPT, SamplingParams(max_new_tokens=9)))
        return names

    from specdec_hal.ops.draft_model import OPS

    assert bound("mtp") - bound("ngram") <= {spec.name for spec in OPS}


class Clock:
    """Time that passes where a model computes."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def charge(self, owner: Any, name: str, seconds: Callable[..., float], monkeypatch: pytest.MonkeyPatch) -> None:
        """Let a method take so long, by its arguments."""
        method = getattr(owner, name)

        def taking(*args: Any) -> Any:
            self.now += seconds(*args)
            return method(*args)

        monkeypatch.setattr(owner, name, taking)


PROMPTS = [path.read_text().removesuffix("\n") for path in sorted((ROOT / "examples/prompts").glob("*.txt"))]


def decoded(
    method: str, draft: float, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[float, int, int, tuple[int, ...]]]:
    """Tokens per unit of time, drafts and accepted ones, and the tokens, of each example prompt. `draft`: the time of a
    pass of the module, where a step of one token takes 1.
    """
    clock = Clock()
    monkeypatch.setattr("specdec_hal.runner.metrics.time", clock)
    named = {"speculative": {"method": method}} if method else {}
    found = []
    clock.charge(LlamaMTP, "compute_logits", lambda module, hidden: draft, monkeypatch)
    with LLM(ROOT / "models/tiny-py-lm", runner={"watchdog_s": None}, **named) as llm:
        clock.charge(llm.runner.model, "forward", lambda batch: 1 + 0.02 * len(batch.token_ids), monkeypatch)
        params = SamplingParams(max_new_tokens=96, ignore_eos=True)
        for prompt in PROMPTS:
            begun = clock.now
            (output,) = llm.generate([prompt], params)
            speed = len(output.token_ids) / (clock.now - begun)
            found.append((speed, output.drafted, output.accepted, output.token_ids))
        methods = llm.runner.summary()["steps_by_method"]
        assert (methods.get("ngram", 0) > sum(methods.values()) / 2) is (
            method == "ngram" or (not method and draft > 1)
        )
    return found


@pytest.mark.parametrize("draft", [0.02, 2.0])
def test_the_default_on_the_example_prompts(draft: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a draft of the module costs little, and where it costs as much as two steps."""
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    named = []
    for method in ("ngram", "mtp", "hybrid"):
        with monkeypatch.context() as patch:
            named.append(decoded(method, draft, patch))
    with monkeypatch.context() as patch:
        default = decoded("", draft, patch)
    assert len(default) >= 4
    for one, others in zip(default, zip(*named, strict=True), strict=True):
        assert one[1] > 0 or not others[0][2]
        assert all(other[3] == one[3] for other in others)

    def seconds(runs: list[tuple[float, int, int, tuple[int, ...]]]) -> float:
        return sum(1 / speed for speed, *_ in runs)

    best = min(named, key=seconds)
    assert seconds(best[1:]) >= 0.95 * seconds(default[1:]), "after the first trials"
    assert default[0][0] >= 0.7 * best[0][0], "with the first trials"


@pytest.mark.parametrize(
    ("speculative", "names"),
    [
        ({}, ["mtp", "ngram"]),
        ({"adaptive": False}, ["mtp"]),
        ({"verify_strategy": "rejection"}, ["mtp"]),
        ({"ngram": {"pad_to_max": True}}, ["mtp"]),
        ({"method": "mtp"}, ["mtp"]),
        ({"num_speculative_tokens": 0}, ["naive"]),
    ],
)
def test_what_takes_turns(speculative: dict[str, Any], names: list[str]) -> None:
    config = parse({"speculative": speculative})
    assert methods_of(config, ReferenceBackend(), HistoryModel(), registry) == names
    runner = build_runner(config, ReferenceBackend(), HistoryModel())
    assert (runner.methods is not None) is (len(names) > 1) and runner.method == names[-1]
    assert methods_of(config, lacking("hybrid_mtp_ngram"), HistoryModel(), registry) == names[:1]


@pytest.mark.parametrize("model", [HistoryModel, DeviceHistoryModel])
@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_stay_however_methods_change(
    model: type[HistoryModel], overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module fails where it would look at a token that it was not fed."""
    rng = np.random.default_rng(7)
    monkeypatch.setattr(Rate, "__float__", lambda self: 1 + rng.random())
    monkeypatch.setattr(DraftLengths, "limits", lambda self, rows: rng.integers(0, 6, len(rows)))
    for name, value in {"TRIAL": 3, "LONGEST_PAUSE": 20, "TRIAL_SHARE": 0.3}.items():
        monkeypatch.setattr(f"specdec_hal.runner.method.{name}", value)
    runner = make_runner(
        model=model(), speculative={}, runner={"max_num_seqs": 3, "prefill_chunk": 4, "overlap": overlap}
    )
    asked = [
        (
            [3, 5, 6, 5, 6] * 8 + [number % 24],
            SamplingParams(max_new_tokens=40, temperature=0.5, seed=number, bad_token_ids=[0]),
        )
        for number in range(1, 30)
    ]
    outputs = outputs_of(runner, *asked)
    assert [list(one.token_ids) for one in outputs] == [plain_decoding(*one).tokens for one in asked]
    summary = runner.summary()
    assert min(summary["steps_by_method"][name] for name in ("mtp", "ngram")) > 10
    assert summary["failed_proposals"] == summary["failed_steps"] == 0


class Loop:
    """Steps of a runner that take so long: with the first method, with look-up while it is fed, and without."""

    def __init__(self, requests: int, temperature: float = 0.0) -> None:
        self.proposer = FakeProposer()
        self.methods = DraftMethods(4, ("mtp", "ngram"), self.proposer, lambda request: request.temperature > 0)
        self.requests = [Decoding(temperature) for _ in range(requests)]
        self.rows = self.methods.begin(self.requests)
        self.steps = 0

    def step(self, first: float, fed: float, look_up: float) -> float:
        """Seconds of a step in which every request gains a token."""
        self.methods.send(self.rows, self.methods.limits(self.rows))
        seconds = look_up if self.proposer.mode == "look_up" else (fed if self.methods.in_use == "ngram" else first)
        none = np.zeros(len(self.rows), np.int64)
        self.methods.stepped(self.rows, none, none, seconds)
        self.steps += 1
        if self.steps % 7 == 0:  # one ends, another begins
            self.requests = [*self.requests[1:], Decoding(self.requests[0].temperature)]
            self.rows = np.append(self.rows[1:], self.methods.begin(self.requests[-1:]))
        return seconds


def test_a_kind_of_requests_that_was_not_measured_is_tried_soon() -> None:
    """However long the pause between trials has become for another kind."""
    loop = Loop(4)
    for _ in range(2 * LONGEST_PAUSE):
        loop.step(1.0, 5.0, 5.0)
    loop.requests = [Decoding(0.8) for _ in range(4)]
    loop.rows = loop.methods.begin(loop.requests)
    assert np.mean([loop.step(5.0, 1.1, 1.0) for _ in range(80)][40:]) == 1.0


def test_look_ups_are_timed_without_what_feeding_takes() -> None:
    """Else the first steps after a trial would draft too little, or too much."""
    loop = Loop(4)
    for _ in range(200):
        loop.step(5.0, 1.0, 1.0)
    (lengths,), added = [loop.methods.lengths[1]], list[float | None]()
    lengths.stepped = lambda *given, **_: bool(added.append(given[3]))  # type: ignore[method-assign]
    seen = {loop.step(5.0, 1.7, 1.0): loop.proposer.mode for _ in range(600)}
    assert seen[1.7] == "feed" and {1.0, None} == set(added)


class Decoding:
    def __init__(self, temperature: float) -> None:
        self.temperature = temperature


class FakeProposer:
    """What is written for a proposer of four slots."""

    def __init__(self) -> None:
        self.mode = "propose"
        self.inputs = self
        self.host = {LIMIT: np.zeros(4, np.int32), FED: np.zeros(4, np.int32)}

    def upload(self) -> None:
        pass


@pytest.mark.parametrize(
    ("first", "fed", "look_up"),
    [
        (1.0, 1.5, 1.4), (1.0, 1.04, 0.9), (1.5, 1.2, 1.0), (1.0, 5.0, 5.0), (5.0, 1.0, 1.0), (1.0, 1.03, 1.02),
        (1.0, 0.99, 0.99),
    ],
)  # fmt: skip
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_choosing_costs_little(first: float, fed: float, look_up: float, noise: float) -> None:
    rng, loop = np.random.default_rng(5), Loop(4)
    best, taken = 0.0, 0.0
    for _ in range(4000):
        factor = 1 + noise * rng.standard_exponential()
        taken += loop.step(first * factor, fed * factor, look_up * factor)
        best += min(first, look_up) * factor
    assert best >= 0.95 * taken, (loop.methods.in_use, taken / best)


def test_the_choice_follows_the_load() -> None:
    """Whichever is faster changes, in both directions; it may take as long as the longest pause."""
    loop = Loop(4)
    for first in (1.0, 3.0, 1.0, 3.0):
        for _ in range(3 * LONGEST_PAUSE):
            loop.step(first, 2.1, 2.0)
        settled = [loop.step(first, 2.1, 2.0) for _ in range(400)]
        assert np.mean(settled) <= 1.05 * min(first, 2.0)


def test_kinds_of_requests_are_measured_apart() -> None:
    """Sampled requests prefer look-up, greedy ones the first method; each kind is measured once."""
    loop = Loop(4)
    for _ in range(300):
        loop.step(1.0, 2.1, 2.0)
    assert loop.methods.in_use == "mtp"
    loop.requests = [Decoding(0.8) for _ in range(4)]
    loop.rows = loop.methods.begin(loop.requests)
    assert np.mean([loop.step(3.0, 2.1, 2.0) for _ in range(1500)][300:]) <= 2.1
    loop.requests = [Decoding(0.0) for _ in range(4)]
    loop.rows = loop.methods.begin(loop.requests)
    assert np.mean([loop.step(1.0, 2.1, 2.0) for _ in range(600)][100:]) <= 1.05


def test_requests_that_end_one_by_one_cause_no_trials() -> None:
    """Few requests are left at the end of each run, and for so few the slower method was not tried lately."""
    loop, taken = Loop(4), list[float]()
    for _ in range(60):
        loop.requests = [Decoding(0.8) for _ in range(4)]
        loop.rows = loop.methods.begin(loop.requests)
        for step in range(220):
            left = min(4, 1 + (219 - step) // 20)
            loop.methods.send(loop.rows, loop.methods.limits(loop.rows))
            taken.append(1.0 if loop.proposer.mode == "look_up" else 1.6)
            none = np.zeros(left, np.int64)
            loop.methods.stepped(loop.rows[:left], none, none, taken[-1])
    assert np.mean(taken[20 * 220 :]) <= 1.01
