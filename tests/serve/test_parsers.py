"""Thoughts and calls of tools in answers, however the text comes in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.config import parse
from specdec_hal.errors import ConfigError
from specdec_hal.models.chat import ChatTemplate
from specdec_hal.serve.bodies import LONG
from tests.serve.conftest import MODEL, Running, serving
from tests.support.history_model import LetterTokenizer
from tests.support.killing import split_server
from tests.support.model_texts import CASES, END, HERMES, NASTY, Script, parts, script


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0] or case[1]}-{case[3][:24]!r}")
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_the_parts_do_not_depend_on_the_pieces(case: Any, data: st.DataObject) -> None:
    reasoning, tools, prompt, text, *expected = case
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=9)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for given_ in ([text], list(text), pieces):
        assert list(parts(reasoning, tools, prompt, given_)) == expected


@pytest.mark.parametrize("tools", ["hermes", "llama3_json", "mistral"])
@given(text=st.text('<>/tol_cal[]{}TOOL_CALLS": ,\n|;f', max_size=60))
def test_no_text_is_lost(tools: str, text: str) -> None:
    """Without a call, every character is content; but for white space before what looked like one."""
    _, content, calls = parts(None, tools, "", list(text))
    if not calls:
        assert "".join(content.split()) == "".join(text.split())


@pytest.mark.parametrize("piece", ["    ", "<tool_call ", "abc ", '{"a": [', "[TOOL_CALLS]"])
@pytest.mark.parametrize(("reasoning", "tools"), [("qwen3", "hermes"), (None, "llama3_json"), ("mistral", "mistral")])
def test_time_is_linear_in_the_text(reasoning: Any, tools: Any, piece: str) -> None:
    """Quadratic time would take minutes."""
    parts(reasoning, tools, "", ["[TOOL_CALLS]" if tools == "mistral" else "<think></think>", *[piece] * 5000])


# ---- through the server: a text is made of pieces, one a token


TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER: Any = [{"role": "user", "content": "abab"}]


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with serving(
        template=ChatTemplate("c"), serve={"port": 0, "reasoning_parser": "qwen3", "tool_call_parser": "hermes"}
    ) as found:
        yield found


def ask(running: Running, **more: Any) -> Any:
    asked: dict[str, Any] = {"model": MODEL, "messages": USER, "stop": END, "extra_body": {"ignore_eos": True}}
    return running.openai.chat.completions.create(**{**asked, **more})


TEXT = '<think>\nhm\n</think>\n\nok <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def streamed(chunks: Any) -> tuple[dict[str, str], list[dict[str, Any]], str]:
    said, calls, reason = {"content": "", "reasoning_content": "", "reasoning": ""}, list[dict[str, Any]](), ""
    for chunk in chunks:
        (choice,) = chunk.choices
        for key in said:
            said[key] += getattr(choice.delta, key, None) or ""
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                assert call.index == len(calls) and call.type == "function"
                calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
            calls[call.index]["arguments"] += call.function.arguments
        reason = choice.finish_reason or reason
    return said, calls, reason


def test_an_answer_in_its_parts(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, TEXT)
    (choice,) = ask(shared, tools=[TOOL]).choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "\n\nok"
    assert choice.message.reasoning_content == choice.message.reasoning == "\nhm\n"
    (call,) = choice.message.tool_calls
    assert call.type == "function" and (call.function.name, call.function.arguments) == ("f", '{"a": 1}')
    assert call.id.startswith("call_") and "index" not in call.model_dump()
    said, calls, reason = streamed(ask(shared, tools=[TOOL], tool_choice="auto", stream=True))
    thought = dict.fromkeys(("reasoning_content", "reasoning"), "\nhm\n")
    assert said == {"content": "\n\nok", **thought} and reason == "tool_calls"
    assert [(one["name"], one["arguments"]) for one in calls] == [("f", '{"a": 1}')]


def test_an_answer_with_calls_can_be_sent_back(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, HERMES)
    (choice,) = ask(shared, tools=[TOOL]).choices
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "a"}
    script(monkeypatch, "fine")
    assert (
        ask(shared, tools=[TOOL], messages=[choice.message.model_dump(), result]).choices[0].message.content == "fine"
    )


def test_what_is_not_looked_for_stays_text(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, TEXT)
    text = TEXT.partition("</think>")[2]
    for more in ({}, {"tools": [TOOL], "tool_choice": "none"}, {"tools": []}):
        (choice,) = ask(shared, **more).choices
        assert choice.message.content == text and choice.message.tool_calls is None and choice.finish_reason == "stop"
    hidden = ask(shared, extra_body={"ignore_eos": True, "include_reasoning": False}).choices[0].message
    assert not hasattr(hidden, "reasoning_content") and hidden.content == text
    completion = shared.openai.completions.create(model=MODEL, prompt="a", stop=END, extra_body={"ignore_eos": True})
    assert completion.choices[0].text == TEXT[: len(completion.choices[0].text)] != ""


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_alone(shared: Running, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    one = '<tool_call>{"name": "%s", "arguments": {}}</tool_call>'
    script(monkeypatch, one % "f" + one % "g")
    other = {"type": "function", "function": {"name": "g"}}
    for parallel, names in ((True, ["f", "g"]), (False, ["f"])):
        answer = ask(shared, tools=[TOOL, other], parallel_tool_calls=parallel, stream=stream)
        if stream:
            found = [one["name"] for one in streamed(answer)[1]]
        else:
            found = [call.function.name for call in answer.choices[0].message.tool_calls]
        assert found == names


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("description", ["", "long " * LONG], ids=["short", "in a long body"])
def test_json_that_is_no_call_of_the_tools_is_content(
    running: Running, monkeypatch: pytest.MonkeyPatch, stream: bool, description: str
) -> None:
    """It was a call `Alice Smith({})`."""
    settings_ = running.service.settings.model_copy(update={"tool_call_parser": "llama3_json"})
    monkeypatch.setattr(running.service, "settings", settings_)
    tool = {"type": "function", "function": {"name": "f", "description": description}}
    for text, name in (('{"name": "Alice Smith", "age": 30}', None), ('{"name": "f", "parameters": {}}', "f")):
        script(monkeypatch, text)
        answer = ask(running, tools=[tool], stream=stream)
        if stream:
            said, calls, reason = streamed(answer)
            found = said["content"], [call["name"] for call in calls], reason
        else:
            (choice,) = answer.choices
            named = [call.function.name for call in choice.message.tool_calls or ()]
            found = choice.message.content or "", named, choice.finish_reason
        assert found == ((text, [], "stop") if name is None else ("", [name], "tool_calls"))


def test_a_call_that_is_cut_off(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>')
    (choice,) = ask(shared, tools=[TOOL], max_tokens=22).choices
    assert choice.finish_reason == "length" and choice.message.tool_calls[0].function.arguments == '{"a": '


def test_each_choice_has_its_own_parts(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, TEXT)
    answer = ask(shared, tools=[TOOL], n=3)
    assert len({choice.message.tool_calls[0].id for choice in answer.choices}) == 3
    assert {choice.message.content for choice in answer.choices} == {"\n\nok"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice: expected 'none', 'auto' or 'required', got 'any'"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice: expected one of the tools (f), got 'g'",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools: expected tools of type 'function', got 'web_search' in tool 0"),
        ({"tools": [TOOL, {"type": "function"}]}, "tools: expected a function with a name in tool 1, got None"),
    ],
)
def test_tools_that_are_refused(shared: Running, more: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(shared, **more)
    assert message in refused.value.message


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
def test_without_a_parser_calls_are_refused(running: Running, choice: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match=r"tool_choice: expected 'none' with tools.*--tool-call-parser"):
        ask(running, tools=[TOOL], **choice)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("parser", "text", "stop", "thought", "content", "arguments", "reason"),
    [
        ("hermes", "<think>a\nb</think>c\nd", ["\n"], "a\nb", "c", [], "stop"),
        ("hermes", "<think>a\nb</think>\n\nc", ["\n\n", "b"], "a\nb", "", [], "stop"),
        ("hermes", "<think>Q:</think>Q", ["Q:"], "Q:", "Q", [], "stop"),
        ("hermes", f"ok {HERMES} so\n", ["\n", ":"], "", "ok so", [NASTY], "tool_calls"),
        ("hermes", f"a{HERMES}b", ["ab"], "", "ab", [NASTY], "tool_calls"),
        ("llama3_json", '{"a":\n1}', ["\n"], "", '{"a":', [], "stop"),
        ("llama3_json", '{"name": "f", "parameters": {"a":\n1}}', ["\n", "}"], "", "", ['{"a":\n1}'], "tool_calls"),
        ("mistral", f"x[TOOL_CALLS]f{NASTY}", ["[", "y"], "", "x", [NASTY], "tool_calls"),
    ],
)
def test_stop_strings_look_at_the_content(
    shared: Running, monkeypatch: pytest.MonkeyPatch, stream: bool, parser: str, text: str, stop: list[str],
    thought: str, content: str, arguments: list[str], reason: str,
) -> None:  # fmt: skip
    settings_ = shared.service.settings.model_copy(update={"tool_call_parser": parser})
    monkeypatch.setattr(shared.service, "settings", settings_)
    script(monkeypatch, text)
    answer = ask(shared, tools=[TOOL], stop=[*stop, END], stream=stream, max_tokens=60)
    if stream:
        said, calls, why = streamed(answer)
        found = said["reasoning"], said["content"], [call["arguments"] for call in calls], why
    else:
        (choice,) = answer.choices
        named = [call.function.arguments for call in choice.message.tool_calls or ()]
        said = getattr(choice.message, "reasoning", None) or ""
        found = said, choice.message.content or "", named, choice.finish_reason
    assert found == (thought, content, arguments, reason)


@pytest.mark.parametrize("key", ["reasoning_parser", "tool_call_parser"])
def test_an_unknown_parser_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"serve\.{key}.*mistral.*got 'nosuch'"):
        parse({"serve": {key: "nosuch"}})


@pytest.mark.parametrize("special", [True, False])
def test_markers_that_are_special_tokens_are_text(
    running: Running, monkeypatch: pytest.MonkeyPatch, special: bool
) -> None:
    """Mistral's are; a text without special tokens would have no call in it."""
    seen = list[bool]()

    def recorded(*prompt: Any, skip_special_tokens: bool, **options: Any) -> Script:
        seen.append(skip_special_tokens)
        return Script()

    settings_ = running.service.settings.model_copy(update={"tool_call_parser": "mistral"})
    monkeypatch.setattr(running.service, "settings", settings_)
    script(monkeypatch, "[TOOL_CALLS]f{}")
    monkeypatch.setattr(LetterTokenizer, "detokenizer", recorded)
    encode = LetterTokenizer.encode
    monkeypatch.setattr(LetterTokenizer, "encode", lambda *text, **more: [5] if text[1][0] == "[" else encode(*text))
    monkeypatch.setattr(LetterTokenizer, "special_ids", frozenset({5} if special else ()))
    assert ask(running, tools=[TOOL]).choices[0].message.tool_calls[0].function.name == "f"
    ask(running)
    assert seen == [not special, True]


@pytest.mark.slow
def test_thoughts_where_http_is_a_process_of_its_own() -> None:
    with split_server(reasoning_parser="deepseek_r1") as server:
        server.until_ready()
        body = {"messages": USER, "max_tokens": 9, "ignore_eos": True}
        message = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()["choices"][0]["message"]
        assert message["content"] is None and len(message["reasoning_content"]) == 9
        stopped = httpx.post(
            f"{server.url}/v1/chat/completions", json={**body, "stop": [*message["reasoning_content"]]}, timeout=60
        ).json()
        assert stopped["choices"][0]["message"] == message and stopped["choices"][0]["finish_reason"] == "length"
        lines = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "stream": True}, timeout=60).text
        deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines.splitlines() if line[6:7] == "{"]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message["reasoning_content"]
