"""Answers in a form: by OpenAI's keys and helpers, by vLLM's, and by tools that must be called."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from specdec_hal.config import parse
from specdec_hal.engine import AsyncEngine
from specdec_hal.errors import WorkerError
from specdec_hal.models.chat import load_chat_template
from specdec_hal.output.parsers import TOOLS
from specdec_hal.serve.bodies import LONG
from specdec_hal.serve.forms import strict_calls
from tests.serve.conftest import ROOT, Running, served, serving
from tests.support.stuck_matchers import STUCK, stuck_matchers

TINY = ROOT / "models/tiny-py-lm"
USER: Any = [{"role": "user", "content": "def person():\n    return "}]
MORE: Any = {"model": "tiny", "max_tokens": 120, "temperature": 0.7, "seed": 4}


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)
    tags: list[Literal["red", "green"]] = Field(max_length=2)


PERSON = Person.model_json_schema()
CITY: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
        },
    },
}
STOP: Any = {"type": "function", "function": {"name": "stop"}}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    config = parse(
        {
            "backend": {"name": "reference"},
            "speculative": {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False},
            "structured": {"backend": "llguidance"},
            "serve": {"port": 0, "tool_call_parser": "hermes"},
        }
    )
    with served(AsyncEngine(TINY, config), "tiny", load_chat_template(TINY)) as found:
        yield found


def ask(running: Running, path: str = "/v1/chat/completions", **keys: Any) -> dict[str, Any]:
    first = {"messages": USER} if "chat" in path else {"prompt": USER[0]["content"]}
    answer = running.http.post(path, json={**first, **MORE, **keys})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_schema_with_drafts_and_without(running: Running) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    answer = ask(running, response_format=wanted, n=3)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)
    assert answer["usage"]["accepted_tokens"] > 3 * 5  # names of properties alone
    plain = ask(running, response_format=wanted, n=3, num_speculative_tokens=0)
    assert plain["usage"]["drafted_tokens"] == 0
    assert [choice["message"]["content"] for choice in plain["choices"]] == texts
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("keys", "pattern"),
    [
        ({"regex": "[ab]{3}-[0-9]{2}"}, "[ab]{3}-[0-9]{2}"),
        ({"choice": ["red", "green"]}, "red|green"),
        ({"grammar": 'root ::= "x" root | "y"'}, "x*y"),
        (
            {"json": {"type": "array", "items": {"type": "integer", "maximum": 9}, "minItems": 2, "maxItems": 2}},
            r"\[.*\]",
        ),
        ({"json_object": True, "disable_any_whitespace": False}, r"(?s)\{.*"),
    ],
)
def test_vllms_forms(running: Running, path: str, keys: dict[str, Any], pattern: str) -> None:
    (choice,) = ask(running, path, structured_outputs=keys)["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema", "schema": {}}}}),
        (
            "/v1/chat/completions",
            {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        ),
        ("/v1/chat/completions", {"messages": USER, "structured_outputs": {"json": {}}}),
    ],
)
def test_an_empty_schema_is_any_json(running: Running, path: str, keys: dict[str, Any]) -> None:
    """It was status 500, or 400 without a reason."""
    length = "max_tokens" if path == "/v1/chat/completions" else "max_output_tokens"
    answer = running.http.post(path, json={**keys, length: 3})
    assert answer.status_code == 200, answer.text


def test_the_openai_clients_helpers(running: Running) -> None:
    asked: Any = {**MORE, "messages": USER}
    parsed = running.openai.chat.completions.parse(response_format=Person, **asked).choices[0].message.parsed
    assert isinstance(parsed, Person)
    with running.openai.chat.completions.stream(response_format=Person, **asked) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed
    answer = running.openai.responses.parse(
        model="tiny", input=USER[0]["content"], text_format=Person, max_output_tokens=120, extra_body={"seed": 3}
    )
    assert isinstance(answer.output_parsed, Person)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "parallel", "reason", "description"),
    [
        ("required", False, "tool_calls", ""),
        ({"type": "function", "function": {"name": "weather"}}, True, "stop", ""),
        ("required", False, "tool_calls", "long " * LONG),
    ],
    ids=["required", "by name", "in a long body"],
)
def test_tools_that_must_be_called(
    running: Running, stream: bool, choice: Any, parallel: bool, reason: str, description: str
) -> None:
    asked: Any = {
        "messages": USER, "tools": [CITY, {**STOP, "function": {"name": "stop", "description": description}}],
        "tool_choice": choice, "parallel_tool_calls": parallel, **MORE,
    }  # fmt: skip
    if stream:
        with running.openai.chat.completions.stream(**asked) as events:
            answer: Any = events.get_final_completion()
    else:
        answer = running.openai.chat.completions.create(**asked)
    (found,) = answer.choices
    assert found.finish_reason == reason and not found.message.content
    (call,) = found.message.tool_calls
    assert call.id.startswith("call_")
    arguments = json.loads(call.function.arguments)
    if call.function.name == "stop":
        assert arguments == {}
    else:
        assert call.function.name == "weather" and arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("most", range(1, 12, 2))
def test_a_forced_call_that_is_cut_leaves_no_content(running: Running, stream: bool, most: int) -> None:
    """It left `{`."""
    asked: Any = {**MORE, "messages": USER, "tools": [CITY, STOP], "tool_choice": "required", "max_tokens": most}
    if stream:
        chunks = [chunk.choices[0] for chunk in running.openai.chat.completions.create(**asked, stream=True)]
        content = "".join(choice.delta.content or "" for choice in chunks)
        assert content == "" and chunks[-1].finish_reason == "length"
    else:
        (choice,) = running.openai.chat.completions.create(**asked).choices
        assert choice.message.content is None and choice.finish_reason == "length"


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 99}}\n</tool_call>\n'


def test_a_strict_tool_that_the_model_chooses_to_call(running: Running) -> None:
    """What it begins as a call comes to nothing, unless the tool is strict. Drafts change nothing."""
    chats: Any = running.openai.chat.completions

    def asked(strict: bool | None, drafts: int) -> dict[str, Any]:
        long = {"name": "stop", "description": "long " * LONG}  # is read in another process
        tools = [STOP if drafts else {**STOP, "function": long}]
        tools.append({**CITY, "function": {**CITY["function"], "strict": strict}})
        more = {
            "temperature": 0,
            "max_tokens": 64,
            "parallel_tool_calls": False,
            "extra_body": {"num_speculative_tokens": drafts},
        }
        return {**MORE, "messages": [{"role": "user", "content": CALL * 5}], "tools": tools, **more}

    free = chats.create(**asked(None, 4)).choices[0].message
    assert free.content.startswith("<tool_call>") and not free.tool_calls
    with chats.stream(**asked(True, 4)) as events:
        found = [events.get_final_completion(), *(chats.create(**asked(True, drafts)) for drafts in (4, 0))]
    assert {answer.choices[0].finish_reason for answer in found} == {"tool_calls"}
    calls = [answer.choices[0].message.tool_calls[0].function for answer in found]
    assert {call.name for call in calls} == {"weather"} and len({call.arguments for call in calls}) == 1
    arguments = json.loads(calls[0].arguments)
    assert arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9
    tag = strict_calls(asked(True, 4)["tools"], TOOLS["hermes"], parallel=False)["structural_tag"]
    more = {"messages": [{"role": "user", "content": CALL * 5}], "temperature": 0}
    texts = [
        ask(running, **more, **keys)["choices"][0]["message"]["content"]
        for keys in ({"response_format": tag}, {"structured_outputs": {"structural_tag": tag}})
    ]
    assert texts[0] == texts[1] and calls[0].arguments in texts[0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "expected json_schema with type 'json_schema'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "x"}}}},
            "json_schema",
        ),
        ({"structured_outputs": {"regex": "(["}}, "structured.regex: llguidance refuses it"),
        ({"structured_outputs": {}}, "expected one of json_schema"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "got regex and choice"),
        ({"structured_outputs": {"json": {"uniqueItems": True}}}, "uniqueItems"),
        (
            {"structured_outputs": {"json": reduce(lambda items, _: {"items": items}, range(300), {})}},
            "structured.json_schema: ",
        ),
        ({"structured_outputs": {"json": {"type": "number", "maximum": 10**400}}}, "beyond 2^53"),
        (
            {"structured_outputs": {"choice": ["("]}, "bad_words": ["("]},
            "structured.choice: at the beginning it and bad_words leave no token",
        ),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "whitespace_pattern: unknown key"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "leave out one of them"),
    ],
)
def test_what_is_no_form_is_refused_before_it_is_queued(running: Running, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        running.openai.chat.completions.create(messages=USER, **MORE, extra_body=keys)
    assert message in refused.value.message
    assert not running.engine.runner.has_requests  # type: ignore[attr-defined]


def test_a_text_that_is_cut_is_no_whole(running: Running) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    (choice,) = ask(running, response_format=wanted, max_tokens=2)["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"].startswith("{")


def test_a_text_that_nothing_may_follow_ends_without_an_end_token(running: Running) -> None:
    (choice,) = ask(running, structured_outputs={"choice": ["red"]}, ignore_eos=True)["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "red")


LETTERS: Any = {"prompt": "bc", "max_tokens": 8, "temperature": 1.0, "seed": 3}


def test_what_leaves_nothing_inside_a_text_is_the_requests_fault() -> None:
    with serving(structured={"backend": "llguidance"}) as running:
        body = {**LETTERS, "structured_outputs": {"choice": ["bcd"]}, "bad_words": ["bc"]}
        answer = running.post(body)
        message = "structured.choice: after 1 tokens it and bad_words leave no token; change one of them"
        assert answer.status_code == 400
        assert answer.json()["error"] == {
            "message": message, "type": "invalid_request_error", "param": "structured", "code": 400,
        }  # fmt: skip
        events = running.post({**body, "stream": True}).text
        assert message in events and "invalid_request_error" in events
        assert running.post(LETTERS).status_code == 200


def test_a_matcher_that_does_not_return_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It held up every client, for ever."""
    gate = stuck_matchers(monkeypatch, "mask")
    with (
        serving(structured={"backend": "llguidance", "mask_timeout_s": 0.5}) as running,
        ThreadPoolExecutor(8) as threads,
    ):
        expected = running.post(LETTERS).json()["choices"]
        stuck = threads.submit(running.post, {**LETTERS, "structured_outputs": {"regex": STUCK}})
        others = [threads.submit(running.post, LETTERS) for _ in range(6)]
        assert [other.result().json()["choices"] for other in others] == [expected] * 6
        answer = stuck.result()
        assert answer.status_code == 400 and "llguidance has taken more than 0.5 s" in answer.text
        gate.set()


def test_a_helper_process_that_is_killed_is_the_servers_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_grammars(requests: Any) -> Any:
        raise WorkerError("structured: compiling the grammar has failed: its process was ended by SIGKILL; try again")

    with serving(structured={"backend": "llguidance"}) as running:
        monkeypatch.setattr(running.engine.runner, "compile_grammars", compile_grammars)  # type: ignore[union-attr]
        answer = running.post({**LETTERS, "structured_outputs": {"regex": "b"}})
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["type"] == "server_error" and "SIGKILL; try again" in answer.text
        assert running.post(LETTERS).status_code == 200


def test_it_is_not_ready_while_a_step_does_not_return() -> None:
    with serving(runner={"watchdog_s": 0.1}) as running, ThreadPoolExecutor(1) as threads:
        assert running.http.get("/ready").status_code == 200
        running.model.gate.clear()
        asked = threads.submit(running.post, LETTERS)
        running.until(lambda: running.http.get("/ready").status_code == 503)
        assert "a step has not returned for 0.1 s (runner.watchdog_s)" in running.http.get("/ready").text
        assert running.http.get("/health").status_code == 200
        running.model.gate.set()
        assert asked.result().status_code == 200 and running.http.get("/ready").status_code == 200
