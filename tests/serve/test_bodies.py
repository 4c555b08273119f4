"""Long bodies are read in another process, with the answers that short ones get."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import model_validator

from specdec_hal.models.chat import ChatTemplate
from specdec_hal.serve import app, bodies
from specdec_hal.serve.bodies import LONG, Bodies
from specdec_hal.serve.protocol import Body, ChatCompletionRequest, DetokenizeRequest, TokenizeRequest
from specdec_hal.serve.responses import ResponsesRequest
from tests.serve.conftest import Running, serving
from tests.support.processes import descendants

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TEMPLATE = ChatTemplate(
    "{% if messages[-1].content == 'x' %}{{ raise_exception('no x') }}{% elif messages[-1].content == 'y' %}"
    "{{ 1 / 0 }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}{{ 'g' if tools }}{{ more }}"
)
USER = {"role": "user", "content": "abab"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
DEEP = '{"prompt": ' + "[" * 20_000
NESTED = json.loads("[" * 800 + "]" * 800)
BODIES: dict[str, tuple[str, Any]] = {
    "text": (TEXT, {"prompt": "abab"}),
    "token ids": (TEXT, {"prompt": [3, 5, 6, 5, 6]}),
    "several": (TEXT, {"prompt": [[3, 5], [1]], "n": 2, "temperature": 1.0, "seed": 3, "echo": True, "logprobs": 2}),
    "a stream": (TEXT, {"prompt": "abab", "max_tokens": 1, "stream": True, "stream_options": {"include_usage": True}}),
    "a chat": (CHAT, {"messages": [USER, {"role": "assistant", "content": "c"}, USER], "logprobs": True}),
    "keys of a template": (CHAT, {"messages": [USER], "tools": [TOOL], "chat_template_kwargs": {"more": "zz"}}),
    "tools without a parser": (CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": "auto"}),
    "a chat that is refused": (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
    "a chat that fails": (CHAT, {"messages": [{"role": "user", "content": "y"}]}),
    "no chat": (CHAT, {"messages": [{"role": "user"}]}),
    "responses": (RESPONSES, {"input": "abab", "instructions": "cd", "metadata": {"a": "b"}}),
    "tokens of text": ("/tokenize", {"prompt": "abab"}),
    "tokens of a chat": ("/tokenize", {"messages": [USER], "return_token_strs": True}),
    "text of tokens": ("/detokenize", {"tokens": [1, 2]}),
    "nothing to abort": ("/abort", {"request_id": "x"}),
    "another model": (TEXT, {"prompt": "a", "model": "another"}),
    "another variable": (CHAT, {"messages": [USER], "reasoning_effort": "low"}),
    "a token that is none": (TEXT, {"prompt": [1, "x"]}),
    "a token beyond the vocabulary": (TEXT, {"prompt": [1 << 20]}),
    "a key that is not served": (TEXT, {"prompt": "a", "grammar": "x"}),
    "too much metadata": (TEXT, {"prompt": "a", "metadata": {str(n): "a" for n in range(17)}}),
    "no object": (TEXT, [1]),
    "no JSON": (TEXT, "{"),
    "no UTF-8": (TEXT, b'{"prompt": "\xff"}'),
    "deep nesting": (TEXT, DEEP),
    "deep keys of a template": (CHAT, {"messages": [USER], "chat_template_kwargs": {"more": NESTED}}),
    "deep nesting that is not used": (TEXT, {"prompt": "a", "prediction": {"a": NESTED}}),
}  # fmt: skip


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(template=TEMPLATE, sampling={"max_new_tokens": 4}, serve={"port": 0, "max_body_bytes": 4 << 20}) as it:
        yield it


def raw(body: Any) -> bytes:
    return body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()


def told(answer: httpx.Response) -> tuple[int, str]:
    """An answer without what is another one's."""
    return answer.status_code, re.sub(r"[a-z]+[-_][0-9a-f]{32}|\"created(_at)?\":\d+", "", answer.text)


@pytest.mark.parametrize("name", BODIES)
def test_the_answer_of_a_short_body(running: Running, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, body = BODIES[name]
    lengths, read = list[int](), bodies.read

    def recorded(kind: Any, data: bytes) -> Any:
        lengths.append(len(data))
        return read(kind, data)

    monkeypatch.setattr(bodies, "read", recorded)
    short, long = (running.http.post(path, content=raw(body) + b" " * spaces) for spaces in (0, LONG))
    assert told(short) == told(long) and short.status_code in (200, 400, 404)
    assert lengths == [len(raw(body))]  # of what was read in this process


class Counted(Body):
    """Knows how often it was validated."""

    seen: ClassVar[list[object]] = []

    @model_validator(mode="after")
    def _count(self) -> Counted:
        self.seen.append(self)
        return self


class Failing(Body):
    """Has a validator with a defect."""

    @model_validator(mode="after")
    def _fail(self) -> Failing:
        raise StopIteration


async def accept(body: Counted) -> None:
    """A route."""


def test_nothing_is_validated_twice() -> None:
    """Validators of a whole model would look for what stayed in the other process."""
    served = FastAPI()
    served.router.route_class, served.state.bodies = app.Route, Bodies(None, 0)
    served.post("/")(accept)
    with TestClient(served) as client:
        assert client.post("/", json={}).status_code == 200
    assert len(Counted.seen) == 1


def test_what_only_a_template_needs_stays_there() -> None:
    """To load 300,000 lists from another process would take as long as to read them."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 9}] * 200
    keys = {"messages": messages, "documents": [{"a": "b"}] * 99, "tools": [TOOL] * 99, "metadata": {"a": "b"}}
    chat = ChatCompletionRequest(**keys, chat_template_kwargs={"more": [[]] * 99}, stream=True)
    told = chat.settled(TEMPLATE)
    assert told.prompt_text == "\n".join("a" * 9) * 200 + "g" + str([[]] * 99)
    assert told.may_call and told.stream and told.metadata == {"a": "b"}
    assert told.tools == [{"function": {"name": TOOL["function"]["name"]}}] * 99  # what tells a call
    assert not told.messages and told.documents is told.chat_template_kwargs is None
    asked = ResponsesRequest(input=messages, instructions="b").settled(TEMPLATE)
    assert asked.chat().prompt_text == "b" + "\n".join("a" * 9) * 200 and not asked.input and asked.instructions == "b"
    assert TokenizeRequest(prompt="ab").settled(TEMPLATE).prompt == "ab"


def worker(running: Running) -> int:
    """The process that reads bodies, which has started then."""
    assert running.http.post("/detokenize", content=b'{"tokens": [1]}' + b" " * LONG).status_code == 200
    return descendants(os.getpid(), "specdec_hal.serve.bodies")[-1]


LARGE = [
    (TEXT, {"prompt": [3, 5] * 200_000}, "prompt of 400000 tokens"),
    (TEXT, {"prompt": [1] * 400_000 + ["x"]}, "prompt.400000: "),
    (TEXT, "[" * 2_000_000, "expected JSON, got "),
    (CHAT, {"messages": [USER] * 2048, "chat_template_kwargs": {"a": [[]] * 300_000}}, "prompt of 8192 tokens"),
]


def test_others_are_answered_while_long_bodies_are_read(running: Running) -> None:
    pid = worker(running)
    with ThreadPoolExecutor(len(LARGE)) as threads:
        os.kill(pid, signal.SIGSTOP)
        try:
            asked = [threads.submit(running.http.post, path, content=raw(body)) for path, body, _ in LARGE]
            for _ in range(20):
                assert running.http.get("/health").status_code == 200
                assert running.post({"prompt": "ab", "max_tokens": 1}).status_code == 200
            assert not any(one.done() for one in asked)
        finally:
            os.kill(pid, signal.SIGCONT)
        for one, (_, _, message) in zip(asked, LARGE, strict=True):
            assert one.result().status_code == 400 and message in one.result().text


def test_a_process_that_is_killed_is_replaced(running: Running) -> None:
    pid = worker(running)
    with ThreadPoolExecutor(1) as thread:
        os.kill(pid, signal.SIGSTOP)
        asked = thread.submit(running.http.post, TEXT, content=raw(LARGE[0][1]))
        running.until(lambda: not running.service.bodies.worker.idle)
        os.kill(pid, signal.SIGKILL)
        answer = asked.result()
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    error = answer.json()["error"]
    assert error["type"] == "server_error" and error["code"] == 503
    assert "body: reading it has failed: its process was ended by SIGKILL; try again" in error["message"]
    assert worker(running) != pid


def test_a_body_that_takes_too_long(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = worker(running)
    monkeypatch.setattr(bodies, "RENDER_S", 0.2)
    os.kill(pid, signal.SIGSTOP)
    answer = running.http.post("/detokenize", content=b'{"tokens": [1]}' + b" " * LONG)
    assert answer.status_code == 400 and "body: reading it has taken more than 0.5" in answer.text
    monkeypatch.undo()
    assert worker(running) != pid


def test_a_body_that_takes_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MEMORY", 32 << 20)
    found = Bodies(None, 0)
    nested = b'{"tokens": [' + b"[]," * 1_000_000 + b"[]]}"
    for _ in range(2):
        with pytest.raises(bodies.BodyError, match="expected values that take less memory"):
            asyncio.run(found.read(DetokenizeRequest, nested))
        fine = asyncio.run(found.read(DetokenizeRequest, b'{"tokens": [1, 2]}' + b" " * LONG))
        assert fine == DetokenizeRequest(tokens=[1, 2])


def test_a_validator_that_fails_does_not_end_the_process() -> None:
    found = Bodies(None, 0)
    messages = list[str]()
    for spaces in (0, LONG):
        with pytest.raises(bodies.BodyError) as failed:
            asyncio.run(found.read(Failing, b"{}" + b" " * spaces))
        messages.append(failed.value.detail)
    assert messages == ["body: expected one that can be read, got StopIteration"] * 2
