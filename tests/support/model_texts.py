"""Texts of models with tool calls and reasoning, and a server that records its requests."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_hal.engine.rendering import Renderer
from specdec_hal.models.chat import ChatTemplate
from specdec_hal.output.parsers import Call, Content, Reasoning, make_parser
from tests.support.history_model import LetterTokenizer


class Recorded(Renderer):
    """Remembers what it is rendered with. The prompt is one letter of the model's."""

    def __init__(self) -> None:
        super().__init__(ChatTemplate("c"))
        self.messages: list[Any] = []
        self.options: dict[str, Any] = {}

    async def render(self, arguments: dict[str, Any]) -> str:
        self.options = dict(arguments)
        self.messages = self.options.pop("messages")
        return await super().render(arguments)


NASTY = '{"a": "x}\\"]{", "b": [1, {"c": null}], "d": "é\\u20ac"}'


HERMES = f'<tool_call>\n{{"name": "f", "arguments": {NASTY}}}\n</tool_call>'


LLAMA = f'{{"name": "f", "parameters": {NASTY}}}'


F, G = ("f", NASTY), ("g", "{}")
FUNCTIONS = ("f", "g")


NO_CALLS = (
    '{"name": "Alice Smith", "age": 30}',
    '{"age": 30, "name": "Alice Smith"}',
    '{"name": "g", "age": 30}',
    '{"name": "g"}',
    '{"name": 5, "parameters": {}}',
    '{"name": "Alice", "parameters": {"a": [1, {"b": 2}]}}',
    '{"arguments": {"a": "}"}, "name": "Alice"}',
)


# reasoning parser, tool parser, the prompt's end, the text; thought, content, calls
CASES: list[tuple[Any, Any, str, str, str, str, list[tuple[str, str]]]] = [
    # Qwen 3, as its template has it: markers in the answer, or an empty thought in the prompt.
    ("qwen3", None, "", "<think>\nab\n</think>\n\nhi", "\nab\n", "\n\nhi", []),
    ("qwen3", None, "", "\n<think>ab", "ab", "", []),
    ("qwen3", None, "", "hi <think>ab</think>", "", "hi <think>ab</think>", []),
    ("qwen3", None, "", "a < b", "", "a < b", []),
    ("qwen3", None, "", "<thi", "", "<thi", []),
    ("qwen3", None, "<think>\n", "ab</think>hi</think>", "ab", "hi</think>", []),
    ("qwen3", None, "<think>\n\n</think>\n\n", "hi", "", "hi", []),
    # DeepSeek R1 thinks at once, whether its template has begun the thought or not.
    ("deepseek_r1", None, "", "ab</think>hi", "ab", "hi", []),
    ("deepseek_r1", None, "<think>\n", "ab</think>hi", "ab", "hi", []),
    ("deepseek_r1", None, "", "<think>ab</thi", "ab</thi", "", []),
    ("deepseek_r1", None, "<think></think>", "hi", "", "hi", []),
    ("mistral", "mistral", "", '[THINK]ab[/THINK]hi[TOOL_CALLS]g[ARGS]{}', "ab", "hi", [G]),
    # Hermes
    (None, "hermes", "", f"Let me see.\n{HERMES}\n{HERMES}", "", "Let me see.", [F, F]),
    # A call ends a thought, as in vLLM; but not DeepSeek's.
    ("qwen3", "hermes", "", f"<think>{HERMES}</think>\n\n{HERMES}", "", "", [F, F]),
    ("qwen3", "hermes", "<think>\n", f"ab\n{HERMES}\n</think>", "ab\n", "", [F]),
    ("qwen3", "hermes", "<think>\n", f"ab{HERMES}</think>hi", "ab", "hi", [F]),
    ("qwen3", None, "<think>\n", "ab<tool_call></think>hi", "ab", "<tool_call></think>hi", []),
    ("mistral", "mistral", "", "[THINK]ab[TOOL_CALLS]g[ARGS]{}", "ab", "", [G]),
    ("deepseek_r1", "hermes", "", f"{HERMES}</think>{HERMES}", HERMES, "", [F]),
    (None, "hermes", "", '<tool_call>{"arguments": {}, "name": "g"}</tool_call>', "", "", [G]),
    (None, "hermes", "", '<tool_call>{"name": "g", "arguments": {}}</tool_call> a</tool_call>', "",
     " a</tool_call>", [G]),
    (None, "hermes", "", '<tool_call> { "name" : "g" , "arguments" : {} } </tool_call>', "", "", [G]),
    (None, "hermes", "", '<tool_call>{"name": "g", "arguments": {"a":', "", "", [("g", '{"a":')]),
    (None, "hermes", "", "a < b <tool_cal", "", "a < b <tool_cal", []),
    (None, "hermes", "", " \n", "", " \n", []),
    (None, "hermes", "", "<tool_call>what?</tool_call>", "", "<tool_call>what?</tool_call>", []),
    (None, "hermes", "", '<tool_call>{"nam": "g"}</tool_call>', "", '<tool_call>{"nam": "g"}</tool_call>', []),
    (None, "hermes", "", '<tool_call>{"name": "g', "", '<tool_call>{"name": "g', []),
    # Llama 3
    (None, "llama3_json", "", f'{LLAMA}; {{"name": "g", "parameters": {{}}}}', "", "", [F, G]),
    (None, "llama3_json", "", '<|python_tag|>{"name": "g", "parameters": {}}', "", "", [G]),
    (None, "llama3_json", "", 'So: {"name": "g", "parameters": {}}', "", 'So: {"name": "g", "parameters": {}}', []),
    (None, "llama3_json", "", '{"a": 1}', "", '{"a": 1}', []),
    (None, "llama3_json", "", "<|python_tag|>print(1)", "", "<|python_tag|>print(1)", []),
    (None, "llama3_json", "", '{"parameters": {}, "name": "g"}', "", "", [G]),
    (None, "llama3_json", "", '{"name": "g", "parameters": {}, "name": "h"}', "", "", [G]),
    # Mistral, to version 7 of its tokenizer and from 11 on
    (None, "mistral", "", f'[TOOL_CALLS][{HERMES[12:-13]}, {{"name": "g", "arguments": {{}}}}]', "", "", [F, G]),
    (None, "mistral", "", f"ok [TOOL_CALLS]f{NASTY}[TOOL_CALLS]g{{}}", "", "ok", [F, G]),
    (None, "mistral", "", f"[TOOL_CALLS]f[CALL_ID]a1[ARGS]{NASTY}[TOOL_CALLS]g[ARGS]{{}}", "", "", [F, G]),
    (None, "mistral", "", "[TOOL_CALLS] what?", "", "[TOOL_CALLS] what?", []),
    (None, "mistral", "", "[TOOL_CALLS] what? [TOOL_CALLS]g{}", "", "[TOOL_CALLS] what?", [G]),
    (None, "mistral", "", "[x] y", "", "[x] y", []),
    # JSON that is no call of these functions, or has no arguments
    *(
        (None, tools, "", text, "", text, [])
        for tools, begin, end in (
            ("llama3_json", "", ""), ("llama3_json", "<|python_tag|>", ""), ("hermes", "<tool_call>", "</tool_call>"),
            ("mistral", "[TOOL_CALLS]", ""), ("mistral", "[TOOL_CALLS][", "]"),
        )
        for text in (begin + said + end for said in NO_CALLS)
    ),
    (None, "mistral", "", "[TOOL_CALLS]Alice[ARGS]{}", "", "[TOOL_CALLS]Alice[ARGS]{}", []),
    (None, "hermes", "", f"{HERMES}<tool_call>{NO_CALLS[0]}</tool_call>{HERMES}", "",
     f"<tool_call>{NO_CALLS[0]}</tool_call>", [F, F]),
]  # fmt: skip


def parts(reasoning: Any, tools: Any, prompt: str, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    parser = make_parser(reasoning, tools, prompt, functions=FUNCTIONS)
    said, calls = {Content: "", Reasoning: ""}, dict[int, list[str]]()
    for one in [part for piece in pieces for part in parser.push(piece)] + list(parser.finish()):
        if not isinstance(one, Call):
            assert one.text
            said[type(one)] += one.text
        elif one.name is None:
            calls[one.number][1] += one.arguments
        else:
            assert one.number == len(calls) and one.id
            calls[one.number] = [one.name, one.arguments]
    return said[Reasoning], said[Content], [(name, arguments) for name, arguments in calls.values()]


END = "\0"


class Script:
    """Text for any tokens, two characters each."""

    text = ""

    def __init__(self) -> None:
        self.at = 0

    def push(self, token_id: int) -> str:
        self.at += 2
        return self.text[self.at - 2 : self.at]

    def finish(self) -> str:
        return ""


def script(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(Script, "text", text + END)
    monkeypatch.setattr(LetterTokenizer, "detokenizer", lambda *prompt, **options: Script())
