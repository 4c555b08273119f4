"""What vLLM's server takes and gives against what this one does. Run by `make engine-test`, which installs vLLM."""

from __future__ import annotations

import json
import re
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest

from specdec_hal.config.schema import UnicodeText  # noqa: F401  (before vLLM, whose logging would swallow a failure)
from specdec_hal.runner.bad_words import bad_sequences
from specdec_hal.serve import protocol
from specdec_hal.serve.responses import ResponsesRequest
from tests.compat.conftest import MODEL, ROOT
from tests.support.model_texts import CASES, parts

pytestmark = pytest.mark.engine
ENTRYPOINTS = "vllm.entrypoints"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>"]
MARKERS += ["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[CALL_ID]"]


def tokenizer(*markers: str) -> Any:
    from transformers import AddedToken, PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))
    made.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in markers])
    return made


@pytest.mark.parametrize(
    ("module", "name", "ours", "least"),
    [
        ("openai.completion", "CompletionRequest", protocol.CompletionRequest, {"prompt": "a"}),
        ("openai.chat_completion", "ChatCompletionRequest", protocol.ChatCompletionRequest, CHAT),
        ("openai.responses", "ResponsesRequest", ResponsesRequest, {"input": "a"}),
        ("serve.tokenize", "TokenizeCompletionRequest", protocol.TokenizeRequest, {"prompt": "a"}),
        ("serve.tokenize", "TokenizeChatRequest", protocol.TokenizeRequest, CHAT),
        ("serve.tokenize", "DetokenizeRequest", protocol.DetokenizeRequest, {"tokens": [1]}),
    ],
)
def test_every_key_is_documented_and_its_default_served(
    module: str, name: str, ours: Any, least: dict[str, Any]
) -> None:
    theirs = getattr(import_module(f"{ENTRYPOINTS}.{module}.protocol"), name)
    document = (ROOT / "docs/serving.md").read_text()
    assert [key for key in theirs.model_fields if f"`{key}`" not in document] == []
    ours(**json.loads(theirs(**least).model_dump_json(warnings=False)))


def test_bad_words_are_spelled_as_there() -> None:
    from vllm import SamplingParams

    used = tokenizer()
    used.max_token_id = len(used) - 1
    words = ["def", " def", "  return x", "é", "a b", "self.", "0", "_x"]
    theirs = SamplingParams(bad_words=words)
    theirs.update_from_tokenizer(used)
    assert list(bad_sequences(words, lambda text: used.encode(text, add_special_tokens=False))) == (
        theirs.bad_words_token_ids
    )


def vllms(case: Any, tokens_each: int | None) -> tuple[str, str, list[tuple[str, str]]]:
    """Thought, content and calls that vLLM finds, in so many tokens at once; None: in the whole text."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    reasoning, tools, prompt, text, *_ = case
    arguments = ["[ARGS]"] if "[ARGS]" in text or "]f{" in text else []  # which distinguishes Mistral's versions
    used = tokenizer(*MARKERS, *arguments)
    made = ParserManager.get_parser(tools, reasoning, enable_auto_tools=True, tokenizer=used)
    functions = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "fg"]
    request = ChatCompletionRequest(**CHAT, model="m", tools=functions, tool_choice="auto")
    parser, ids = made(used, request.tools), used.encode(text)
    if tokens_each is None:
        thought, content, found = parser.parse(text, request, enable_auto_tools=True, model_output_token_ids=ids)
        return thought or "", content or "", [(call.name, call.arguments) for call in found or ()]
    said, calls, shown = {"reasoning": "", "content": ""}, list[list[str]](), ""
    for begin, end in pairwise([*range(0, len(ids), tokens_each), len(ids)]):
        whole = used.decode(ids[:end]).rstrip("\ufffd")
        delta = parser.parse_delta(
            whole[len(shown) :], ids[begin:end], request, used.encode(prompt), finished=end == len(ids)
        )
        shown = whole
        for key in said if delta else ():
            said[key] += getattr(delta, key) or ""
        for call in (delta and delta.tool_calls) or ():
            if call.function.name:
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments or ""
    return *said.values(), [(name, arguments) for name, arguments in calls]  # type: ignore[return-value]


def settled(found: tuple[str, str, list[tuple[str, str]]]) -> Any:
    """Without white space around texts, and how JSON is written."""
    thought, content, calls = found
    return thought.strip(), content.strip(), [(name, plain(arguments or "{}")) for name, arguments in calls]


def plain(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


OWN = {
    r"^(hi <think>ab</think>|a < b|<thi)$": "begins without a thought, and vLLM calls all of it one",
    r"\[CALL_ID\]": "an id of a call, which vLLM takes for a part of the name",
    r"</tool_call>(</think>hi| bye)$": "content after a call, which vLLM drops",
    r"^\[TOOL_CALLS\] what\?$": "no call, of which vLLM makes one or drops it",
}
"""Texts where this project's answer is another than vLLM's."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0] or case[1]}-{case[3][:24]!r}")
def test_parsers_find_the_same_parts(case: Any) -> None:
    """In one piece or in some stream, where vLLM's own answer depends on that."""
    ours = settled(parts(*case[:3], [case[3]]))
    theirs = [settled(vllms(case, tokens)) for tokens in (None, 1, 3, 1000)]
    assert (ours in theirs) is not any(re.search(one, case[3]) for one in OWN), (ours, theirs)
