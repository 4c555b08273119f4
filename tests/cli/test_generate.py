"""The command `generate`, on a model whose every token is known."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from specdec_hal.cli import main
from specdec_hal.engine.progress import progress_bar

Model = Callable[..., SimpleNamespace]
Capture = pytest.CaptureFixture[str]


def test_text_and_metrics(model: Model, capsys: Capture) -> None:
    assert main(["generate", *model().ngram, "--prompt", "xa", "--max-new-tokens", "33"]) == 0
    out = capsys.readouterr().out
    text, metrics = out.split("\n", 1)
    assert text == "bcdefghij" + "abcdefghij" * 2 + "abcd"
    cells = (line.strip().split("  ") for line in metrics.splitlines() if line.strip())
    rows = {first.strip(): rest[-1].strip() for first, *rest in cells if rest}
    assert rows["generated tokens"] == "33"
    assert float(rows["tokens per request and decode step"]) > 1.5
    assert int(rows["steps of the batch, with prefill"]) < 33 / 1.5
    assert rows["steps by method"] == f"ngram {rows['steps of the batch, with prefill']}"
    assert "Metrics, backend reference" in out
    assert float(rows["acceptance rate"]) > 0.5
    accepted = int(rows["draft tokens accepted"].split(" of ")[0])
    assert rows["mean acceptance length"] == f"{1 + accepted / int(rows['drafts']):.2f}"


def test_a_method_is_chosen_unless_one_is_named(model: Model, capsys: Capture) -> None:
    options = ["--prompt", "a", "--max-new-tokens", "20", "--json"]
    four = ("--set", "speculative.num_speculative_tokens=4")
    for given, method in ((model().auto, "ngram"), ((*model().naive, *four), "naive")):
        assert main(["generate", *given, *options]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["method"] == method and document["requests"][0]["text"] == "bcdefghija" * 2
        assert (document["metrics"]["num_drafts"] > 0) == (method == "ngram")


def test_json(model: Model, capsys: Capture) -> None:
    options = [*model().ngram, "--prompt", "a", "--prompt", "cde", "--max-new-tokens", "30"]
    assert main(["generate", *options, "--set", "sampling.logprobs=1", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert captured.err == ""
    assert (document["backend"], document["method"]) == ("reference", "ngram")
    first, second = document["requests"]
    assert (first["name"], second["name"]) == ("prompt", "prompt #2")
    assert first["prompt_tokens"] == 1
    assert first["text"] == ("bcdefghija" * 3)
    assert second["text"] == ("fghijabcde" * 3)
    assert first["finish_reason"] == "length"
    assert [chr(token) for token in first["token_ids"]] == list(first["text"])
    assert len(first["accepted_draft"]) == 30
    assert any(first["accepted_draft"])
    assert not first["accepted_draft"][0]
    assert len(first["logprobs"]) == 30
    assert first["logprobs"][0]["rank"] == 1
    assert document["metrics"]["emitted_tokens"] == 60
    assert document["tokens_per_second"] > 0


def test_text_alone(model: Model, capsys: Capture) -> None:
    options = [*model().ngram, "--prompt", "a", "--max-new-tokens", "5", "--no-metrics"]
    assert main(["generate", *options]) == 0
    assert capsys.readouterr().out == "bcdef\n"
    assert main(["generate", *options, "--echo"]) == 0
    assert capsys.readouterr().out == "abcdef\n"


def test_prompts_print_in_order_however_they_finish(model: Model, capsys: Capture) -> None:
    """The second prompt ends first: its stop string comes at once."""
    options = [*model().ngram, "--prompt", "a", "--prompt", "e", "--no-metrics", "--set", "sampling.stop=[gh]"]
    assert main(["generate", *options]) == 0
    assert capsys.readouterr().out == "=== prompt\nbcdef\n=== prompt #2\nf\n"


def test_accepted_drafts_are_highlighted_on_a_terminal(
    model: Model, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*model().ngram, "--prompt", "a", "--max-new-tokens", "30"]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert main(["generate", *options]) == 0
    out = capsys.readouterr().out
    assert out.startswith("bcdefghij")
    assert "\x1b[1;32m" in out.split("Metrics")[0]
    assert "green: accepted draft tokens" in out


def test_markup_in_the_text_is_text(model: Model, capsys: Capture) -> None:
    assert main(["generate", *model().naive, "--prompt", "[bold]:smile: 12", "--echo", "--no-metrics"]) == 0
    assert capsys.readouterr().out.startswith("[bold]:smile: 12abc")


class TestPrompts:
    def test_file_and_text_in_the_order_given(self, model: Model, capsys: Capture, tmp_path: Path) -> None:
        (tmp_path / "p.txt").write_text("hi")
        file = str(tmp_path / "p.txt")
        options = [*model().naive, "--max-new-tokens", "2", "--json"]
        assert main(["generate", *options, "--prompt", "a", "--prompt-file", file, "--prompt-file", file]) == 0
        requests = json.loads(capsys.readouterr().out)["requests"]
        assert [(request["name"], request["text"]) for request in requests] == [
            ("prompt", "bc"),
            (file, "ja"),
            (f"{file} #2", "ja"),
        ]

    @pytest.mark.parametrize("options", [[], ["--prompt-file", "-"]])
    def test_stdin(self, model: Model, capsys: Capture, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xc3\xa9b")))
        assert main(["generate", *model().naive, "--max-new-tokens", "2", "--no-metrics", *options]) == 0
        assert capsys.readouterr().out == "cd\n"

    @pytest.mark.parametrize(
        ("content", "prompt"), [(b"ab\n", "ab"), (b"ab\r\n", "ab"), (b"ab\n\n", "ab\n"), (b"\na ", "\na ")]
    )
    def test_one_line_break_at_the_end_of_a_file_is_not_part_of_it(
        self, model: Model, capsys: Capture, tmp_path: Path, content: bytes, prompt: str
    ) -> None:
        (tmp_path / "p.txt").write_bytes(content)
        options = ["--prompt-file", str(tmp_path / "p.txt"), "--max-new-tokens", "1", "--echo", "--no-metrics"]
        assert main(["generate", *model().naive, *options]) == 0
        assert capsys.readouterr().out[: len(prompt) + 1] == prompt + ("c" if prompt == "ab" else "a")

    def test_none_at_a_terminal(self, model: Model, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
        assert main(["generate", *model().naive]) == 2
        assert capsys.readouterr().err.startswith("specdec-hal: no prompt: give --prompt TEXT")


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--prompt", ""], "request 'prompt': empty prompt"),
            (["--prompt", "a" * 200], "request 'prompt': prompt of 200 tokens leaves no room in a context of 128"),
            (["--prompt", "a", "--max-new-tokens", "0"], "--set:sampling.max_new_tokens: expected an integer in 1.."),
            (["--prompt", "a", "--max-new-tokens", "x"], "--set:sampling.max_new_tokens: expected an integer in 1.."),
            (["--prompt", "a", "--set", "speculative.method=ngarm"], "--set:speculative.method: unknown speculative"),
            (["--prompt", "a", "--set", "backend.name=referense"], "--set:backend.name: unknown backend 'referense'"),
            (["--prompt", "a", "--set", "runner.max_model_len=999"], "--set:runner.max_model_len: expected 1..128"),
            (["--prompt", "a", "--set", "model.path=nowhere"], "--set:model.path: no such folder"),
            (["--prompt", "a", "--model", "no: where"], "--set:model.path: no such folder: "),
            (["--prompt", "a", "--model", "org/name"], "--set:model.path: no such folder: "),
            (["--prompt", "a", "--config", "nowhere.yaml"], "nowhere.yaml: cannot be read: No such file"),
            (["--prompt-file", "nowhere.txt"], "--prompt-file nowhere.txt: cannot be read: No such file"),
            (["--prompt-file", "/"], "--prompt-file /: cannot be read: Is a directory"),
        ],
    )
    def test_one_line_and_status_2(self, model: Model, capsys: Capture, options: list[str], message: str) -> None:
        assert main(["generate", *model().naive, *options, *["--json"][: len(message) % 2]]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"specdec-hal: {message}")
        assert captured.err.count("\n") == 1


def test_no_model(capsys: Capture) -> None:
    """The remedy is that of the command line."""
    assert main(["generate", "--set", "backend.name=reference", "--prompt", "a"]) == 2
    message = (
        "defaults:model.path: no model is configured; pass a checkpoint's folder, or its name on a hub: --model MODEL\n"
    )
    assert capsys.readouterr().err == f"specdec-hal: {message}"


def test_model_is_an_option(capsys: Capture) -> None:
    given = ["--set", "backend.name=reference", "--prompt", "def f", "--max-new-tokens", "3", "--json"]
    model = str(Path(__file__).parents[2] / "models/tiny-py-lm")
    assert main(["generate", "--model", model, *given]) == 0
    (request,) = json.loads(capsys.readouterr().out)["requests"]
    assert len(request["token_ids"]) == 3


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_request_that_fails_gives_status_1(model: Model, capsys: Capture, json_flag: list[str]) -> None:
    assert main(["generate", *model(broken=True).naive, "--prompt", "a", *json_flag]) == 1
    out = capsys.readouterr().out
    assert "the model gave no distribution" in out
    if json_flag:
        assert json.loads(out)["requests"][0]["finish_reason"] == "error"


def test_progress_bar_goes_to_a_terminal_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("generating", 10, "tokens") as progress:
        progress(advance=10)
    assert "generating" in terminal.getvalue()
    assert "10/10" in terminal.getvalue()
    with progress_bar("hidden", 10, "tokens", visible=False) as progress:
        progress(advance=3)
    assert "hidden" not in terminal.getvalue()
