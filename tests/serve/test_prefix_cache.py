"""What clients learn of the prefix cache, and what they ask of it."""

from __future__ import annotations

from typing import Any

from specdec_hal.config import parse
from specdec_hal.engine import AsyncEngine
from tests.serve.conftest import MODEL, ROOT, load_chat_template, served
from tests.support.history_model import DeviceHistoryModel, LetterTokenizer


def test_cached_tokens_and_salts() -> None:
    config = parse({"backend": {"name": "reference"}, "runner": {"block_size": 4}, "serve": {"port": 0}})
    engine = AsyncEngine(DeviceHistoryModel(), config, tokenizer=LetterTokenizer())  # type: ignore[arg-type]
    with served(engine, MODEL, load_chat_template(ROOT / "models/tiny-py-lm")) as running:
        common: dict[str, Any] = {"model": MODEL, "max_tokens": 3}

        def cached(salt: str | None = None, n: int = 1) -> int | None:
            body = {} if salt is None else {"cache_salt": salt}
            prompt = "bcdefghijklmn"
            usage = running.openai.completions.create(prompt=prompt, n=n, extra_body=body, **common).usage
            assert usage is not None and usage.prompt_tokens_details is not None
            return usage.prompt_tokens_details.cached_tokens

        assert [cached(), cached(), cached("a"), cached("a"), cached(n=2)] == [0, 12, 0, 12, 12]
        asked: dict[str, Any] = {"model": MODEL, "input": "nmlkjihgfe", "max_output_tokens": 3}
        first, second = (running.openai.responses.create(**asked).usage for _ in range(2))
        assert first is not None and second is not None
        assert first.input_tokens_details.cached_tokens == 0 < second.input_tokens_details.cached_tokens
        assert running.post({"prompt": "a", "cache_salt": ""}).status_code == 400
        lines = running.http.get("/metrics").text.splitlines()
        values = {line.split("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("vllm:prefix")}
        asked_for = 6 * 13 + first.input_tokens + second.input_tokens
        assert values["vllm:prefix_cache_queries_total"] == asked_for
        found = 4 * 12 + second.input_tokens_details.cached_tokens
        assert values["vllm:prefix_cache_hits_total"] == found
