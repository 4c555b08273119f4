"""Tables fit their terminal without cutting a word or a number."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from specdec_hal.cli import main
from specdec_hal.cli.tables import Rows

RESULTS = Path(__file__).parents[2] / "benchmarks/results"


def printed(rows: Rows, width: int, *, terminal: bool = True) -> str:
    file = io.StringIO()
    rows.print(Console(file=file, width=width, force_terminal=terminal, color_system=None, markup=False))
    return file.getvalue()


def methods() -> Rows:
    rows = Rows("Methods", ("prompt", "method", "tokens per step", "tokens per second", "by position"), spare=(3, 2))
    for name in ("edit_function.txt", "a.txt"):
        rows.add_row(name, "draft_model", "12.50", "11108.25", " ".join(["0.97"] * 8))
    return rows


@pytest.mark.parametrize("width", [60, 80, 120])
def test_columns_are_left_out_before_texts_take_two_lines(width: int) -> None:
    text = printed(methods(), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text and "draft_model" in text and "edit_function.txt" in text
    assert text.count("0.97") == 16
    assert ("11108.25" in text) == ("12.50" in text) == (width == 120)
    assert len(lines) == {60: 9, 80: 7, 120: 7}[width]


def test_a_pipe_gets_everything() -> None:
    text = printed(methods(), 80, terminal=False)
    assert len([line for line in text.splitlines() if "draft_model" in line and "11108.25" in line]) == 2
    assert text.count(" ".join(["0.97"] * 8)) == 2


TEXT = st.text("abc0. ", max_size=40)
CELLS = st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(TEXT, min_size=n, max_size=n), min_size=1, max_size=4))


@given(CELLS, st.integers(20, 130))
def test_no_word_is_broken(cells: list[list[str]], width: int) -> None:
    rows = Rows("t", [f"c{n}" for n in range(len(cells[0]))])
    for row in cells:
        rows.add_row(*row)
    words, shown = " ".join(map(" ".join, cells)).split(), printed(rows, width).split()
    for word in words:
        assert word in shown


@pytest.mark.parametrize("name", ["h200-verify", "h200-ngram", "cpu-compare-sweep"])
def test_recorded_results_are_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = RESULTS / f"{name}.json"
    assert main(["bench", "--read", str(path)]) == 0
    text, found = capsys.readouterr().out, json.loads(path.read_text())
    for row in found.get("figures", found)["rows"]:
        assert re.sub(r"\s+", " ", row.get("label", row.get("method"))) in text


@pytest.mark.parametrize("name", ["cpu-xpu-sim", "h200-limits", "soak-cuda"])
def test_other_results_are_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = RESULTS / f"{name}.json"
    assert main(["bench", "--read", str(path)]) == 2
    command = json.loads(path.read_text())["command"]
    assert (
        f"expected a document of `bench --out` or `compare --json`, got a result of `{command}"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("text", "got"),
    [("x", "a JSON document"), ("[]", "the keys of no object"), ('{"identical": 1}', "repeat: no such key")],
)
def test_files_that_are_no_result(text: str, got: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(text)
    assert main(["bench", "--read", str(tmp_path / "a.json")]) == 2
    assert got in capsys.readouterr().err


def test_acceptance_is_pooled_over_drafts() -> None:
    from specdec_hal.bench.pooled import pooled_acceptance

    few = {"num_drafts": 1, "acceptance_by_position": [1.0, 1.0]}
    many = {"num_drafts": 9, "acceptance_by_position": [0.0]}
    assert pooled_acceptance([few, many]) == (10, [0.1, 0.1])
    assert pooled_acceptance([{"num_drafts": 0, "acceptance_by_position": []}]) == (0, [])
