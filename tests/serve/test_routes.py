"""The routes beside generation, and the web pages that may use them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import openai
import pytest

import specdec_hal
from specdec_hal.engine.rendering import Renderer
from specdec_hal.models.chat import ChatTemplate
from tests.serve.conftest import MODEL, Running, serving

EVIL, FRIEND = "https://evil.com", "https://friend.org"
ABORT = {"request_id": "x"}


def test_a_model_by_its_id(running: Running) -> None:
    model = running.openai.models.retrieve(MODEL)
    assert model.id == MODEL and model == next(iter(running.openai.models.list()))
    for name in ("other", "a/b", MODEL + "/x"):
        with pytest.raises(openai.NotFoundError, match="GET /v1/models lists it"):
            running.openai.models.retrieve(name)
    with serving(name="org/model") as other:
        assert other.openai.models.retrieve("org/model").id == "org/model"


def test_version_ping_and_heads(running: Running) -> None:
    assert running.http.get("/version").json() == {"version": specdec_hal.__version__}
    assert running.http.get("/openapi.json").json()["info"]["version"] == specdec_hal.__version__
    for ping in (running.http.get("/ping"), running.http.post("/ping", content=b"")):
        assert ping.status_code == 200 and ping.json() == running.http.get("/health").json()
    for path in ("/health", "/ready", "/ping"):
        assert (running.http.head(path).status_code, running.http.head(path).content) == (200, b"")
    running.engine.fail(RuntimeError("no more"))
    for path in ("/health", "/ping"):
        assert running.http.head(path).status_code == running.http.get(path).status_code == 503


def test_tokenize_and_detokenize(shared: Running) -> None:
    answer = shared.post({"model": MODEL, "prompt": "abc", "return_token_strs": True}, "/tokenize").json()
    assert answer == {"count": 3, "max_model_len": 64, "tokens": [0, 1, 2], "token_strs": ["a", "b", "c"]}
    assert shared.post({"prompt": "cab"}, "/tokenize").json()["token_strs"] is None
    assert shared.post({"tokens": [2, 0, 1]}, "/detokenize").json() == {"prompt": "cab"}
    assert shared.post({"tokens": []}, "/detokenize").json() == {"prompt": ""}


def test_a_chat_is_tokenized_as_its_prompt_is(running: Running) -> None:
    """And with special tokens where the request asks for them."""
    asked = list[bool]()
    encode = running.service.tokenizer.encode

    def recorded(text: str, add_special_tokens: bool = True) -> list[int]:
        asked.append(add_special_tokens)
        return encode(text, add_special_tokens)

    running.service.tokenizer.encode = recorded  # type: ignore[method-assign]
    running.service.renderer = Renderer(
        ChatTemplate("{{ messages[0].content }}{{ 'g' if add_generation_prompt }}{{ more }}")
    )
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}], "chat_template_kwargs": {"more": "wx"}}
    answer = running.post(chat, "/tokenize").json()
    assert running.service.tokenizer.decode(answer["tokens"]) == "abcgwx"
    used = running.post({**chat, "max_tokens": 1}, "/v1/chat/completions").json()["usage"]
    assert used["prompt_tokens"] == answer["count"] == 6
    assert running.post({**chat, "add_generation_prompt": False}, "/tokenize").json()["count"] == 5
    running.post({**chat, "add_special_tokens": True}, "/tokenize")
    running.post({"prompt": "a"}, "/tokenize")
    running.post({"prompt": "a", "add_special_tokens": False}, "/tokenize")
    assert asked == [False, False, False, True, True, False]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/tokenize", {}, 400, "prompt: expected either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, 400, "expected either prompt"),
        ("/tokenize", {"prompt": 1}, 400, "prompt: Input should be a valid string"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "expected 'letters', got another"),
        ("/tokenize", {"prompt": "a", "max_tokens": 1}, 400, "max_tokens: unknown key"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens.0: Input should be greater than or equal to 0"),
        ("/detokenize", {"tokens": [1, 99]}, 400, "tokens: token 99 is outside the vocabulary [0, 24)"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens: Input should be a valid list"),
        ("/detokenize", {}, 400, "tokens: Field required"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "expected 'letters', got another"),
    ],
)
def test_what_is_not_tokenized(shared: Running, path: str, body: Any, status: int, message: str) -> None:
    answer = shared.post(body, path)
    assert answer.status_code == status and message in answer.json()["error"]["message"]


def test_the_page_of_the_document_loads_nothing_from_elsewhere(running: Running) -> None:
    pytest.importorskip("fastapi_offline", reason="fastapi-offline is not installed (pip install fastapi-offline)")
    page = running.http.get("/docs")
    assert page.status_code == 200 and "SwaggerUIBundle" in page.text and "/openapi.json" in page.text
    assert "http://" not in page.text and "https://" not in page.text
    for file in ("swagger-ui-bundle.js", "swagger-ui.css"):
        assert f"/docs/static/{file}" in page.text
        assert running.http.get(f"/docs/static/{file}").status_code == 200
    assert running.http.get("/docs/static/../../app.py").status_code == 404
    with serving("sesame") as keyed:
        for path in ("/docs", "/docs/static/swagger-ui.css"):
            assert keyed.http.get(path, headers={"Authorization": ""}).status_code == 200
    assert version("fastapi-offline")


# ---- web pages


def preflight(running: Running, origin: str) -> Any:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    return running.http.options("/v1/completions", headers=headers)


@pytest.mark.parametrize("key", [None, "sesame"])
def test_pages_of_an_allowed_origin_may_use_the_server(key: str | None) -> None:
    with serving(key, serve={"port": 0, "allowed_origins": [FRIEND]}) as running:
        allowed = preflight(running, FRIEND)
        assert allowed.status_code == 200 and allowed.headers["Access-Control-Allow-Origin"] == FRIEND
        assert preflight(running, EVIL).status_code == 400
        body = {"prompt": [1], "max_tokens": 1}
        answer = running.http.post("/v1/completions", json=body, headers={"Origin": FRIEND})
        assert answer.status_code == 200 and answer.headers["Access-Control-Allow-Origin"] == FRIEND
        assert "X-Request-Id" in answer.headers["Access-Control-Expose-Headers"]
        refused = running.http.post("/v1/completions", json={}, headers={"Origin": FRIEND})
        assert refused.status_code == 400 and refused.headers["Access-Control-Allow-Origin"] == FRIEND


def test_without_allowed_origins_no_page_but_our_own(running: Running) -> None:
    assert preflight(running, FRIEND).status_code == 403
    for origin in (EVIL, "null", running.url + "1", "http://localhost"):
        refused = running.http.post("/abort", json=ABORT, headers={"Origin": origin})
        assert refused.status_code == 403 and "--allowed-origins" in refused.json()["error"]["message"]
        assert "Access-Control-Allow-Origin" not in refused.headers
    for headers in ({"Origin": running.url}, {}, {"Origin": EVIL, "Sec-Fetch-Site": "same-origin"}):
        assert running.http.post("/abort", json=ABORT, headers=headers).status_code == 404
    with serving("sesame") as keyed:
        assert keyed.http.post("/abort", json=ABORT, headers={"Origin": EVIL}).status_code == 404
    with serving(serve={"port": 0, "allowed_origins": ["*"]}) as open_:
        assert open_.http.post("/abort", json=ABORT, headers={"Origin": EVIL}).status_code == 404
