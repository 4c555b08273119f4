"""The command `compare`: identical tokens, figures, and what happens if a model breaks its promise."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec_hal.bench.pooled import pooled
from specdec_hal.cli import decoding, main
from specdec_hal.cli.decoding import Run
from specdec_hal.runner import ModelRunner

Model = Callable[..., SimpleNamespace]
Capture = pytest.CaptureFixture[str]
PROMPTS = ("--prompt", "a", "--prompt", "cde", "--max-new-tokens", "40")


def compare(capsys: Capture, *options: str, status: int = 0) -> Any:
    assert main(["compare", *options, "--json"]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_the_method_that_was_chosen_is_named(model: Model, capsys: Capture) -> None:
    fixed = ("--set", "speculative.adaptive=false")  # on a busy machine adaptive lengths may be 0
    document = compare(capsys, *model().auto, *PROMPTS, "--repeat", "1", *fixed)
    assert (document["identical"], document["method"]) == (True, "ngram")
    assert document["spec"]["accepted_tokens"] > 0 == document["naive"]["num_drafts"]


def test_both_sides_are_sampled_with_the_same_drawn_seeds(model: Model, capsys: Capture) -> None:
    sampling = ("--set", "sampling.temperature=3", "--repeat", "1")
    document = compare(capsys, *model().ngram, *PROMPTS, *sampling)
    assert document["identical"] is True and len(set(document["seeds"])) == 2
    rows = compare(capsys, *model().ngram, *PROMPTS, *sampling, "--method", "ngram")["rows"]
    assert [row["method"] for row in rows] == ["naive", "ngram"] * 2
    assert rows[0]["seed"] == rows[1]["seed"] != rows[2]["seed"] == rows[3]["seed"]


@pytest.mark.parametrize("sampling", [[], ["--set", "sampling.temperature=0.8", "--set", "sampling.seed=7"]])
def test_identical(model: Model, capsys: Capture, sampling: list[str]) -> None:
    document = compare(capsys, *model().ngram, *PROMPTS, *sampling, "--repeat", "2")
    assert document["identical"] is True
    assert document["differences"] == []
    assert document["speedup"] > 0
    assert (document["backend"], document["method"], document["repeat"]) == ("reference", "ngram", 2)
    assert document["seeds"] == ([7, 7] if sampling else [None, None])
    naive, spec = document["naive"], document["spec"]
    assert naive["tokens"] == spec["tokens"] == 80
    assert naive["tokens_per_step"] == 1
    assert naive["drafted_tokens"] == 0
    assert spec["tokens_per_step"] > 1
    assert spec["accepted_tokens"] > 0
    assert len(naive["all_seconds"]) == 2
    assert spec["steps"] < naive["steps"]
    assert document["speedup"] == pytest.approx(naive["seconds"] / spec["seconds"])


def test_text(model: Model, capsys: Capture) -> None:
    assert main(["compare", *model().ngram, *PROMPTS, "--repeat", "1"]) == 0
    out = capsys.readouterr().out
    assert "identical tokens" in out
    assert "speed-up: " in out
    (row,) = (line for line in out.splitlines() if "tokens per request and decode step" in line)
    assert row.split()[-2] == "1.00"
    assert float(row.split()[-1]) > 1


def test_a_model_that_breaks_its_promise_is_caught(model: Model, capsys: Capture) -> None:
    options = [*model(cheat=True).ngram, *PROMPTS, "--repeat", "1"]
    document = compare(capsys, *options, status=1)
    assert document["identical"] is False
    first = document["differences"][0]
    assert (first["prompt"], first["run"]) == ("prompt", "spec 1")
    assert first["expected"] != first["got"]
    assert main(["compare", *options]) == 1
    out = capsys.readouterr().out
    assert "TOKENS DIFFER" in out
    assert f"prompt: run spec 1 differs at token {first['position']}: expected {first['expected']}" in out


def test_padded_drafts_and_the_end_of_the_context(model: Model, capsys: Capture) -> None:
    """Padded drafts take head-room off the context; the plain side gets no more of it."""
    padded = ["--set", "speculative.ngram.pad_to_max=true"]
    document = compare(capsys, *model().ngram, *padded, "--prompt", "a", "--max-new-tokens", "500", "--repeat", "1")
    assert document["identical"] is True
    assert document["naive"]["tokens"] == 128 - 5 - 1


@pytest.mark.parametrize("value", ["0", "-1", "x"])
def test_bad_repeat(model: Model, capsys: Capture, value: str) -> None:
    assert main(["compare", *model().naive, *PROMPTS, "--repeat", value]) == 2
    assert f"argument --repeat: expected an integer >= 1, got {value};" in capsys.readouterr().err


def test_methods(model: Model, capsys: Capture) -> None:
    options = ("--method", "ngram,suffix,naive", "--repeat", "1")
    document = compare(capsys, *model().ngram, *PROMPTS, *options)
    assert document["identical"] is True
    rows = {(row["prompt"], row["method"]): row for row in document["rows"]}
    methods = ("naive", "ngram", "suffix")
    assert list(rows) == [(prompt, method) for prompt in ("prompt", "prompt #2") for method in methods]
    for (_, method), row in rows.items():
        assert row["tokens"] == 40
        assert (row["tokens_per_step"] > 1) == (row["accepted_tokens"] > 0) == (method != "naive")
        assert bool(row["acceptance_by_position"]) == (method != "naive") == (row["mean_acceptance_length"] is not None)
        assert row["speedup"] > 0


def test_engines_are_warm_and_remember_nothing(model: Model, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timed run is a runner's second of the same prompts, and has the counts of a first one."""
    seen: list[tuple[ModelRunner, list[str], int]] = []

    def decode(runner: ModelRunner, prompts: Any, **options: Any) -> Run:
        seen.append((runner, [prompt.name for prompt in prompts], runner.metrics.steps))
        return decoding.decode(runner, prompts, **options)

    monkeypatch.setattr("specdec_hal.cli.compare.decode", decode)
    fixed = (*model().naive, "--set", "speculative.adaptive=false")
    rows = compare(capsys, *fixed, *PROMPTS, "--method", "suffix", "--repeat", "2")["rows"]
    assert len(seen) == 2 * 2 * 2 * 2  # untimed and timed; sides, prompts, turns
    for (first, warmed, _), (second, timed, steps) in zip(seen[::2], seen[1::2], strict=True):
        assert (first, warmed, steps) == (second, timed, 0)
    alone = ["generate", *fixed, "--set", "speculative.method=suffix", "--max-new-tokens", "40", "--json"]
    for row, prompt in zip(rows[1::2], ("a", "cde"), strict=True):
        assert main([*alone, "--prompt", prompt]) == 0
        fresh = json.loads(capsys.readouterr().out)["metrics"]
        assert all(row[key] == fresh[key] for key in ("steps", "drafted_tokens", "acceptance_by_position"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "ngram,guess"], "unknown speculative method 'guess'"),
        (["--method", "draft_model"], "speculative.draft_model.path"),
        (["--sweep", "2,0"], "argument --sweep: expected an integer >= 1, got 0"),
        (["--sweep", "1", "--method", "guess"], "unknown speculative method 'guess'"),
    ],
)
def test_methods_that_cannot_be_compared(model: Model, capsys: Capture, options: list[str], message: str) -> None:
    assert main(["compare", *model().ngram, *PROMPTS, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_sweep_over_k(model: Model, capsys: Capture, tmp_path: Path) -> None:
    record = tmp_path / "r.json"
    options = [*model().ngram, *PROMPTS, "--method", "ngram,suffix", "--sweep", "1,3", "--repeat", "1"]
    document = compare(capsys, *options, "--record", str(record))
    assert [(row["method"], row.get("k")) for row in document["pooled"]] == [
        ("naive", None), *((f"{method} K={k}", k) for method in ("ngram", "suffix") for k in (1, 3)),
    ]  # fmt: skip
    for row in document["rows"]:
        lengths = len(row["acceptance_by_position"])
        assert lengths == (row.get("k") or 0)
    for row in document["pooled"]:
        assert row["speedup"] == pytest.approx(row["tokens_per_step"] / row["break_even"])
    assert main(["bench", "--read", str(record)]) == 0
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if " K=" in line][-4:]
    fastest = sorted(document["pooled"][1:], key=lambda row: -row["speedup"])
    assert printed == [row["method"].split()[0] for row in fastest]


LINES = [{"task_id": "HumanEval/0", "prompt": "a"}, {"question_id": 81, "turns": ["cde", "b"]}, {"text": "dd"}]


def test_a_record_of_prompts_in_lines_with_every_method(model: Model, capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("\n\n".join(map(json.dumps, LINES)))
    (tmp_path / "p.txt").write_text("a\n\ncde\n")
    lines = ("--prompts", str(tmp_path / "p.jsonl"), "--prompts", str(tmp_path / "p.txt"), "--max-new-tokens", "9")
    record = tmp_path / "r.json"
    options = ("--method", "all", "--repeat", "1", "--record", str(record))
    assert main(["compare", *model().ngram, *lines, *options, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    names = ["HumanEval/0", "81", *(str(tmp_path / name) for name in ("p.jsonl:5", "p.txt:1", "p.txt:3"))]
    assert list(dict.fromkeys(row["prompt"] for row in document["rows"])) == names
    methods = {row["method"] for row in document["rows"]}
    assert {"naive", "ngram", "suffix"} <= methods and "mtp" not in methods
    assert {line.split("'")[1] for line in err.splitlines()} >= {"mtp", "draft_model"}
    found = json.loads(record.read_text())
    assert found["figures"] == document and "compare --set" in found["command"]
    assert found["config"]["backend"]["name"] == "reference" and found["machine"] and found["date"]
    assert main(["bench", "--read", str(record), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document
    assert main(["bench", "--read", str(record)]) == 0
    assert "All 5 prompts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "p.jsonl:1: expected a JSON object, got "),
        ("[1]", "p.jsonl:1: expected text as prompt, text, question or turns, got [1]"),
        ('{"prompt": 3, "turns": []}', "p.jsonl:1: expected text"),
        ("", "expected a prompt in each line, got an empty file"),
    ],
)
def test_lines_that_are_no_prompts(model: Model, capsys: Capture, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "p.jsonl").write_text(line)
    assert main(["compare", *model().ngram, "--prompts", str(tmp_path / "p.jsonl")]) == 2
    assert message in capsys.readouterr().err


def test_pooled() -> None:
    """Sums over prompts, not means of ratios."""

    def row(
        prompt: str, method: str, tokens: int, per_step: float | None, seconds: float, drafts: int, rates: Any
    ) -> Any:
        return {
            "prompt": prompt, "method": method, "tokens": tokens, "tokens_per_step": per_step, "seconds": seconds,
            "num_drafts": drafts, "acceptance_by_position": rates,
        }  # fmt: skip

    rows = [
        row("a", "naive", 101, 1.0, 10.0, 0, []), row("a", "ngram", 101, 4.0, 2.5, 25, [1.0, 0.8]),
        row("b", "naive", 11, 1.0, 1.0, 0, []), row("b", "ngram", 11, 1.0, 2.0, 5, [0.0, 0.0]),
        row("c", "naive", 1, None, 0.5, 0, []), row("c", "ngram", 1, None, 0.5, 0, []),
    ]  # fmt: skip
    naive, ngram = pooled(rows)
    assert (naive["tokens_per_step"], naive["speedup"], naive["mean_acceptance_length"]) == (1.0, 1.0, None)
    assert (ngram["prompts"], ngram["tokens"], ngram["num_drafts"]) == (3, 113, 30)
    assert ngram["tokens_per_step"] == pytest.approx(110 / 35)
    assert ngram["speedup"] == pytest.approx(11.5 / 5)
    assert ngram["acceptance_by_position"] == pytest.approx([25 / 30, 20 / 30])
    assert ngram["mean_acceptance_length"] == pytest.approx(1 + 45 / 30)
    assert ngram["accepted_lengths"] == pytest.approx([5 / 30, 5 / 30, 20 / 30])
    low, high = ngram["tokens_per_step_95"]
    assert low == pytest.approx(1.0) and high == pytest.approx(4.0)
    assert pooled(rows[:2])[1]["speedup_95"] is None


def test_warnings_have_the_form_of_the_program(model: Model, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paddle gives the root logger a handler of its own, which printed them as its lines."""

    step = ModelRunner.step

    def warn(runner: ModelRunner) -> Any:
        logging.getLogger("specdec_hal.mtp").warning("look")  # said once
        return step(runner)

    monkeypatch.setattr(ModelRunner, "step", warn)
    root = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(root)
    try:
        assert main(["compare", *model().ngram, *PROMPTS, "--repeat", "1"]) == 0
    finally:
        logging.getLogger().removeHandler(root)
    assert capsys.readouterr().err == "specdec-hal: look\n"
