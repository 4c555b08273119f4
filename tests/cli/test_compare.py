"""The command `compare`: identical tokens, figures, and what happens if a model breaks its promise."""

from __future__ import annotations

import json
import logging
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec_hal.bench.pooled import interval_of_turns, pooled
from specdec_hal.cli import decoding, main
from specdec_hal.cli.compare import picture, warnings
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
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("warning: ")]
    printed = [line.split()[0] for line in lines if " K=" in line][-4:]
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


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[bool, int], float]) -> None:
    """Runs, untimed ones too, take `seconds(with drafts, turn)`."""
    turns = {True: 0, False: 0}
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def decode(runner: ModelRunner, prompts: Any, progress: Any = None, **options: Any) -> Run:
        run = decoding.decode(runner, prompts, **options)
        drafts = runner.config.speculative.method != "naive"
        turns[drafts] += progress is not None
        took = seconds(drafts, turns[drafts])
        clock.now += took
        return Run(run.outputs, took, run.summary)

    monkeypatch.setattr("specdec_hal.cli.compare.decode", decode)
    monkeypatch.setattr("specdec_hal.cli.compare.time", clock)


@pytest.mark.parametrize(
    ("seconds", "turns"),
    [
        (lambda drafts, turn: 0.5 if drafts else 1.0, 3),
        (lambda drafts, turn: 1.0 if drafts else 1.0 + turn % 2, 10),  # the interval stays wide
        (lambda drafts, turn: 11.0 if drafts else 11.0 + 5 * (turn % 2), 3),  # a minute is enough
    ],
)
def test_turns_until_the_speed_up_is_known(
    model: Model, capsys: Capture, monkeypatch: pytest.MonkeyPatch, seconds: Any, turns: int
) -> None:
    timed(monkeypatch, seconds)
    document = compare(capsys, *model().ngram, "--prompt", "a", "--max-new-tokens", "4")
    assert (document["repeat"], len(document["all_speedups"])) == (turns, turns)
    low, high = document["speedup_95"]
    assert low <= document["speedup"] * 1.05 and high * 1.05 >= document["speedup"]


def test_prompts_share_the_minute(model: Model, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of a prompt takes some 5 s with its untimed runs, and the interval stays wide."""
    timed(monkeypatch, lambda drafts, turn: 1.0 if drafts else 1.0 + turn % 2)
    document = compare(capsys, *model().ngram, *PROMPTS, "--method", "ngram")
    assert document["repeat"] in (6, 7)


def test_the_interval_of_turns() -> None:
    assert interval_of_turns([2.0]) is None
    assert interval_of_turns([2.0, 2.0]) == pytest.approx([2.0, 2.0])
    # The logarithms of 1, 2 and 4 in units of log 2: mean 1, deviation 1, Student's t 4.30.
    assert interval_of_turns([1.0, 2.0, 4.0]) == pytest.approx([2 ** (1 - 4.30 / 3**0.5), 2 ** (1 + 4.30 / 3**0.5)])


def test_a_speed_up_above_the_tokens_per_step(model: Model, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (*model().ngram, "--prompt", "a", "--max-new-tokens", "40", "--repeat", "1")
    timed(monkeypatch, lambda drafts, turn: 1.0 if drafts else 8.0)
    (line,) = compare(capsys, *options)["warnings"]
    assert line.startswith("ngram: 8.00 times as fast at ") and "repeat this on an idle machine" in line
    (line,) = compare(capsys, *options, "--method", "ngram")["warnings"]
    assert line.startswith("prompt, ngram: 8.00 times as fast at ")
    assert main(["compare", *options]) == 0
    assert "warning: ngram: 8.00 times as fast" in capsys.readouterr().out
    timed(monkeypatch, lambda drafts, turn: 1.0 if drafts else 1.5)
    assert compare(capsys, *options)["warnings"] == []


def test_the_last_request_of_a_batch_may_take_all_steps() -> None:
    """2 requests in 12 steps instead of 40: 3.3 times as fast at 2 tokens per request and step."""
    spec = {"tokens_per_step": 2.0, "steps": 12}
    document = {"naive": {"tokens_per_step": 1.0, "steps": 40}, "spec": spec, "method": "ngram", "speedup": 3.3}
    assert warnings(document) == []
    assert len(warnings({**document, "speedup": 3.5})) == 1


def test_the_picture_has_the_largest_k(model: Model, capsys: Capture, tmp_path: Path) -> None:
    file, alone = tmp_path / "k.svg", tmp_path / "one.svg"
    options = [*model().ngram, *PROMPTS, "--repeat", "1"]
    compare(capsys, *options, "--method", "ngram,suffix", "--sweep", "1,3", "--plot", str(file))
    compare(capsys, *options, "--plot", str(alone))
    shown, one = (
        [text.text for text in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")] for path in (file, alone)
    )
    assert shown[:3] == [f"Acceptance by position, {tmp_path.name}, K = 3", "ngram", "suffix"]
    assert {"All 2 prompts", "prompt", "prompt #2", "0", "2"} <= set(shown) and "3" not in shown
    assert one[:3] == [f"Acceptance by position, {tmp_path.name}", "ngram", "All prompts"]
    assert main(["compare", *options, "--plot", str(tmp_path / "k.png")]) == 2
    assert "--plot: expected a file FILE.svg, got " in capsys.readouterr().err


def test_tables_fit_into_120_columns(capsys: Capture, tmp_path: Path) -> None:
    """Long names, 15 drafts and ten prompts, in a pipe."""
    rates = [0.97 - 0.01 * at for at in range(15)]
    methods = ["naive", "ngram K=15", "hybrid_mtp_ngram K=15", "draft_model K=15"]
    rows = [
        {
            "prompt": f"examples/prompts/edit_function_{n}.txt", "method": method, "tokens": 128, "steps": 12,
            "seconds": 1.0, "tokens_per_step": 11.5, "speedup": 10.25, "speedup_95": [10.11, 11.22],
            "tokens_per_second": 11108.25, "num_drafts": 12, "mean_acceptance_length": 11.5,
            "acceptance_by_position": [] if method == "naive" else rates, **({} if method == "naive" else {"k": 15}),
        }
        for n in range(10)
        for method in methods
    ]  # fmt: skip
    document: dict[str, Any] = {"identical": True, "repeat": 3, "backend": "cpu", "model": "tiny-py-lm"}
    document |= {"rows": rows, "pooled": pooled(rows), "strategy": "greedy", "temperature": 0.0}
    (tmp_path / "r.json").write_text(json.dumps({**document, "differences": []}))
    assert main(["bench", "--read", str(tmp_path / "r.json")]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 120
    assert "Methods, tiny-py-lm" in out and "All 10 prompts: acceptance, tiny-py-lm" in out
    assert out.count("0.97") == 3 * 10 + 3 and out.count("0.84") == 3 * 10 + 3
    assert "All 10 prompts" in picture(document)
