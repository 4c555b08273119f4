"""The embedded model on Paddle: speculative output equals plain output, token for token, on real text."""

from __future__ import annotations

from pathlib import Path

import pytest

import specdec_hal as sd
from specdec_hal.models import TargetModel, Tokenizer, load_model, load_tokenizer
from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams

ROOT = Path(__file__).parents[2]
PROMPTS = sorted((ROOT / "examples/prompts").glob("*.txt"))
GREEDY: dict[str, float] = {}
SAMPLED = {"temperature": 0.8, "top_p": 0.9}


@pytest.fixture(scope="module", params=["paddle", pytest.param("torch", marks=pytest.mark.torch)])
def loaded(request: pytest.FixtureRequest) -> tuple[TargetModel, Tokenizer]:
    if request.param == "paddle":
        pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    folder = ROOT / "models/tiny-py-lm"
    return load_model(folder, request.param), load_tokenizer(folder)


def decode(
    loaded: tuple[TargetModel, Tokenizer], requests: list[Request], *overrides: str, naive: bool = False
) -> tuple[list[RequestOutput], ModelRunner]:
    runtime = sd.load(ROOT / "configs/reference.yaml", overrides)
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


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("batch", "chunk"), [(1, 256), (3, 256), (8, 256), (3, 37)])
def test_speculative_equals_plain(
    loaded: tuple[TargetModel, Tokenizer], sampling: dict[str, float], batch: int, chunk: int
) -> None:
    """The plain side runs one request at a time with its prompt in one chunk."""
    requests = make_requests(loaded[1], batch, sampling, 48)
    together, runner = decode(loaded, requests, f"runner.max_num_seqs={min(batch, 5)}", f"runner.prefill_chunk={chunk}")
    assert runner.summary()["accepted_tokens"] > 0
    for request, speculative in zip(requests, together, strict=True):
        (plain,), _ = decode(loaded, [request], "runner.prefill_chunk=2048", naive=True)
        assert plain.token_ids == speculative.token_ids
        assert plain.text == speculative.text
        assert plain.finish_reason == speculative.finish_reason


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
