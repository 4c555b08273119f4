"""The Responses API through the official client: whole, as a stream, asynchronously, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from specdec_hal.models.chat import ChatTemplate
from tests.serve.conftest import MODEL, Running, serving
from tests.support.killing import split_server
from tests.support.model_texts import Recorded, script

ASKED: dict[str, Any] = {"model": MODEL, "input": "abab", "max_output_tokens": 12, "extra_body": {"seed": 3}}
SAMPLED: dict[str, Any] = {**ASKED, "temperature": 0.9, "top_p": 0.8}


def chat(running: Running, messages: Any, **more: Any) -> Any:
    create = running.openai.chat.completions.create
    return create(model=MODEL, messages=messages, max_completion_tokens=12, seed=3, **more)


def test_a_response_is_the_answer_of_a_chat(shared: Running) -> None:
    response = shared.openai.responses.create(**SAMPLED)
    other = chat(shared, [{"role": "user", "content": "abab"}], temperature=0.9, top_p=0.8)
    choice, usage = other.choices[0], other.usage
    assert response.output_text == choice.message.content != ""
    assert response.object == "response" and response.model == MODEL and response.error is None
    assert (response.status == "incomplete") == (choice.finish_reason == "length")
    assert response.temperature == 0.9 and response.top_p == 0.8 and response.max_output_tokens == 12
    assert response.usage is not None and response.usage.input_tokens == usage.prompt_tokens == 4
    assert response.usage.output_tokens == usage.completion_tokens
    assert response.usage.total_tokens == usage.total_tokens
    assert response.usage.num_drafts == usage.num_drafts  # type: ignore[attr-defined]
    (item,) = response.output
    assert item.type == "message" and item.role == "assistant" and item.status == response.status
    # The client's own models take all of it.
    type(response).model_validate(response.model_dump())


def test_why_a_response_ends(shared: Running) -> None:
    response = shared.openai.responses.create(**{**ASKED, "max_output_tokens": 1})
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None and response.usage.output_tokens == 1


def collected(events: list[Any]) -> Any:
    """The last event's response, once the order and the sums of all events are as OpenAI has them."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"] and kinds[-1] in ("completed", "incomplete")
    assert all(event.response.status == "in_progress" and event.response.output == [] for event in events[:2])
    final, at = events[-1].response, 2
    for number, item in enumerate(final.output):
        begun = kinds.index("output_item.done", at)
        mine, at = events[at : begun + 1], begun + 1
        name = "output_text" if item.type == "message" else "reasoning_text"
        order = [event.type.removeprefix("response.") for event in mine]
        assert order[:2] == ["output_item.added", "content_part.added"]
        assert set(order[2:-3]) <= {f"{name}.delta"}
        assert order[-3:] == [f"{name}.done", "content_part.done", "output_item.done"]
        assert {event.output_index for event in mine} == {number}
        assert {event.item_id for event in mine[1:-1]} == {item.id} == {mine[0].item.id}
        assert mine[0].item.status == "in_progress" and mine[-1].item == item
        text = item.content[0].text
        assert "".join(event.delta for event in mine[2:-3]) == text == mine[-3].text == mine[-2].part.text
    assert at == len(events) - 1
    return final


def same(response: Any) -> Any:
    found = response.model_dump(exclude={"id", "created_at"})
    for item in found["output"]:
        del item["id"]
    return found


@pytest.mark.parametrize("more", [{}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}])
def test_a_stream_ends_with_the_whole_response(shared: Running, more: dict[str, Any]) -> None:
    whole = shared.openai.responses.create(**SAMPLED, **more)
    events = list(shared.openai.responses.create(**SAMPLED, **more, stream=True))
    assert same(collected(events)) == same(whole)
    assert len([event for event in events if event.type == "response.output_text.delta"]) > 1


def test_the_clients_own_stream(shared: Running) -> None:
    """Which wants a response that is complete."""
    asked = {"model": MODEL, "input": "abab", "temperature": 2.0, "max_output_tokens": 50}
    for seed in range(40):
        whole = shared.openai.responses.create(**asked, extra_body={"seed": seed})
        if whole.status == "completed":
            break
    assert whole.status == "completed" and whole.incomplete_details is None
    with shared.openai.responses.stream(**asked, extra_body={"seed": seed}) as stream:
        assert stream.get_final_response().output_text == whole.output_text


def test_log_probabilities_are_those_of_the_chat(shared: Running) -> None:
    asked = {**ASKED, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    found = shared.openai.responses.create(**asked).output[0].content[0].logprobs  # type: ignore[union-attr]
    expected = chat(shared, [{"role": "user", "content": "abab"}], logprobs=True, top_logprobs=2).choices[0].logprobs
    assert found is not None and expected is not None
    assert [one.model_dump() for one in found] == [one.model_dump() for one in expected.content]
    events = shared.openai.responses.create(**asked, stream=True)
    pieces = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    assert [(one.token, one.logprob) for one in pieces] == [(one.token, one.logprob) for one in found]
    assert not shared.openai.responses.create(**ASKED).output[0].content[0].logprobs  # type: ignore[union-attr]


def test_the_messages_that_the_template_gets(running: Running) -> None:
    running.service.renderer = template = Recorded()
    first = running.openai.responses.create(**ASKED)
    items: Any = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "a "}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
        *(item.model_dump() for item in first.output),
        {"type": "message", "role": "user", "content": "c", "status": "completed"},
    ]
    running.openai.responses.create(**{**ASKED, "input": items}, instructions="be kind")
    assert template.messages == [
        {"role": "system", "content": "be kind"},
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "text", "text": first.output_text}]},
        {"role": "user", "content": "c"},
    ]


def test_keys_that_change_nothing_are_taken(shared: Running) -> None:
    repeated = {"text", "reasoning", "truncation"}
    plain = same(shared.openai.responses.create(**ASKED))
    keys: dict[str, Any] = {
        "store": True, "truncation": "disabled", "background": False, "tools": [], "tool_choice": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "reasoning": {"summary": "auto"},
        "service_tier": "auto", "prompt_cache_key": "x", "safety_identifier": "x", "max_tool_calls": 3,
        "include": ["reasoning.encrypted_content"], "stream_options": {"include_obfuscation": False},
    }  # fmt: skip
    more: dict[str, Any] = {"truncation": "auto", "text": {"verbosity": "low"}, "reasoning": {"effort": "high"}}
    for name, value in [*keys.items(), *more.items()]:
        found = same(shared.openai.responses.create(**{**ASKED, name: value}))
        assert {key: found[key] for key in found.keys() - repeated} == {
            key: plain[key] for key in plain.keys() - repeated
        }, name
    found = shared.openai.responses.create(**ASKED, **more)
    assert (found.truncation, found.text.verbosity, found.reasoning.effort) == ("auto", "low", "high")


@pytest.mark.parametrize(
    "keys",
    [
        {"logit_bias": {"5": 100}, "ignore_eos": True},
        {"stop": "v", "include_stop_str_in_output": True},
        {"allowed_token_ids": [3, 4], "min_p": 0.1, "presence_penalty": 1, "repetition_penalty": 1.2},
        {"bad_words": ["p"], "stop_token_ids": [7], "min_tokens": 3, "num_speculative_tokens": 0},
    ],
    ids="-".join,
)
def test_keys_of_sampling_are_those_of_a_chat(shared: Running, keys: dict[str, Any]) -> None:
    plain, asked = ({**given, "max_output_tokens": 9, "seed": 5} for given in ({}, keys))
    texts = [shared.post({"input": "abab", **body}, "/v1/responses").json()["output"] for body in (plain, asked)]
    body = {"messages": [{"role": "user", "content": "abab"}], "max_tokens": 9, "seed": 5, **keys}
    (choice,) = shared.post(body, "/v1/chat/completions").json()["choices"]
    said, changed = (text[0]["content"][0]["text"] for text in texts)
    assert changed == choice["message"]["content"] != said


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("previous_response_id", "resp_1", "previous_response_id: unknown key; it is not served"),
        ("conversation", "c", "conversation: unknown key"),
        ("prompt", {"id": "p"}, "prompt: unknown key"),
        ("background", True, "background: expected False, got True"),
        ("truncation", "old", "truncation: expected 'disabled' or 'auto', got 'old'"),
        ("text", {"format": {"type": "xml"}}, "text.format.type: expected 'text', 'json_object' or 'json_schema'"),
        ("text", {"verbosity": "much"}, "text.verbosity: expected 'low', 'medium' or 'high', got 'much'"),
        ("tools", [{"type": "web_search"}], "tools: List should have at most 0 items"),
        ("reasoning", {"effort": 5}, "reasoning.effort: Input should be a valid string"),
        ("include", ["file_search_call.results"], "include.0: expected "),
        ("input", [], "List should have at least 1 item"),
        ("input", 5, "input: Input should be a valid string, or Input should be a valid list"),
        ("input", [{"type": "function_call_output", "call_id": "c", "output": "x"}], "input: expected items of type"),
        (
            "input",
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
            "input.0.content.0: expected a part of type 'text', got type 'input_image'",
        ),
        ("input", [{"role": "user", "content": "a"}] * 2049, "input: expected at most 2047 items, got 2049"),
        ("max_output_tokens", 0, "max_output_tokens: Input should be greater than or equal to 1"),
        ("structured_outputs", {}, "structured_outputs: json_schema: expected one of json_schema, json_object"),
    ],
)
def test_keys_that_would_change_the_answer_are_refused_by_name(
    shared: Running, key: str, value: Any, message: str
) -> None:
    for stream in (False, True):
        answer = shared.post({"input": "ab", "max_output_tokens": 2, key: value, "stream": stream}, "/v1/responses")
        assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text


def test_one_constraint_on_the_answer(shared: Running) -> None:
    body = {"input": "ab", "structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}}
    answer = shared.post(body, "/v1/responses")
    assert answer.status_code == 400 and "no structured_outputs beside it" in answer.json()["error"]["message"]


def test_errors_of_the_client(running: Running) -> None:
    with pytest.raises(openai.NotFoundError, match="expected 'letters', got another"):
        running.openai.responses.create(model="other", input="a")
    with pytest.raises(openai.NotFoundError):
        running.openai.responses.retrieve("resp_1")
    running.service.renderer = None
    with pytest.raises(openai.BadRequestError, match="has no chat template"):
        running.openai.responses.create(**ASKED)


def test_a_stream_that_fails(running: Running) -> None:
    running.model.poisoned.add(1)
    *_, last = running.openai.responses.create(**ASKED, stream=True)
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error is not None and "failed inside the engine" in last.response.error.message
    with pytest.raises(openai.InternalServerError, match="failed inside the engine"):
        running.openai.responses.create(**ASKED)


def test_abort(running: Running) -> None:
    running.model.gate.clear()
    body = {"input": "ab", "stream": True, "max_output_tokens": 50}
    with running.http.stream("POST", "/v1/responses", json=body) as answer:
        assert running.post({"request_id": answer.headers["X-Request-Id"]}, "/abort").status_code == 200
        running.model.gate.set()
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    last = json.loads(lines[-1].removeprefix("data: "))
    assert last["type"] == "response.incomplete" and last["response"]["incomplete_details"] == {"reason": "abort"}


@pytest.fixture
def thinking() -> Iterator[Running]:
    with serving(template=ChatTemplate("c"), serve={"port": 0, "reasoning_parser": "deepseek_r1"}) as found:
        yield found


def test_thoughts_are_an_item_of_their_own(thinking: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, "hm, hm</think>fine")
    asked = {**ASKED, "max_output_tokens": 40, "extra_body": {"seed": 3}}
    events = list(thinking.openai.responses.create(**asked, stream=True))
    final = collected(events)
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert final.output[0].content[0].text == "hm, hm" and final.output_text.startswith("fine")
    script(monkeypatch, "hm")
    cut = thinking.openai.responses.create(**{**asked, "max_output_tokens": 2})
    assert [item.type for item in cut.output] == ["reasoning"] and cut.status == "incomplete" and cut.output_text == ""


@pytest.mark.slow
def test_the_same_where_http_is_a_process_of_its_own(shared: Running) -> None:
    whole = shared.openai.responses.create(**SAMPLED)
    with split_server() as server:
        server.until_ready()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=60) as client:
            assert same(client.responses.create(**SAMPLED)) == same(whole)
            assert same(collected(list(client.responses.create(**SAMPLED, stream=True)))) == same(whole)
        assert httpx.get(f"{server.url}/v1/models/{MODEL}").json()["id"] == MODEL
        tokens = httpx.post(f"{server.url}/tokenize", json={"prompt": "abc"}).json()["tokens"]
        assert tokens == [0, 1, 2]
