"""Whatever a body holds, the answer is 200 or an error of the client's, and the next request works."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from specdec_hal.config.schema import ServeSettings
from specdec_hal.engine import AsyncEngine
from specdec_hal.engine.async_engine import EngineInfo, RequestStream
from specdec_hal.models import load_tokenizer
from specdec_hal.runner import Request
from specdec_hal.serve.protocol import ChatCompletionRequest, CompletionRequest, TokenizeRequest
from specdec_hal.serve.responses import ResponsesRequest
from specdec_hal.serve.service import Service
from specdec_hal.serve.split import messages
from tests.serve.conftest import Running, serving

NUMBERS = st.one_of(
    st.integers(-3, 70), st.sampled_from([1 << 31, 1 << 62, 1 << 63, 1 << 64, -(1 << 63), 10**400, -(10**400)]),
    st.floats(), st.sampled_from([1e-320, 1e308, -0.0, 100.0, -100.0]),
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=5), st.text("abcde", max_size=70), st.sampled_from(["\ud800", "\0", "3", "-1", "9" * 9])
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
MODEL = Path(__file__).parents[2] / "models/tiny-py-lm"
ROUTES = {
    "/v1/completions": ({"prompt": "abab", "max_tokens": 3}, sorted(CompletionRequest.model_fields)),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "abab"}], "max_tokens": 3},
        sorted(ChatCompletionRequest.model_fields),
    ),
    "/v1/responses": ({"input": "abab", "max_output_tokens": 3}, sorted(ResponsesRequest.model_fields)),
    "/tokenize": ({"prompt": "abab"}, sorted(TokenizeRequest.model_fields)),
    "/detokenize": ({"tokens": [1, 2]}, ["tokens", "model"]),
    "/abort": ({"request_id": "x"}, ["request_id"]),
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with serving(sampling={"max_new_tokens": 4}) as found:
        yield found


@pytest.fixture(autouse=True)
def other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's requests can be sent to another process."""
    submit = AsyncEngine.submit

    async def sent(engine: AsyncEngine, requests: Sequence[Request]) -> RequestStream:
        asked = messages.Submit(0, [messages.SubmittedRequest.of(request) for request in requests])
        assert messages.for_engine(msgspec.msgpack.encode(asked)) == asked
        return await submit(engine, requests)

    monkeypatch.setattr(AsyncEngine, "submit", sent)


@pytest.mark.parametrize("huge", [1 << 31, 1 << 63, 1 << 64, 10**400], ids=["2^31", "2^63", "2^64", "10^400"])
def test_numbers_beyond_64_bits(shared: Running, huge: int) -> None:
    """A token id of 2^64 was status 500 and 70 lines in the log where HTTP is a process of its own."""
    keys = ("prompt", "stop_token_ids", "n", "max_tokens", "min_tokens", "seed", "top_k", "logprobs")
    for key in (*keys, "num_speculative_tokens"):
        value = [huge] if key in ("prompt", "stop_token_ids") else huge
        answer = shared.http.post("/v1/completions", content=json.dumps({"prompt": [1], "max_tokens": 1, key: value}))
        wanted = 200 if key in ("seed", "max_tokens") and huge < 1 << 63 else 400
        assert answer.status_code == wanted, (key, answer.text)


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=40)
@given(data=st.data())
def test_any_body(shared: Running, path: str, data: st.DataObject) -> None:
    body, keys = ROUTES[path]
    changes = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, min_size=1, max_size=3))
    answer = shared.http.post(path, content=json.dumps({**body, **changes}))
    if answer.status_code == 200:
        assert answer.headers["Content-Type"].startswith("text/event-stream") == (changes.get("stream") is True)
        assert '"error"' not in answer.text.replace('"error":null', "")  # which responses have
    else:
        assert answer.status_code in (400, 404), answer.text
        error: dict[str, Any] = answer.json()["error"]
        assert error["message"] and len(answer.content) < 3000
    assert shared.engine.alive


# ---- a megabyte of trouble

MESSAGE = {"role": "user", "content": "a"}
MANY = 100_000
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "messages": (CHAT, {"messages": [{}] * MANY}),
    "messages that are right": (CHAT, {"messages": [MESSAGE] * 20_000}),
    "messages with other keys": (CHAT, {"messages": [{**MESSAGE, **{f"k{n}": 1 for n in range(MANY)}}]}),
    "parts": (CHAT, {"messages": [{"role": "user", "content": [{}] * MANY}]}),
    "calls": (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}] * MANY}]}),
    "tools": (CHAT, {"messages": [MESSAGE], "tools": [1] * MANY}),
    "documents": (CHAT, {"messages": [MESSAGE], "documents": [1] * MANY}),
    "numbers": (TEXT, {"prompt": [1.5] * MANY}),
    "texts": (TEXT, {"prompt": ["a"] * MANY}),
    "token lists": (TEXT, {"prompt": [[1]] * MANY}),
    "token lists that are none": (TEXT, {"prompt": [["x"] * MANY]}),
    "stop": (TEXT, {"prompt": [1], "stop": [1] * MANY}),
    "stop tokens": (TEXT, {"prompt": [1], "stop_token_ids": ["a"] * MANY}),
    "logit_bias": (TEXT, {"prompt": [1], "logit_bias": {f"k{n}": 1 for n in range(MANY)}}),
    "unknown keys": (TEXT, {"prompt": [1], **{f"k{n}": 1 for n in range(MANY)}}),
    "model": (TEXT, {"prompt": [1], "model": [{}] * MANY}),
}


@pytest.mark.parametrize("name", LARGE)
def test_validation_ends_early(name: str) -> None:
    """340,000 errors of one body took 5 s, which blocked all other requests."""
    path, body = LARGE[name]
    kind = ChatCompletionRequest if path == CHAT else CompletionRequest
    with pytest.raises(ValidationError) as found:
        kind.model_validate(body)
    assert found.value.error_count() <= 10


def test_memory_of_large_bodies_is_given_back(shared: Running) -> None:
    """280 MB stayed of one of them."""
    bodies = [(path, json.dumps(body).encode()) for path, body in LARGE.values()]

    def post() -> int:
        for path, body in bodies:
            answer = shared.http.post(path, content=body)
            assert answer.status_code in (400, 413) and len(answer.content) < 3000
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

    first = post()
    assert post() - first < 64 and post() - first < 64


def test_memory_of_long_texts_is_given_back() -> None:
    """The tokenizer takes some 250 bytes a character, which glibc would keep."""
    engine: Any = SimpleNamespace(
        tokenizer=load_tokenizer(MODEL), info=EngineInfo("reference", 1 << 18, [], "ngram", 3)
    )
    service = Service(engine, "tiny", ServeSettings(), None)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

    before = resident()
    asked = TokenizeRequest(prompt="def f(x): return x\n" * 20_000)
    assert b'"count":160000,' in asyncio.run(service.tokenize(asked))
    assert resident() - before < 40
