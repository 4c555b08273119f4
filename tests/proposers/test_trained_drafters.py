"""Trained drafters beside every kind of target: planted ones are always right, whatever becomes of their requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.proposers.draft_sampler import DraftSampler
from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams, build_runner
from specdec_hal.runner.metrics import TimedStep
from specdec_hal.runner.step_cost import Cost, Line
from tests.support import dflash, drafters
from tests.support.eagle3 import PROMPTS, finish, load

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")

DRAFTS = 4


def write_drafter(kind: str, head: drafters.Head, folder: Path) -> Path:
    """A planted drafter for the target of `drafters.perfect`."""
    if kind == "eagle3":
        return head.write_speculators(folder)
    planted = dflash.perfect if kind == "dflash" else dflash.perfect_second
    return planted(head, DRAFTS).write_speculators(folder)


Make = Callable[..., ModelRunner]


@pytest.fixture(params=["eagle3", "dflash", "dflash2"])
def drafter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["transformers", "device"])
def make(request: pytest.FixtureRequest, drafter: str, tmp_path: Path) -> Make:
    """Without "auto", which would take turns with look-ups."""
    target, head = drafters.perfect(tmp_path / "target")
    folder = write_drafter(drafter, head, tmp_path / "drafter")

    def runner(drafts: int = DRAFTS, adaptive: bool = False, **runner: Any) -> ModelRunner:
        method = drafter.removesuffix("2")
        speculative = {"method": method, "path": str(folder), "num_speculative_tokens": drafts, "adaptive": adaptive}
        blocks = {"block_size": 4} if request.param == "device" else {}
        sizes = {"prefill_chunk": 4, "max_num_seqs": 2, "max_model_len": 64, **blocks}
        config = parse({"speculative": speculative if drafts else {"method": "naive"}, "runner": {**sizes, **runner}})
        return build_runner(config, ReferenceBackend(), load(target, request.param))

    return runner


def ask(runner: ModelRunner, prompts: Any = PROMPTS, tokens: int = 20, **sampling: Any) -> None:
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_new_tokens=tokens, seed=number, **sampling)
        runner.add_request(Request(str(number), prompt, params))


def decode(runner: ModelRunner, **more: Any) -> list[RequestOutput]:
    ask(runner, **more)
    return finish(runner)


@pytest.fixture
def temperature(drafter: str) -> float:
    """Of which all drafts of a planted drafter are right: a block's drafts do not know each other."""
    return 1.0 if drafter == "eagle3" else 0.0


def test_every_draft_is_accepted(make: Make, temperature: float) -> None:
    """Of prompts in chunks, and tokens are those of plain decoding."""
    outputs = decode(make(), temperature=temperature)
    assert all(output.drafted == output.accepted > 10 for output in outputs)
    plain = decode(make(0), temperature=temperature)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]


def test_it_is_right_again_after_rejections(make: Make, temperature: float) -> None:
    """Every third step's second drafts are spoiled before they are verified; no other one is wrong."""
    runner, steps = make(), 0
    state, propose = runner.state, runner.proposer.propose

    def spoiling(step: Any) -> Any:
        nonlocal steps
        result, steps = propose(step), steps + 1
        if steps % 3 == 0:
            drafts = state.device.download(state["draft_tokens"]).copy()
            drafts[:, 2] = (drafts[:, 2] + (drafts[:, 2] >= 0)) % 12
            state.write("draft_tokens", slice(None), drafts)
        return result

    runner.proposer.propose = spoiling  # type: ignore[method-assign]
    outputs = decode(runner, temperature=temperature, tokens=40, return_drafts=True)
    cut = [round_.accepted for output in outputs for round_ in output.drafts if round_.accepted < len(round_.token_ids)]
    assert len(cut) > 5 and set(cut) == {1}


@pytest.mark.parametrize("adaptive", [False, True])
def test_requests_that_want_fewer_drafts(
    make: Make, temperature: float, adaptive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cost, "line", lambda self, group: Line(1.0, 0.0))  # drafts cost nothing, however slow this is
    runner = make(adaptive=adaptive)
    for number, most in enumerate((0, 1, 3, None)):
        params = SamplingParams(
            max_new_tokens=20, num_speculative_tokens=most, temperature=temperature, seed=number, return_drafts=True
        )
        runner.add_request(Request(str(number), PROMPTS[number], params))
    outputs = finish(runner)
    assert outputs[0].drafted == 0 and all(output.drafted == output.accepted > 0 for output in outputs[1:])
    longest = [max((len(round_.token_ids) for round_ in output.drafts), default=0) for output in outputs]
    assert longest == [0, 1, 3, DRAFTS]


def test_steps_without_drafts_only_feed_a_drafter(
    make: Make, drafter: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other few steps no request may draft; afterwards all drafts are right again."""
    runner, asked, drawn = make(adaptive=True), 0, 0

    def limits(rows: Any) -> Any:
        nonlocal asked
        asked += 1
        return np.full(len(rows), DRAFTS if asked // 4 % 2 else 0)

    assert runner.lengths is not None
    monkeypatch.setattr(runner.lengths, "limits", limits)
    monkeypatch.setattr(runner.lengths, "stepped", lambda *_, **__: True)
    draw = DraftSampler.draw

    def drawing(*args: Any) -> Any:
        nonlocal drawn
        drawn += 1
        return draw(*args)

    monkeypatch.setattr(DraftSampler, "draw", drawing)
    outputs = decode(runner, temperature=temperature, tokens=40)
    assert all(output.drafted == output.accepted > 10 for output in outputs)
    summary = runner.summary()
    assert summary["failed_steps"] == summary["failed_proposals"] == 0
    assert drafter == "dflash2" or DRAFTS <= drawn < 0.8 * DRAFTS * summary["steps"]
    if runner.compiler.static:
        rows = {tokens // slots for slots, tokens, _ in runner.metrics.buckets if tokens in (slots, 5 * slots)}
        assert rows == {1, 1 + DRAFTS}


@pytest.mark.parametrize("make", ["device"], indirect=True)
def test_kernels_are_compiled_with_fewer_layers_than_are_tapped(make: Make, temperature: float) -> None:
    runner = make()
    (plan,) = runner.compiler.plans.values()
    with runner.model.compiling():  # type: ignore[attr-defined]
        plan.run(0, TimedStep())
    assert all(output.drafted == output.accepted > 10 for output in decode(runner, temperature=temperature))


def test_a_restart_changes_no_acceptance(make: Make, temperature: float) -> None:
    runner, restored = make(), make()
    ask(runner, temperature=temperature)
    for _ in range(4):
        runner.step()
    restored.restore(runner.snapshot())
    outputs = finish(restored)
    plain = decode(make(0), temperature=temperature)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert restored.summary()["acceptance_rate"] == 1.0


@pytest.mark.parametrize("make", ["device"], indirect=True)
def test_preempted_requests(make: Make, temperature: float) -> None:
    """Their drafts are those of requests that were left alone, over blocks that belonged to others."""
    runner = make(num_kv_blocks=10)
    outputs = decode(runner, temperature=temperature)
    counted = runner.summary()
    assert counted["preemptions"] > 0 and counted["acceptance_rate"] == 1.0
    plain = decode(make(0), temperature=temperature)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]


@pytest.mark.parametrize("make", ["device"], indirect=True)
def test_shared_prefixes(make: Make, temperature: float) -> None:
    """Of prompts that end in other ways: a row of an EAGLE-3 head's cache depends on the next token too."""
    runner = make(enable_prefix_caching=True)
    shared = PROMPTS[3] + PROMPTS[1]  # four blocks and two tokens
    prompts = [shared, shared[:17], [*shared[:16], 1, 2, 3], [*shared[:9], 0, 0, 5]]
    outputs = decode(runner, temperature=temperature, prompts=prompts)
    assert runner.summary()["prefix_cache_hits"] > 8
    assert all(output.drafted == output.accepted > 10 for output in outputs)
