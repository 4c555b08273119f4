"""Steps that are compiled and captured before the first request: no request waits for either."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from starlette.exceptions import HTTPException

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.engine import LLM, AsyncEngine
from specdec_hal.engine.runtime import Runtime
from specdec_hal.errors import RequestError
from specdec_hal.plugin.proposer import StepBounds, StepView
from specdec_hal.proposers.switched import SwitchedProposer
from specdec_hal.runner import ModelRunner, Request, SamplingParams, build_runner
from specdec_hal.runner.draft_length import DraftLengths
from specdec_hal.runner.step_cost import Rate
from specdec_hal.serve.service import Service
from specdec_hal.tensors.graph_capture import current_capture
from tests.proposers.conftest import registry_with_draft_model, settings_of
from tests.serve.conftest import served
from tests.support.graphs import GraphDevice, LaunchingBackend, plain_tokens
from tests.support.history_model import DeviceHistoryModel, LetterTokenizer

WAITS = {"bind": 0, "capture": 0, "compile": 0}


class CompilingModel(DeviceHistoryModel):
    """Compiles a kernel for each shape, at its first launch or during warm-up."""

    def __init__(self) -> None:
        super().__init__()
        self.compiled: set[Any] = set()
        self.ahead: set[Any] | None = None
        self.forwards = 0

    @property
    def compilations(self) -> int:
        return len(self.compiled)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        self.ahead = set()
        yield
        self.compiled |= self.ahead
        self.ahead = None

    def forward_device(self, batch: Any, out: Any) -> None:
        shape = len(batch.token_ids), batch.max_query_len, batch.max_seq_len
        if self.ahead is not None:
            self.ahead.add(shape)
            return
        self.compiled.add(shape)
        self.forwards += 1
        super().forward_device(batch, out)


@pytest.fixture(autouse=True)
def _graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_hal.runner.build.get_device", lambda place, framework: GraphDevice())


def settings(method: str = "ngram", **sections: Any) -> Any:
    registry = registry_with_draft_model(DeviceHistoryModel)
    speculative: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if section := settings_of(method):
        speculative[method] = section
    sizes = {"max_num_seqs": 5, "prefill_chunk": 20, "max_num_batched_tokens": 150}
    return parse({"runner": sizes, "speculative": speculative, **sections}, registry=registry), registry


def make(method: str = "ngram", model: Any = None, **sections: Any) -> ModelRunner:
    config, registry = settings(method, **sections)
    tokenizer: Any = LetterTokenizer()
    return build_runner(config, LaunchingBackend(), model or CompilingModel(), tokenizer, registry=registry)


def decode(runner: ModelRunner, **more: Any) -> None:
    for number in range(9):
        params = SamplingParams(max_new_tokens=9, temperature=number % 2, seed=number, bad_token_ids=[], **more)
        runner.add_request(Request(str(number), [number % 3 + 1, 5, 6] * (1 + 2 * number), params))
        runner.step()
    outputs = runner.run()
    for number in (3, 8):
        prompt, params = [number % 3 + 1, 5, 6] * (1 + 2 * number), SamplingParams(
            max_new_tokens=9, temperature=number % 2, seed=number
        )  # fmt: skip
        assert more or outputs[str(number)].token_ids == plain_tokens(prompt, params)


OPTIONS: list[dict[str, Any]] = [
    {"ignore_eos": True}, {"ignore_eos": True, "min_new_tokens": 9}, {"presence_penalty": 0.5}, {"logprobs": 0},
    {"logprobs": 2}, {"logprobs": 9, "frequency_penalty": 1.0}, {"logprobs": 20}, {"stop_token_ids": [7]},
]  # fmt: skip
"""Of requests that wait for nothing."""


@pytest.mark.parametrize(
    ("method", "strategy"),
    [("ngram", "target_match"), ("mtp", "target_match"), ("mtp", "rejection"), ("suffix", "target_match")],
)
def test_no_request_waits(method: str, strategy: str) -> None:
    runner = make(method)
    if strategy == "rejection":
        config, registry = settings(method, speculative={"method": method, "verify_strategy": strategy})
        runner = build_runner(config, LaunchingBackend(), CompilingModel(), registry=registry)  # type: ignore[arg-type]
    seen = list[tuple[int, int]]()
    runner.warm_up(lambda done, steps: seen.append((done, steps)))
    captured, steps = runner.summary()["graphs"], seen[0][1]
    assert seen == [(done, steps) for done in range(steps + 1)] and 6 < captured <= steps
    assert runner.summary()["late"] == WAITS
    forwards = runner.model.forwards  # type: ignore[attr-defined]
    if strategy == "rejection":
        runner.add_request(Request("a", [1, 5, 6], SamplingParams(temperature=1.0, seed=1, max_new_tokens=9)))
        runner.run()
    else:
        decode(runner)
        assert set(runner.summary()["seconds_by_stage"]) <= {"replay", "wait", "host", "propose"}
        decode(runner, structured={"choice": ["bcdefbc", "fed"]})
    summary = runner.summary()
    assert (summary["late"], summary["graphs"], summary["failed_steps"]) == (WAITS, captured, 0)
    assert runner.model.forwards > forwards  # type: ignore[attr-defined]
    for options in OPTIONS:
        decode(runner, **options)
        assert runner.summary()["late"] == WAITS, options
    decode(runner, logit_bias={3: 1.0})
    late = runner.summary()["late"]
    assert late["bind"] >= late["capture"] > 0 == late["compile"], "what nobody has announced"
    assert runner.counts().late == late


@pytest.mark.parametrize("method", ["ngram", "mtp", "imitation", "suffix"])
def test_steps_in_which_no_request_may_draft(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a row a slot, and a drafter is only fed; both kinds are ready, in any order."""
    asked = 0

    def limits(self: Any, rows: Any) -> Any:
        nonlocal asked
        asked += 1
        return np.full(len(rows), 3 * (asked // 4 % 2))

    monkeypatch.setattr(DraftLengths, "limits", limits)
    monkeypatch.setattr(DraftLengths, "stepped", lambda *_, **__: True)
    speculative = {"method": method, "adaptive": True, "num_speculative_tokens": 3, method: settings_of(method)}
    config, registry = settings(method, speculative=speculative)
    runner = build_runner(config, LaunchingBackend(), CompilingModel(), registry=registry)  # type: ignore[arg-type]
    runner.warm_up()
    captured = runner.summary()["graphs"]
    for _ in range(3):
        decode(runner)
    summary = runner.summary()
    assert (summary["late"], summary["graphs"], summary["failed_steps"]) == (WAITS, captured, 0)
    assert summary["failed_proposals"] == 0 < summary["drafted_tokens"]
    rows = Counter[int]()
    for (slots, tokens, _), count in runner.metrics.buckets.items():
        rows[tokens // slots] += count
    assert min(rows[1], rows[4]) > 5
    assert ("feed" in runner.proposer.modes) is (method in ("mtp", "imitation"))


def test_what_steps_share_is_prepared_once() -> None:
    """By sizes what computes logits, by number of slots what samples; launched before its capture if nothing was."""
    launched = list[Any]()

    class Counted(CompilingModel):
        def forward_device(self, batch: Any, out: Any) -> None:
            if self.ahead is None and current_capture() is None:
                launched.append(batch)
            super().forward_device(batch, out)

    model, steps = Counted(), list[int]()
    model.config = replace(model.config, max_position_embeddings=1024)
    runner = make(model=model)
    runner.warm_up(lambda done, all: steps.append(all))
    # 1, 2, 4 and 5 slots; sizes for contexts of 512 and 1024, without prompts and with, and without rows for drafts
    slots, alone, chunked, narrow = 4, 8, 8, 8
    features = 16 if runner.grammars.names else 8
    assert steps[0] == chunked + 2 * alone + narrow + (features - 1) * slots
    assert len(launched) == chunked + alone + narrow + slots
    parts = {id(part): part for plan in runner.compiler.plans.values() for part in plan.parts}.values()
    assert all(part.replay is not None for part in parts)
    assert sum("forward" in dict(part.calls) for part in parts) == chunked + 2 * alone + narrow


def test_without_a_warm_up_requests_wait() -> None:
    runner = make()
    decode(runner)
    late = runner.summary()["late"]
    assert late["bind"] > late["capture"] > 0 and late["compile"] > 0


def test_a_part_is_captured_once_it_was_launched_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps choose between the module and look-up: what one step left out has no scratch memory in the next."""
    launched = set[tuple[str, StepBounds]]()

    def checked(name: str) -> Callable[[SwitchedProposer, StepView], None]:
        method = getattr(SwitchedProposer, name)

        def propose(self: SwitchedProposer, step: StepView) -> None:
            if current_capture() is None:
                launched.add((name, step.bounds))
            assert (name, step.bounds) in launched, "no scratch memory in a capture"
            method(self, step)

        return propose

    for name in ("propose", "look_up"):
        monkeypatch.setattr(SwitchedProposer, name, checked(name))
    rng = np.random.default_rng(7)
    monkeypatch.setattr(Rate, "__float__", lambda self: 1 + rng.random())
    for name, value in {"TRIAL": 3, "LONGEST_PAUSE": 20, "TRIAL_SHARE": 0.3}.items():
        monkeypatch.setattr(f"specdec_hal.runner.method.{name}", value)
    config, registry = settings(speculative={})
    tokenizer: Any = LetterTokenizer()
    runner = build_runner(config, LaunchingBackend(), DeviceHistoryModel(), tokenizer, registry=registry)
    for _ in range(3):
        decode(runner)
    compiler, steps = runner.compiler, runner.summary()["steps_by_method"]
    assert compiler.captured and compiler.capture_failures == 0 and min(steps["mtp"], steps["ngram"]) > 9
    parts = [part for plan in compiler.plans.values() for part in plan.parts]
    assert any(part.replay is not None and "propose" in dict(part.calls) for part in parts)
    assert {name for name, _ in launched} == {"propose", "look_up"}


def test_everything_is_compiled_before_anything_is_launched() -> None:
    model = CompilingModel()
    runner = make(model=model)

    def stop(done: int, steps: int) -> None:
        assert model.forwards == 0 and len(model.compiled) > 4
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.warm_up(stop)
    decode(runner)
    assert runner.summary()["late"]["compile"] == 0 < runner.summary()["late"]["capture"]


def test_where_nothing_is_launched_nothing_is_warmed_up() -> None:
    config, registry = settings()
    runner = build_runner(config, ReferenceBackend(), CompilingModel(), registry=registry)
    runner.warm_up(lambda done, steps: pytest.fail("a step"))
    runner.add_request(Request("a", [1], SamplingParams()))
    with pytest.raises(RequestError, match=r"warm_up\(\): expected no requests, got 1"):
        runner.warm_up()


@pytest.mark.parametrize("wanted", [None, True, False])
def test_engines_warm_up(wanted: bool | None) -> None:
    config, registry = settings(engine={"warm_up": wanted})
    runtime, tokenizer = Runtime(config, registry), LetterTokenizer()
    runtime.backend = LaunchingBackend()
    with LLM(CompilingModel(), runtime, tokenizer=tokenizer) as llm:  # type: ignore[arg-type]
        assert (llm.runner.summary()["graphs"] > 0) == (wanted is True)
    gate, model = threading.Event(), CompilingModel()
    forward = model.forward_device

    def gated(*args: Any) -> None:
        assert gate.wait(60)
        forward(*args)

    model.forward_device = gated  # type: ignore[method-assign]

    async def serve() -> None:
        engine = AsyncEngine(model, runtime, tokenizer=tokenizer)  # type: ignore[arg-type]
        service = Service(engine, "letters", config.serve, None)
        if wanted is not False:
            with pytest.raises(HTTPException, match="warming up") as refused:
                service.ready()
            assert refused.value.status_code == 503
        answer = asyncio.ensure_future(anext(aiter(engine.generate([1, 2, 3], SamplingParams(max_new_tokens=1)))))
        gate.set()
        assert len((await answer).token_ids) == 1 and service.ready() == {"status": "ok"}
        late = (await engine.counts()).late
        assert (late == WAITS) == (wanted is not False)
        await asyncio.to_thread(engine.close)

    asyncio.run(serve())


GENERATED: list[dict[str, Any]] = [
    {"ignore_eos": True},  # vLLM's benchmark, guidellm
    {"ignore_eos": True, "min_tokens": 12, "stream_options": {"include_usage": True}},  # aiperf
    {"n": 3, "temperature": 0.8, "seed": 5},
    {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    {"logprobs": 0},
    {"logprobs": 3, "temperature": 1.0, "seed": 1, "repetition_penalty": 1.1},
    {"logprobs": 20, "ignore_eos": True},
    {"stop": ["qq"], "stop_token_ids": [7]},
    {"structured_outputs": {"choice": ["bcdefbc", "fed"]}},
    {"structured_outputs": {"choice": ["bcdefbc", "fed"]}, "logprobs": 5, "presence_penalty": 0.5},
]
"""What load generators add to their requests."""


def test_requests_of_load_generators_wait_for_nothing() -> None:
    config, registry = settings(serve={"port": 0, "split": False})
    runtime = Runtime(config, registry)
    runtime.backend = LaunchingBackend()
    engine = AsyncEngine(CompilingModel(), runtime, tokenizer=LetterTokenizer())  # type: ignore[arg-type]
    with served(engine, "letters", None) as running, ThreadPoolExecutor(8) as clients:
        running.until(lambda: running.http.get("/ready").status_code == 200)
        graphs = engine.runner.summary()["graphs"]
        bodies = [
            {"prompt": [3, 5, 6] * (1 + at % 9), "max_tokens": 12, "stream": bool(at % 2), **more}
            for at in range(3)
            for more in GENERATED
        ]
        for wave in (bodies[: len(GENERATED)], bodies):  # alone, and in changing company
            answers = list(clients.map(running.post, wave)) if wave is bodies else list(map(running.post, wave))
            assert {answer.status_code for answer in answers} == {200}
            found = re.findall(r"late_preparations_total{.*} (.*)", running.http.get("/metrics").text)
            assert found == ["0.0"] * len(WAITS), engine.runner.summary()["late"]
        assert engine.runner.summary()["graphs"] == graphs > 0
        assert running.post({"prompt": [3, 5], "max_tokens": 9, "logit_bias": {"3": 1}}).status_code == 200
        assert engine.runner.summary()["late"]["bind"] > 0, "what nobody has announced"


def test_an_engine_that_is_closed_does_not_warm_up_on(joined: threading.Event) -> None:
    config, registry = settings()
    runtime = Runtime(config, registry)
    runtime.backend = LaunchingBackend()
    model, first = CompilingModel(), threading.Event()
    forward = model.forward_device

    def slow(*args: Any) -> None:
        forward(*args)
        if model.ahead is None:
            first.set()
            assert joined.wait(60)

    model.forward_device = slow  # type: ignore[method-assign]
    engine = AsyncEngine(model, runtime, tokenizer=LetterTokenizer())  # type: ignore[arg-type]
    assert first.wait(60) and "of" in engine.unready
    engine.close()
    assert 0 < model.forwards <= 2 and not engine.failure
