"""Messages as official clients send them, and what a chat template gets of them."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.serve.conftest import MODEL, Running
from tests.support.model_texts import Recorded

CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"city": "paris", "days": 2}'}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


@pytest.fixture
def template(running: Running) -> Recorded:
    running.service.renderer = found = Recorded()
    return found


def chat(running: Running, messages: Any, **more: Any) -> Any:
    create = running.openai.chat.completions.create
    return create(model=MODEL, messages=messages, max_completion_tokens=3, **more)


def test_every_role_and_kind_of_message(running: Running, template: Recorded) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "annotations": [], "audio": None},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": "x", "reasoning_content": "thought"},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": None, "reasoning": "thought alone", "id": "msg_1"},
    ]
    assert chat(running, messages).choices[0].message.content
    function = {"name": "look_up", "arguments": {"city": "paris", "days": 2}}
    assert template.messages == [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}], "name": "ann"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function, "id": "c1"}]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
        {"role": "assistant", "content": "x", "reasoning_content": "thought"},
        {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "", "reasoning_content": "thought alone"},
    ]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"city": "pa', '{"city": "pa'), ("", {}), ("[" * 20_000, "[" * 20_000), ('{"a": 1}', {"a": 1})],
    ids=["cut", "none", "nested", "whole"],
)
def test_arguments_that_are_cut_go_to_the_template_as_text(
    running: Running, template: Recorded, arguments: str, shown: Any
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    assert chat(running, [{"role": "assistant", "content": None, "tool_calls": [call]}]).choices
    assert template.messages[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": shown}


def test_what_the_template_gets(running: Running, template: Recorded) -> None:
    more = {"documents": [{"title": "t", "text": "x"}], "chat_template_kwargs": {"enable_thinking": False}}
    messages = [{"role": "user", "content": "a"}]
    chat(running, messages, tools=[TOOL], tool_choice="none", extra_body=more)
    assert template.options == {
        "tools": [TOOL], "documents": more["documents"], "add_generation_prompt": True, "continue_final_message": False,
        "enable_thinking": False,
    }  # fmt: skip
    chat(running, messages, extra_body={"add_generation_prompt": False})
    assert template.options["add_generation_prompt"] is False and template.options["tools"] is None


@pytest.mark.parametrize(
    ("messages", "more", "message"),
    [
        (
            [{"role": "user", "content": "a"}],
            {"extra_body": {"chat_template_kwargs": {"tools": []}}},
            "chat_template_kwargs: expected other keys than tools",
        ),
        (
            [{"role": "assistant", "content": "a"}],
            {"extra_body": {"continue_final_message": True}},
            "continue_final_message: expected add_generation_prompt to be false",
        ),
    ],
)
def test_messages_that_are_refused(shared: Running, messages: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.APIStatusError, match=message):
        chat(shared, messages, **more)
