"""Answers in a form after a thought: the grammar begins where the parser finds the answer, whatever tokens spell it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from specdec_hal.config import parse
from specdec_hal.engine import AsyncEngine
from specdec_hal.models import load_tokenizer
from specdec_hal.models.chat import ChatTemplate
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities, ModelConfig
from tests.serve.conftest import ROOT, Running, served

TOKENIZER = load_tokenizer(ROOT / "models/tiny-py-lm")
CHARS = {TOKENIZER.token_bytes(token): token for token in reversed(range(TOKENIZER.vocab_size))}
LONG_END = next(data for data in sorted(CHARS) if data.startswith(b">") and data.strip() != b">" and len(data) > 1)
"""A token that holds more than the end of a marker."""
ASKED: Any = {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "max_tokens": 60, "temperature": 0}
WORDS = ["red", "green"]


class Scripted:
    """Prefers the tokens of a script after its prompt."""

    framework = "none"
    capabilities = ModelCapabilities(stable_row_counts=None)
    config = ModelConfig(
        vocab_size=TOKENIZER.vocab_size, hidden_size=1, max_position_embeddings=128, eos_token_ids=(0,),
    )  # fmt: skip
    script: tuple[int, ...] = ()

    def __init__(self, prompt: str) -> None:
        self.last = len(TOKENIZER.encode(prompt, add_special_tokens=False)) - 1

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """No cache."""

    def forward(self, batch: ForwardBatch) -> dict[int, Any]:
        hidden = np.zeros((len(batch.token_ids), 1), np.float32)
        for segment in batch.segments:
            rows = slice(segment.start, segment.start + segment.length)
            hidden[rows, 0] = np.arange(segment.position, segment.position + segment.length)
        return {FINAL_NORM: hidden}

    def compute_logits(self, hidden: Any) -> Any:
        logits = np.zeros((len(hidden), self.config.vocab_size), np.float32)
        logits[:, CHARS[b"r"]] = 1
        for row, at in enumerate(hidden[:, 0].astype(int) - self.last):
            logits[row, self.script[at] if 0 <= at < len(self.script) else 0] = 9
        return logits


def tokens_of(*parts: bytes) -> tuple[int, ...]:
    """A part of several characters is one token after ``b""``, else a token per character."""
    found, whole = list[int](), False
    for part in parts:
        found += [CHARS[part]] if whole else [CHARS[part[at : at + 1]] for at in range(len(part))]
        whole = not part
    return tuple(found)


def server(template: str, parser: str, **serve: Any) -> Any:
    config = parse(
        {
            "backend": {"name": "reference"},
            "speculative": {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False},
            "structured": {"backend": "llguidance"},
            "serve": {"port": 0, "reasoning_parser": parser, **serve},
        }
    )
    engine = AsyncEngine(Scripted(template), config, tokenizer=TOKENIZER)  # type: ignore[arg-type]
    return served(engine, "scripted", ChatTemplate(template))


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with server("c", "qwen3", tool_call_parser="hermes") as found:
        yield found


def answers(running: Running, monkeypatch: pytest.MonkeyPatch, *script: bytes, **keys: Any) -> Any:
    """The message and the reason, the same in a stream and without drafts."""
    monkeypatch.setattr(Scripted, "script", tokens_of(*script))
    found = []
    for more in ({}, {"num_speculative_tokens": 0}):
        body = {**ASKED, **keys, **more}
        answer = running.post(body, "/v1/chat/completions")
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        message = choice["message"]
        calls = [call["function"] for call in message.get("tool_calls", ())]
        said = (message.get("reasoning_content") or "", message["content"] or "", calls)
        found.append((said, choice["finish_reason"]))
        thought, content, called, reason = "", "", list[dict[str, str]](), ""
        for line in running.post({**body, "stream": True}, "/v1/chat/completions").text.splitlines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                thought += choice["delta"].get("reasoning_content") or ""
                content += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls", ()):
                    if "name" in call["function"]:
                        called.append({"name": call["function"]["name"], "arguments": ""})
                    called[-1]["arguments"] += call["function"]["arguments"]
                reason = choice["finish_reason"] or reason
        found.append(((thought, content, called), reason))
    assert found.count(found[0]) == 4, found
    return found[0]


FORM: Any = {"structured_outputs": {"choice": WORDS}}


@pytest.mark.parametrize(
    ("script", "thought"),
    [
        ([b"<think>hm</think>Nope, nope"], "hm"),
        ([b"<think>a</thinks></think></b</think>x"], "a</thinks>"),
        ([b"Nope, nope"], ""),
        ([b"<thing>Nope</think>x"], "Nope"),
        ([b"re"], ""),
    ],
    ids=["spelled", "twice", "none", "no marker", "the word"],
)
def test_the_answer_is_in_its_form(
    running: Running, monkeypatch: pytest.MonkeyPatch, script: list[bytes], thought: str
) -> None:
    """A thought that ended in ordinary tokens freed the answer from its schema, as did an answer without a thought."""
    (said, content, _), reason = answers(running, monkeypatch, *script, **FORM)
    assert content in WORDS and reason == "stop"
    assert said == thought


def test_no_token_holds_parts_of_thought_and_answer(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    script = b"<think>hm</think", b"", LONG_END, b"so</think>Nope"
    free = answers(running, monkeypatch, *script)[0]
    assert free[:2] == ("hm", LONG_END[1:].decode() + "so</think>Nope")
    (said, content, _), _ = answers(running, monkeypatch, *script, **FORM)
    assert content in WORDS and said.startswith("hm")


@pytest.mark.parametrize("form", [{"response_format": {"type": "json_object"}}, {"tool_choice": "required"}])
def test_a_thought_that_calls_is_a_thought_where_a_grammar_follows(
    running: Running, monkeypatch: pytest.MonkeyPatch, form: dict[str, Any]
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    call = b'<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    script = b"<think>" + call + b"</think>" + b'[{"name": "f", "parameters": {}}]'
    (said, content, calls), _ = answers(running, monkeypatch, script, tools=tools, max_tokens=110, **form)
    assert said == call.decode()
    if "tool_choice" in form:
        assert [one["name"] for one in calls] == ["f"] and not content
    else:
        assert not calls and content.startswith("{")


@pytest.mark.parametrize(
    ("template", "parser", "end"),
    [("c", "deepseek_r1", b"</think>"), ("<think>", "qwen3", b"</think>"), ("c", "mistral", b"[/THINK]")],
)
def test_every_parser(monkeypatch: pytest.MonkeyPatch, template: str, parser: str, end: bytes) -> None:
    """Each was refused unless model.think_end_id was set."""
    start = b"[THINK]" if parser == "mistral" else b""
    with server(template, parser) as running:
        for form in (FORM, {"response_format": {"type": "json_object"}}):
            (said, content, _), _ = answers(running, monkeypatch, start + b"hm" + end + b"Nope", **form)
            assert said == "hm" and (content in WORDS or content.startswith("{"))
        assert answers(running, monkeypatch, start + b"hm" + end + b"Nope")[0][1] == "Nope"


def test_a_thought_that_is_cut_has_no_content(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ((said, content, _), reason) = answers(running, monkeypatch, b"<think>hm hm", **FORM, max_tokens=9)
    assert (said, content, reason) == ("hm", "", "length")
