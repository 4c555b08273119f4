"""Refusals, limits, keys, clients that go away, engines that fail."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from specdec_hal.serve import listeners, server
from specdec_hal.serve.app import make_app
from tests.serve.conftest import MODEL, Running, serving

LONG = {"prompt": [1, 2], "max_tokens": 60, "ignore_eos": True}


@pytest.mark.parametrize(
    ("body", "status", "message", "param"),
    [
        ({"prompt": [1], "prompt_logprobs": 21}, 400, "prompt_logprobs: Input should be less", "prompt_logprobs"),
        ({"prompt": [1], "prompt_logprobs": -1}, 400, "prompt_logprobs: Input should be greater", "prompt_logprobs"),
        ({"prompt": [1], "temperature": -1}, 400, "temperature: expected a number >= 0, got -1", "temperature"),
        ({"prompt": [1], "temperature": "hot"}, 400, "temperature: Input should be a valid number", "temperature"),
        ({"prompt": [1], "max_tokens": -1}, 400, "max_tokens: Input should be greater than or equal", "max_tokens"),
        ({"prompt": [1], "max_tokens": 0}, 400, "max_tokens: expected at least 1 without echo", "max_tokens"),
        ({"prompt": [1], "max_tokens": 0, "echo": True, "min_tokens": 1}, 400, "min_tokens: expected 0", "min_tokens"),
        ({"prompt": [1], "n": 129}, 400, "n: Input should be less than or equal to 128", "n"),
        ({"prompt": [[1]] * 65, "n": 2}, 400, "expected 1..128 prompts times n, got 130", "prompt"),
        ({"prompt": []}, 400, "expected 1..128 prompts times n, got 0", "prompt"),
        ({"prompt": [1], "logit_bias": {"3": 101}}, 400, "logit_bias.3: Input should be less", "logit_bias.3"),
        ({"prompt": [1], "logit_bias": {"3a": 1}}, 400, "logit_bias.3a", None),
        ({"prompt": [1], "logprobs": 21}, 400, "logprobs: Input should be less than or equal to 20", "logprobs"),
        ({"prompt": [1], "method": "mtp"}, 400, "method: expected 'ngram' or 'none', got 'mtp'", "method"),
        (
            {"prompt": [1], "method": "none", "num_speculative_tokens": 2},
            400, "expected 0 with method 'none'", "num_speculative_tokens",
        ),
        ({"prompt": [1], "method": 3}, 400, "method: Input should be a valid string", "method"),
        ({"prompt": [99], "echo": True}, 400, "token 99 is outside the vocabulary", "prompt"),
        ({"prompt": "\ud800"}, 400, "half of a surrogate pair", "prompt"),
        ({"prompt": [1], "\ud800": 1}, 400, "", None),
        ({"prompt": [1], "model": "other"}, 404, "expected 'letters', got another", "model"),
        ({}, 400, "prompt: Field required", "prompt"),
        ({"prompt": None}, 400, "prompt: Field required", "prompt"),
        ({"prompt": [[]]}, 400, "empty prompt", "prompt"),
        ({"prompt": [1] * 200}, 400, "prompt of 200 tokens leaves no room", "prompt"),
        ({"prompt": [1], "top_p": 2}, 400, "top_p: expected a number > 0 and <= 1, got 2", "top_p"),
        ({"prompt": [1], "min_tokens": 9, "max_tokens": 3}, 400, "expected at most max_tokens = 3", "min_tokens"),
        ({"prompt": [1], "stop": ""}, 400, "stop: expected a non-empty string", "stop"),
        ({"prompt": [1], "best_of": 2}, 400, "best_of: expected 1, as n, got 2", "best_of"),
        ({"prompt": [1], "stop_token_ids": [99]}, 400, "stop_token_ids: token 99 is outside", "stop_token_ids"),
        ({"prompt": [1], "stop_token_ids": [1] * 17}, 400, "at most 16 stop_token_ids", "stop_token_ids"),
        ({"prompt": [1], "num_speculative_tokens": 4}, 400, "exceeds 3", "num_speculative_tokens"),
        ({"prompt": [1], "presence_penalty": 2.1}, 400, "presence_penalty: Input should be less", "presence_penalty"),
        ({"prompt": [1], "frequency_penalty": -3}, 400, "frequency_penalty: Input should be", "frequency_penalty"),
        ({"prompt": [1], "logit_bias": {"\u0663": 1}}, 400, "logit_bias.\u0663: ", "logit_bias.\u0663"),
        ({"prompt": [1], "logit_bias": {"01": -100, "1": 2}}, 400, "one key for each token, got 2 for", "logit_bias"),
        (
            {"prompt": [1], "truncate_prompt_tokens": -1, "max_tokens": 999},
            400, "max_tokens 999 leaves no room for the prompt", "truncate_prompt_tokens",
        ),
        ({"prompt": [1], "structured_outputs": {"regex": "(["}}, 400, "structured.regex: ", "structured_outputs"),
        (
            {"prompt": [1], "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            400, "structured.json_schema: ", "response_format",
        ),
    ],
)  # fmt: skip
def test_refusals(shared: Running, body: Any, status: int, message: str, param: str | None) -> None:
    for stream in (False, True):
        answer = shared.http.post("/v1/completions", content=json.dumps({**body, "stream": stream}))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, status)
        assert message in error["message"] and (param is None or error["param"] == param)
    assert not shared.engine.runner.has_requests and shared.http.get("/ready").status_code == 200


def test_stream_options_change_nothing_without_a_stream(shared: Running) -> None:
    body = {"prompt": [1], "max_tokens": 1, "seed": 1, "stream_options": {"include_usage": True}}
    assert shared.post(body).json()["usage"]["completion_tokens"] == 1
    assert shared.post({**body, "stream": True}).status_code == 200
    assert shared.post({**body, "stream_options": None}).status_code == 200


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"x"', b"null", b'{"prompt": ' + b"[" * 100_000, b"\xff"])
def test_bodies_that_are_no_request(shared: Running, content: bytes) -> None:
    answer = shared.http.post("/v1/completions", content=content)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


def test_a_route_that_does_not_exist_and_a_method_that_is_wrong(shared: Running) -> None:
    for answer, status in ((shared.http.get("/v2"), 404), (shared.http.get("/v1/completions"), 405)):
        assert answer.status_code == answer.json()["error"]["code"] == status


def test_a_body_that_is_too_long() -> None:
    with serving(serve={"port": 0, "max_body_bytes": 100}) as running:
        body = json.dumps({"prompt": [1] * 100}).encode()
        for content in (body, iter([body])):  # with its length announced, and without
            answer = running.http.post("/v1/completions", content=content)
            assert answer.status_code == 413 and "at most 100 bytes" in answer.json()["error"]["message"]
        assert running.post({"prompt": [1], "max_tokens": 1}).status_code == 200


def streaming(running: Running, body: dict[str, Any]) -> Any:
    return running.http.stream("POST", "/v1/completions", json={**body, "stream": True})


def test_too_many_requests_at_once() -> None:
    with serving(serve={"port": 0, "max_concurrent_requests": 1}) as running:
        running.model.gate.clear()
        with streaming(running, LONG):
            refused = running.post({"prompt": [1]})
            assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
            assert running.http.get("/ready").status_code == 503 and running.http.get("/health").status_code == 200
        running.model.gate.set()
        running.until(lambda: not running.service.live)
        assert running.post({"prompt": [1], "max_tokens": 1}).status_code == 200


def test_a_queue_that_is_full_takes_all_choices_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(runner={"max_num_seqs": 1, "max_waiting_requests": 1}) as running:
        running.model.gate.clear()
        submit, submitted = running.engine.submit, list[Any]()

        async def noted(requests: Any) -> Any:
            submitted.append(requests)
            return await submit(requests)

        with streaming(running, {**LONG, "n": 2}), ThreadPoolExecutor() as threads:
            monkeypatch.setattr(running.engine, "submit", noted)
            refused = threads.submit(running.openai.completions.create, model=MODEL, prompt=[1], n=4)
            running.until(lambda: bool(submitted))  # while the gate holds up a step
            running.model.gate.set()
            with pytest.raises(openai.RateLimitError, match="expected at most 1 waiting requests") as error:
                refused.result()
            assert int(error.value.response.headers["Retry-After"]) >= 1
        running.until(lambda: not running.engine.runner.has_requests)
        answer = running.post({"prompt": [1], "n": 2, "max_tokens": 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("waiting", [0, 4])
def test_an_idle_server_takes_every_choice(waiting: int) -> None:
    """100 choices were refused with 429 forever, where fewer requests may wait."""
    with serving(runner={"max_num_seqs": 2, "max_waiting_requests": waiting}) as running:
        answer = running.post({"prompt": [1], "n": 100, "max_tokens": 1})
        assert answer.status_code == 200 and len(answer.json()["choices"]) == 100


def test_the_api_key() -> None:
    with serving("sesame") as running:
        assert running.post({"prompt": [1], "max_tokens": 1}).status_code == 200
        for given in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "Basic sesame"}, {"X": "sesame"}):
            with httpx.Client(base_url=running.url, headers=given) as client:
                for path in ("/v1/models", "/metrics", "/nowhere", "/docs2"):
                    assert client.get(path).status_code == 401
                refused = client.post("/v1/completions", content=b"x" * (2 << 20))
                assert refused.status_code == 401 and refused.json()["error"]["type"] == "authentication_error"
                for path in ("/health", "/ready", "/ping", "/version", "/openapi.json"):
                    assert client.get(path).status_code == 200
        document = running.http.get("/openapi.json").json()
        assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
        assert "security" not in document["paths"]["/metrics"]["get"]


def test_metrics_without_the_api_key() -> None:
    with serving("sesame", serve={"port": 0, "open_metrics": True}) as running:
        with httpx.Client(base_url=running.url) as client:
            assert "vllm:num_requests_running" in client.get("/metrics").text
            assert client.get("/metrics", headers={"Host": "evil.com"}).status_code == 200  # the key's hosts
            for path in ("/v1/models", "/metrics/", "/metrics2"):
                assert client.get(path).status_code == 401
        assert running.http.get("/openapi.json").json()["paths"]["/metrics"]["get"]["security"] == []


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_generation(running: Running, stream: bool) -> None:
    body = json.dumps({**LONG, "stream": stream, "n": 2}).encode()
    host, port = running.url.removeprefix("http://").split(":")
    running.model.gate.clear()
    with socket.create_connection((host, int(port))) as client:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        running.until(lambda: len(running.service.live) == 1)
    running.until(lambda: not running.service.live)
    running.model.gate.set()
    running.until(lambda: running.engine.runner.metrics.requests["cancelled"] == 2)
    assert running.post({"prompt": [1], "max_tokens": 1}).status_code == 200


MANY_EVENTS = {**LONG, "n": 64, "logprobs": 20, "stream": True}
"""Some megabytes, which no client's receive buffer holds."""


@contextmanager
def reading_nothing(url: str) -> Iterator[None]:
    """A client that asks for a long stream and never reads it."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(MANY_EVENTS).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        yield


def test_a_client_that_does_not_read_is_ended(capfd: pytest.CaptureFixture[str]) -> None:
    """It kept its slots until everything was generated: 60 of them delayed others by 59.7 s."""
    with serving(runner={"max_num_seqs": 1}, serve={"port": 0, "send_timeout_s": 0.3}) as running:
        requests = running.engine.runner.metrics.requests
        with reading_nothing(running.url):
            running.until(lambda: requests["length"] >= 2)
            running.model.gate.clear()  # two of 64 choices have filled the client's buffer
            running.until(lambda: not running.service.live)
            running.model.gate.set()
            assert running.post({"prompt": [1], "max_tokens": 1}).status_code == 200
            assert requests["cancelled"] >= 50


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_pauses_gets_everything(stream: bool) -> None:
    """Time between reads counts only while a full buffer waits."""
    with serving(serve={"port": 0, "send_timeout_s": 0.2}) as running:
        body = {"prompt": [3, 5, 6], "max_tokens": 9, "stream": stream}
        with running.http.stream("POST", "/v1/completions", json=body) as answer:
            running.until(lambda: not running.service.live)
            threading.Event().wait(0.5)
            assert answer.read()


def test_abort(running: Running) -> None:
    running.model.gate.clear()
    with streaming(running, {**LONG, "n": 2}) as answer:
        name = answer.headers["X-Request-Id"]
        assert running.post({"request_id": name}, "/abort").json() == {"id": name, "aborted": True}
        running.model.gate.set()
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    ends = [json.loads(line.removeprefix("data: "))["choices"][0]["finish_reason"] for line in lines[:-1]]
    assert ends.count("abort") == 2
    assert running.post({"request_id": name}, "/abort").status_code == 404


def test_a_request_that_fails(running: Running) -> None:
    running.model.poisoned.add(7)
    with pytest.raises(openai.InternalServerError, match="failed inside the engine"):
        running.openai.completions.create(model=MODEL, prompt=[7])
    chunks = running.openai.completions.create(model=MODEL, prompt=[7], stream=True)
    with pytest.raises(openai.APIError, match="failed inside the engine"):
        list(chunks)
    running.model.failures += [OSError("/secret/path")] * 2
    answer = running.post({"prompt": [1]})
    assert answer.status_code == 500 and "secret" not in answer.text
    assert running.post({"prompt": [1], "max_tokens": 1}).status_code == 200


def test_a_request_that_waits_too_long() -> None:
    with serving(runner={"queue_timeout_s": 1e-9}) as running:
        answer = running.post({"prompt": [1]})
        assert answer.status_code == 504 and "queue_timeout_s" in answer.json()["error"]["message"]
        with streaming(running, {"prompt": [1]}) as late:
            (event,) = [line for line in late.iter_lines() if line]
        assert json.loads(event.removeprefix("data: "))["error"]["code"] == 504


def test_time_before_the_engine_sees_a_request_counts() -> None:
    """While a step runs, requests wait for the engine's thread: they have their time-out without a slot."""
    with serving(runner={"queue_timeout_s": 0.3}) as running, ThreadPoolExecutor() as threads:
        running.until(lambda: not running.engine.unready)
        running.model.gate.clear()
        first = threads.submit(running.post, {"prompt": [1], "max_tokens": 3})
        running.until(lambda: running.engine.runner.load().running == 1)
        late = threads.submit(running.post, {"prompt": [2], "max_tokens": 3})
        running.until(lambda: running.engine.pending > 0)
        threading.Event().wait(0.6)
        running.model.gate.set()
        assert first.result().status_code == 200
        answer = late.result()
        assert answer.status_code == 504 and "queue_timeout_s of 0.3 s" in answer.json()["error"]["message"]
        assert running.engine.runner.metrics.requests["timeout"] == 1


def test_an_engine_that_stops(running: Running) -> None:
    running.model.gate.clear()
    with streaming(running, LONG) as answer:
        running.engine.runner.step = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        running.model.gate.set()
        lines = [line for line in answer.iter_lines() if line]
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == 503
    for stopped in (running.http.get("/health"), running.http.get("/ready"), running.post({"prompt": [1]})):
        assert stopped.status_code == 503 and "ZeroDivision" not in stopped.text
    del running.engine.runner.step
    running.engine.runner.run()


def test_a_server_ends_with_its_engine(running: Running) -> None:
    """It first reports the failure to clients, and ends so that a supervisor can restart it."""
    engine, said = running.engine, list[int]()

    async def main(listener: socket.socket) -> None:
        async def ask() -> None:
            async with httpx.AsyncClient(base_url=listeners.url(listener), timeout=60) as http:
                said.append((await http.get("/health")).status_code)
                engine.fail(RuntimeError("no more"))
                said.append((await http.get("/health")).status_code)

        asking = list[asyncio.Future[None]]()
        settings, app = running.service.settings, make_app(running.service)
        begin = lambda: asking.append(asyncio.ensure_future(ask()))  # noqa: E731
        await server.serve(app, listener, settings, begin, running.service.abort_all, engine.until_ended())
        await asking[0]

    with listeners.listen(engine.config) as (listener,):
        asyncio.run(asyncio.wait_for(main(listener), 60))
    assert said == [200, 503] and engine.failure == "RuntimeError: no more"
