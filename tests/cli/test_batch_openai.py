"""The command `batch` on OpenAI's batch lines: their answers in OpenAI's form, the same bytes in every run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.cli.conftest import CharDetokenizer
from tests.support.batch import Capture, Model, batch, rows_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def line(custom_id: Any, body: Any, url: str = COMPLETIONS, **more: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}


def chat(custom_id: str, text: str, **body: Any) -> dict[str, Any]:
    return line(custom_id, {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **body}, CHAT)


SAMPLED = {"prompt": "xa", "temperature": 3.0, "max_tokens": 30}
LINES = [
    line("c", {"prompt": "a", "max_tokens": 5}),
    {"id": "own", "prompt": "a", "params": {"max_new_tokens": 5}},
    chat("chat", "abc", n=2),
    line("s", SAMPLED),
    line("t", {**SAMPLED, "return_spans": True, "return_token_ids": True, "return_drafts": True}),
    line("seed", {**SAMPLED, "seed": 3}),
    line("two", {"prompt": ["b", "c"], "n": 2, "max_tokens": 3, "logprobs": 2, "stop": ["f"]}),
]


@pytest.fixture
def template(tmp_path: Path) -> None:
    """The model's folder has a chat template."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


def write(path: Path, lines: list[Any]) -> Path:
    source = path / "lines.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return source


@pytest.mark.usefixtures("template")
def test_answers(model: Model, tmp_path: Path, capsys: Capture) -> None:
    assert batch(model().ngram, write(tmp_path, LINES), tmp_path / "out", "--json") == 0
    (counts,) = json.loads(capsys.readouterr().out)["replicas"].values()
    assert (counts["rows"], counts["failed"], counts["choices"]) == (7, 0, 11)
    rows = rows_of(tmp_path / "out")
    own = rows.pop(1)
    assert (own["row"], own["id"], own["text"]) == (1, "own", "bcdef")
    assert [row["custom_id"] for row in rows] == ["c", "chat", "s", "t", "seed", "two"]
    assert [row["id"] for row in rows] == [f"batch_req-{number}" for number in (0, 2, 3, 4, 5, 6)]
    assert all(row.keys() == {"id", "custom_id", "response", "error"} and row["error"] is None for row in rows)
    assert [row["response"]["request_id"] for row in rows[:2]] == ["req-0", "req-2"]
    assert {row["response"]["status_code"] for row in rows} == {200}
    bodies = [row["response"]["body"] for row in rows]
    chat_body = ChatCompletion.model_validate(bodies.pop(1))
    assert (chat_body.id, chat_body.created, chat_body.model) == ("chatcmpl-2", 0, tmp_path.name)
    assert [choice.message.content for choice in chat_body.choices] == ["defg", "defg"]
    assert chat_body.usage is not None and chat_body.usage.completion_tokens == 8
    first, one, other, seeded, two = map(Completion.model_validate, bodies)
    assert (first.id, first.created, first.object) == ("cmpl-0", 0, "text_completion")
    assert (first.choices[0].text, first.choices[0].finish_reason) == ("bcdef", "length")
    assert one.choices[0].text != other.choices[0].text, "equal prompts have seeds of their own"
    assert one.choices[0].text == seeded.choices[0].text, "row 3 had the seed 3"
    assert [choice.text for choice in two.choices] == ["cde", "cde", "de", "de"]
    assert counts["tokens"] == own["prompt_tokens"] * 5 + sum(body["usage"]["completion_tokens"] for body in bodies) + 8


@pytest.mark.usefixtures("template")
def test_calls_have_the_same_ids_in_every_run(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    monkeypatch.setattr(CharDetokenizer, "push", lambda self, token: call if token == ord("b") else "")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    lines = [chat("one", "a", tools=tools, n=2), chat("two", "a", tools=tools)]
    options = (*model().ngram, "--set", "serve.tool_call_parser=hermes")
    for out in ("1", "2"):
        assert batch(options, write(tmp_path, lines), tmp_path / out, "--block-size", out) == 0
    assert (tmp_path / "1" / "results.jsonl").read_bytes() == (tmp_path / "2" / "results.jsonl").read_bytes()
    bodies = [ChatCompletion.model_validate(row["response"]["body"]) for row in rows_of(tmp_path / "1")]
    ids = [calls[0].id for body in bodies for choice in body.choices if (calls := choice.message.tool_calls)]
    assert len(set(ids)) == 3


TEXT = [{"role": "user", "content": "a"}]
BAD: list[tuple[dict[str, Any], str, str]] = [
    (line("x", {"prompt": "a", "stream": True}), "invalid_request_error", "stream: expected false in a batch"),
    (line("x", {"prompt": "a"}, "/v1/embeddings"), "invalid_request_error", "url: expected '/v1/completions', "),
    (line("x", {"prompt": "a"}, method="GET"), "invalid_request_error", "method: expected 'POST', got 'GET'"),
    (line("x", {"prompt": "a"}, more=1), "invalid_request_error", "more: unknown key"),
    (line("x", ["a"]), "invalid_request_error", "body: "),
    (line("x", {"prompt": "a", "model": "gpt-4o"}), "not_found_error", "model: expected "),
    (line("x", {"prompt": "a", "best_of": 2}), "invalid_request_error", "best_of: expected 1"),
    (line("x", {"prompt": "a", "\ud800": 2}), "invalid_request_error", "unable to parse raw data as a unicode string"),
    (line("x", {"prompt": "a", "temperature": -1}), "invalid_request_error", "temperature"),
    (line("x", {"prompt": [999]}), "invalid_request_error", "999"),
    (line("x", {"prompt": ["a", ""], "n": 2}), "invalid_request_error", "at least"),
    (line("x", {"max_tokens": 1}), "invalid_request_error", "prompt: "),
    (line("x", {"messages": TEXT}, CHAT), "invalid_request_error", "has no chat template"),
    (line("x", {"messages": TEXT, "tools": [{"type": "function", "function": {"name": "f"}}]}, CHAT),
     "invalid_request_error", "tool_choice: expected 'none' with tools"),
    ({"custom_id": "x", "url": COMPLETIONS, "body": {"prompt": "a"}}, "invalid_request_error", "method: "),
]  # fmt: skip


def test_bad_rows_are_answered_with_errors(model: Model, tmp_path: Path) -> None:
    lines = [
        *({**one, "custom_id": f"x{at}"} for at, (one, _, _) in enumerate(BAD)),
        line(7, {"prompt": "a"}),
        line("\ud800", {"prompt": "a"}),
    ]
    source = write(tmp_path, [*lines, line("good", {"prompt": "a", "max_tokens": 2})])
    assert batch(model().naive, source, tmp_path / "out", "--block-size", "4") == 1
    *failed, good = rows_of(tmp_path / "out")
    assert good["response"]["body"]["choices"][0]["text"] == "bc"
    for number, row in enumerate(failed):
        assert (row["id"], row["response"]) == (f"batch_req-{number}", None)
        assert row["error"].keys() == {"code", "message"}
    for at, (row, (_, code, message)) in enumerate(zip(failed, BAD, strict=False)):
        assert (row["custom_id"], row["error"]["code"]) == (f"x{at}", code)
        assert message in row["error"]["message"]
    assert [row["custom_id"] for row in failed[len(BAD) :]] == [None, None]
    assert all("custom_id: " in row["error"]["message"] for row in failed[len(BAD) :])


def test_equal_ids_are_refused_before_work_begins(model: Model, tmp_path: Path, capsys: Capture) -> None:
    source = write(tmp_path, [line(name, {"prompt": "a", "max_tokens": 2}) for name in (7, "a", 7, "b", "a")])
    assert batch(model().ngram, source, tmp_path / "out", "--block-size", "1") == 2
    assert "row 4: custom_id: expected another one than that of row 1, got 'a' again" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("template")
def test_responses(model: Model, tmp_path: Path) -> None:
    """As the server answers them, and with the same ids in every run."""
    lines = [line(str(at), {"input": "abc", "max_output_tokens": 4}, "/v1/responses") for at in range(2)]
    bad = {"input": "abc", "stream": True}
    for out in ("1", "2"):
        source = write(tmp_path, [*lines, line("bad", bad, "/v1/responses")])
        assert batch(model().ngram, source, tmp_path / out, "--block-size", out) == 1
    assert (tmp_path / "1" / "results.jsonl").read_bytes() == (tmp_path / "2" / "results.jsonl").read_bytes()
    *rows, refused = rows_of(tmp_path / "1")
    found = [Response.model_validate(row["response"]["body"]) for row in rows]
    assert [(one.id, one.created_at, one.output_text) for one in found] == [
        ("resp-0", 0, "defg"),
        ("resp-1", 0, "defg"),
    ]
    assert found[0].output[0].id != found[1].output[0].id
    assert found[0].usage is not None and found[0].usage.output_tokens == 4
    assert refused["error"]["message"].startswith("stream: expected false in a batch")


def test_a_row_that_the_engine_cannot_end(model: Model, tmp_path: Path) -> None:
    source = write(tmp_path, [line("x", {"prompt": "a", "n": 2})])
    assert batch(model(broken=True).naive, source, tmp_path / "out") == 1
    (row,) = rows_of(tmp_path / "out")
    assert (row["custom_id"], row["response"], row["error"]["code"]) == ("x", None, "server_error")
    assert row["error"]["message"]


def test_what_they_need_is_looked_for_before_work_begins(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    source, out = write(tmp_path, [{"prompt": "a"}, LINES[0]]), tmp_path / "out"
    monkeypatch.setitem(sys.modules, "specdec_hal.batch.openai_rows", None)
    assert batch(model().naive, source, out) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "row 1: OpenAI's batch lines need" in message and "specdec-hal[serve]" in message
    assert not out.exists()


def test_they_are_no_columns(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("specdec_hal.batch.results.check_format", lambda kind: None)  # without pyarrow
    source, out = write(tmp_path, [{"prompt": "a"}, LINES[0]]), tmp_path / "out"
    assert batch(model().naive, source, out, "--format", "parquet") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "--format parquet" in message and "OpenAI's batch lines in row 1; use --format jsonl" in message
    assert not out.exists()
