"""The command `chat`, on a model whose every token is known: after each letter comes the next one."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from specdec_hal.cli import main
from specdec_hal.engine import rendering

Model = Callable[..., SimpleNamespace]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def template(tmp_path: Path) -> str:
    """Shows every message's content."""
    file = tmp_path / "template.jinja"
    file.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    return str(file)


def chat(monkeypatch: pytest.MonkeyPatch, text: str, *options: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return main(["chat", *options, "--max-new-tokens", "12"])


def test_a_turn_sees_the_turns_before_it(
    model: Model, template: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    options = ("--chat-template", template, "--system", "x", "--json")
    assert chat(monkeypatch, "a\n\n  c \n/clear\ne\n", *model().ngram, *options) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["messages"] == [
        {"role": "system", "content": "x"},
        {"role": "user", "content": "e"},
        {"role": "assistant", "content": "fghijabcdefg"},
    ]
    # x a, then x a and its answer and c, then x e
    assert [answer["prompt_tokens"] for answer in document["answers"]] == [2, 2 + 12 + 1, 2]
    assert all(answer["finish_reason"] == "length" for answer in document["answers"])
    assert document["answers"][1]["accepted_tokens"] > 0
    assert all(answer["seed"] is None for answer in document["answers"]), "nothing was sampled"


def test_a_template_that_never_ends(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(rendering, "Renderer", partial(rendering.Renderer, render_s=1.0))
    file = tmp_path / "loop.jinja"
    file.write_text("{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3)
    assert chat(monkeypatch, "a\n", *model().naive, "--chat-template", str(file)) == 2
    assert "rendering the chat template has taken more than 1 s" in capsys.readouterr().err


def test_answers_stream_as_text(model: Model, template: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert chat(monkeypatch, "a\n/exit\nb\n", *model().naive, "--chat-template", template) == 0
    out = capsys.readouterr().out
    assert out == "bcdefghijabc\n0 of 0 draft tokens accepted\n\n"


def test_an_answer_that_fails_is_not_part_of_the_chat(
    model: Model, template: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert chat(monkeypatch, "a\n", *model(broken=True).naive, "--chat-template", template, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["messages"] == []
    assert document["answers"][0]["finish_reason"] == "error" and "NaN" in document["answers"][0]["error"]


def test_a_model_without_a_template_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert chat(monkeypatch, "a\n", *model().naive) == 2
    assert "has no chat template; give a Jinja file" in capsys.readouterr().err
