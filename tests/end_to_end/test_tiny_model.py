"""The embedded model on Paddle: speculative output equals plain output, token for token, on real text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import specdec_hal as sd
from specdec_hal.models import Tokenizer, load_model, load_tokenizer
from specdec_hal.plugin.model import TargetModel
from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams

ROOT = Path(__file__).parents[2]
PROMPTS = sorted((ROOT / "examples/prompts").glob("*.txt"))
GREEDY: dict[str, float] = {}
SAMPLED = {"temperature": 0.8, "top_p": 0.9}


@pytest.fixture(
    scope="module",
    params=[("paddle", 1), ("paddle", 2), pytest.param(("transformers", None), marks=pytest.mark.torch)],
    ids=["paddle", "paddle, 2 threads", "transformers"],
)
def loaded(request: pytest.FixtureRequest) -> tuple[TargetModel, Tokenizer]:
    framework, threads = request.param
    pytest.importorskip(framework, reason=f"{framework} is not installed (pip install 'specdec-hal[{framework}]')")
    folder = ROOT / "models/tiny-py-lm"
    return load_model(folder, framework, **({} if threads is None else {"threads": threads})), load_tokenizer(folder)


def decode(
    loaded: tuple[TargetModel, Tokenizer], requests: list[Request], *overrides: str, naive: bool = False
) -> tuple[list[RequestOutput], ModelRunner]:
    runtime = sd.load(ROOT / "configs/reference.yaml", ["speculative.adaptive=false", *overrides])
    model, tokenizer = loaded
    runner = (runtime.naive() if naive else runtime).runner(model=model, tokenizer=tokenizer)
    for request in requests:
        runner.add_request(request)
    outputs = runner.run()
    return [outputs[request.request_id] for request in requests], runner


def make_requests(tokenizer: Tokenizer, count: int, sampling: dict[str, float], tokens: int) -> list[Request]:
    texts = [path.read_text().rstrip("\n") for path in PROMPTS]
    return [
        Request(
            str(i),
            tokenizer.encode(texts[i % len(texts)]),
            SamplingParams(max_new_tokens=tokens, seed=i, **sampling),  # type: ignore[arg-type]
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def alone(loaded: tuple[TargetModel, Tokenizer]) -> Callable[[Request], RequestOutput]:
    """Plain decoding of a request by itself, once for each request."""
    known: dict[str, RequestOutput] = {}

    def plain(request: Request) -> RequestOutput:
        key = repr((request.prompt_token_ids, request.params))
        if key not in known:
            ((known[key],), _) = decode(loaded, [request], "runner.prefill_chunk=2048", naive=True)
        return known[key]

    return plain


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("batch", "chunk"), [(1, 256), (6, 256), (3, 37)])
def test_speculative_equals_plain(
    loaded: tuple[TargetModel, Tokenizer], alone: Callable[[Request], RequestOutput], sampling: dict[str, float],
    batch: int, chunk: int,
) -> None:  # fmt: skip
    """The plain side runs one request at a time with its prompt in one chunk."""
    requests = make_requests(loaded[1], batch, sampling, 24)
    together, runner = decode(loaded, requests, f"runner.max_num_seqs={min(batch, 5)}", f"runner.prefill_chunk={chunk}")
    assert runner.summary()["accepted_tokens"] > 0
    for request, speculative in zip(requests, together, strict=True):
        plain = alone(request)
        assert plain.token_ids == speculative.token_ids
        assert plain.text == speculative.text
        assert plain.finish_reason == speculative.finish_reason


THINK_END, THINK_TEXT = 1999, [590, 1999, 310]


@pytest.mark.parametrize(("backend", "sampling"), [("reference", GREEDY), ("cpu", SAMPLED)])
def test_limits_of_thinking_hold_with_drafts_and_without(
    loaded: tuple[TargetModel, Tokenizer], backend: str, sampling: dict[str, float]
) -> None:
    """The model does not know when it thinks: the text that ends it stands where the limit is."""
    settings = (
        f"backend.name={backend}", f"model.think_end_id={THINK_END}", f"model.think_end_text={THINK_TEXT}",
        "runner.max_num_seqs=3",
    )  # fmt: skip
    limits = [{"max_tokens": 9, "max_reply_tokens": 6}, {"max_tokens": 0}, {"max_reply_tokens": 5}, None]
    requests = [
        replace(request, params=SamplingParams(**{**request.params.model_dump(), "thinking": limit}))
        for request, limit in zip(make_requests(loaded[1], 4, sampling, 24), limits, strict=True)
    ]
    together, runner = decode(loaded, requests, *settings)
    plain, _ = decode(loaded, requests, *settings, naive=True)
    for speculative, alone in zip(together, plain, strict=True):
        assert speculative.token_ids == alone.token_ids
        assert speculative.finish_reason == alone.finish_reason
    assert runner.summary()["accepted_tokens"] > 0
    first, second = (list(output.token_ids) for output in together[:2])
    assert first[9:12] == second[:3] == THINK_TEXT
    assert len(first) == 9 + 3 + 6 + 1
    assert first[-1] in runner.end_tokens
    assert together[0].finish_reason == "stop"


def test_it_writes_python_and_copies_what_it_edits(loaded: tuple[TargetModel, Tokenizer]) -> None:
    """The demo: the next method of a class of near-identical methods."""
    (path,) = (path for path in PROMPTS if path.stem == "edit_function")
    prompt = loaded[1].encode(path.read_text().rstrip("\n"))
    (output,), runner = decode(loaded, [Request("a", prompt, SamplingParams(max_new_tokens=128))])
    assert "        return " in output.text
    assert "\n    def " in output.text
    assert runner.summary()["tokens_per_step"] >= 1.8


def test_stop_string_on_real_text(loaded: tuple[TargetModel, Tokenizer]) -> None:
    (path,) = (path for path in PROMPTS if path.stem == "edit_function")
    prompt = loaded[1].encode(path.read_text().rstrip("\n"))
    for naive in (False, True):
        params = SamplingParams(max_new_tokens=200, stop=["\n    def "])
        (output,), _ = decode(loaded, [Request("a", prompt, params)], naive=naive)
        assert output.finish_reason == "stop"
        assert "return" in output.text
        assert "\n    def " not in output.text
