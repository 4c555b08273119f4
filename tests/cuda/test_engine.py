"""The engine on a GPU: captured and overlapped steps deliver what plain, synchronous ones do."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.plugin.model import TargetModel
from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model() -> TargetModel:
    pytest.importorskip("torch")
    return sd.load(ROOT / "configs/cuda.yaml", ["model.framework=transformers"]).load_model()


def runner(model: TargetModel, k: int, method: str = "ngram", **keys: Any) -> ModelRunner:
    settings = {"model.framework": "transformers", **{f"runner.{key}": value for key, value in keys.items()}}
    settings["speculative.method"] = method
    if k:
        settings |= {"speculative.num_speculative_tokens": k, "speculative.adaptive": False}
    runtime = sd.load(ROOT / "configs/cuda.yaml", [f"{key}={str(value).lower()}" for key, value in settings.items()])
    return (runtime if k else runtime.naive()).runner(model=model)


def requests(one: ModelRunner, count: int, seed: int) -> list[Request]:
    assert one.tokenizer is not None
    texts = [path.read_text() for path in sorted((ROOT / "examples/prompts").glob("*.txt"))]
    encoded = [one.tokenizer.encode(text) for text in texts]
    found = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        ids = encoded[number % len(encoded)]
        start = int(rng.integers(0, len(ids) // 2))
        some = lambda value, default: value if rng.random() < 0.3 else default  # noqa: B023, E731
        params = SamplingParams(
            temperature=some(0.8, 0.0), top_p=some(0.9, 1.0), seed=number, repetition_penalty=some(1.2, 1.0),
            max_new_tokens=int(rng.integers(1, 60)), stop=some(["\n\n"], []), stop_sequences=some([ids[:2]], []),
            logprobs=some(2, None),
        )  # fmt: skip
        found.append(Request(str(number), ids[start : start + int(rng.integers(1, 300))], params))
    return found


def decode(one: ModelRunner, asked: list[Request], seed: int = 0) -> dict[str, RequestOutput]:
    """With random arrivals."""
    rng, left = np.random.default_rng(seed), list(asked)
    while left or one.has_requests:
        for _ in range(int(rng.integers(0, 9))):
            if left:
                one.add_request(left.pop(0))
        one.step()
    return one.take_finished()


def delivered(outputs: dict[str, RequestOutput]) -> dict[str, Any]:
    """What does not depend on how it was computed; log-probabilities included."""
    return {name: (o.token_ids, o.text, o.finish_reason, o.logprobs) for name, o in outputs.items()}


@pytest.fixture(scope="module")
def plain(model: TargetModel) -> dict[str, Any]:
    """One request after the other, launched op by op, each step read before the next."""
    one = runner(model, 0, max_num_seqs=1, overlap=False, graph=False)
    return delivered(decode(one, requests(one, 120, 1)))


@pytest.mark.parametrize("k", [0, 8])
@pytest.mark.parametrize("slots", [1, 3, 64])
def test_captured_and_overlapped_steps_deliver_the_same(
    model: TargetModel, plain: dict[str, Any], slots: int, k: int
) -> None:
    one = runner(model, k, max_num_seqs=slots, prefill_chunk=96)
    assert one.overlap
    assert delivered(decode(one, requests(one, 120, 1), slots)) == plain
    summary = one.summary()
    assert summary["graphs"] > 2 and summary["graph_failures"] == 0 and summary["failed_steps"] == 0
    assert not k or summary["accepted_tokens"] > 100


@pytest.mark.parametrize("method", ["mtp", "hybrid", "suffix", "draft_model"])
def test_steps_of_every_method_are_captured(
    model: TargetModel, plain: dict[str, Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proposer on the host drafts between replays."""
    one = runner(model, 4, method, max_num_seqs=8, prefill_chunk=96)
    assert one.overlap == (method != "suffix")
    asked = requests(one, 60, 1)
    outputs = delivered(decode(one, asked))
    assert outputs == {name: plain[name] for name in outputs}
    one.forget()  # of the responses, so that all drafts come again
    assert delivered(decode(one, asked)) == outputs
    # Every plan has been used twice.
    one.forget()
    monkeypatch.setattr(model, "forward_device", None)
    assert delivered(decode(one, asked)) == outputs
    summary = one.summary()
    assert summary["graphs"] > 2 and summary["graph_failures"] == 0
    assert summary["failed_steps"] == summary["failed_proposals"] == summary["dropped_drafts"] == 0
    assert summary["accepted_tokens"] > 100


@pytest.mark.parametrize("method", ["ngram", "mtp", "draft_model"])
def test_few_blocks(model: TargetModel, plain: dict[str, Any], method: str) -> None:
    one = runner(model, 4, method, max_num_seqs=16, prefill_chunk=64, block_size=16, num_kv_blocks=40)
    assert delivered(decode(one, requests(one, 120, 1))) == plain
    assert one.summary()["preemptions"] > 0


def test_a_capture_that_fails_is_launched_op_by_op(
    model: TargetModel, plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = runner(model, 4, max_num_seqs=8)

    def capture(launch: Any) -> None:
        raise RuntimeError("no graphs today")

    monkeypatch.setattr(one.state.device, "capture", capture)
    with caplog.at_level(logging.WARNING):
        outputs = delivered(decode(one, requests(one, 40, 1)))
    assert outputs == {name: plain[name] for name in outputs}
    assert caplog.text.count("no graphs today") == 1
    assert (one.summary()["graphs"], one.summary()["graph_failures"]) == (0, 1)


def test_a_model_that_fails_while_steps_are_under_way(
    model: TargetModel, plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runner(model, 4, max_num_seqs=8, graph=False)
    forward, calls = model.forward_device, 0  # type: ignore[attr-defined]

    def failing(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 37 == 5:
            raise RuntimeError("once in a while")
        forward(*args)

    monkeypatch.setattr(model, "forward_device", failing)
    outputs = delivered(decode(one, requests(one, 40, 1)))
    assert outputs == {name: plain[name] for name in outputs}
    assert one.summary()["failed_steps"] > 1
