"""`specdec-hal conformance`: exit status, table, JSON, JUnit, crashes, rounds."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from specdec_hal.cli import main
from tests.support.processes import descendants, gone

OP = "ngram_index_reset"  # the quickest


def call(*args: str) -> int:
    return main(["conformance", *args])


def document(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict]:
    status = call("--json", *args)
    return status, json.loads(capsys.readouterr().out)


def test_json_and_junit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    status, report = document(
        capsys, "--backend", "reference", "--op", OP, "--seed", "7", "--coverage", "--junit", str(path), "--jobs", "1"
    )
    assert status == 0 and report["ok"]
    assert (report["backend"], report["level"], report["seed"], report["device"]) == ("reference", "quick", 7, "cpu")
    assert report["totals"]["passed"] > 500 and report["totals"]["failed"] == 0
    assert {row["op"] for row in report["table"]} == {OP} and report["results"] == []
    assert report["coverage"] == {"rules": 2, "untouched": {}, "refused": {}}
    assert set(report["versions"]) == {"specdec_hal", "numpy", "python"}
    suite = ElementTree.parse(path).getroot()
    assert suite.get("failures") == "0" and int(suite.get("tests")) == len(suite) > 5


WRONG_VALUES = ("--option", "fault=value", "--op", "gather_accepted", "--jobs", "1")


def test_failures_are_grouped_by_cause_shrunk_and_can_be_pasted(
    faulty: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    junit = tmp_path / "junit.xml"
    status, report = document(capsys, "--backend", faulty, *WRONG_VALUES, "--junit", str(junit))
    assert status == 1 and not report["ok"]
    assert int(ElementTree.parse(junit).getroot().get("failures")) >= 1
    failure = next(r for r in report["results"] if r["case"].startswith("generated:") and r["reproduction"])
    code = failure["reproduction"]
    for part in ("# gather_accepted/generated:", "backend faulty, seed 0", "specdec_hal 0.", "numpy", "python"):
        assert part in code
    namespace: dict = {}
    exec(code, namespace)
    found = capsys.readouterr().out
    assert "'rows'" in found and "expected" in found
    inputs = namespace["inputs"]
    assert inputs["accept_tokens"].size <= 2 and len(inputs["rows"]) == 3
    equality = next(cause for cause in report["causes"] if cause["check"] == "equality")
    assert equality["op"] == "gather_accepted" and equality["cases"] > 10
    rules = [rule for rule, _, _ in equality["rules"]]
    assert rules and all(rule.startswith("gather_accepted#") for rule in rules)
    assert all(0 < wrong <= asked for _, wrong, asked in equality["rules"])
    assert call("--backend", faulty, *WRONG_VALUES) == 1
    cause = f"likely cause: gather_accepted: {equality['cases']} fail in 'equality'; {rules[0]} ("
    assert cause in capsys.readouterr().out


def test_expected_failures(faulty: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "xfail.txt"
    path.write_text(
        "gather_accepted/edge:a prefill slot has one row::equality # issue 10\ngather_accepted/* # issue 9\n"
    )
    status, report = document(capsys, "--backend", faulty, *WRONG_VALUES, "--xfail", str(path))
    assert status == 1 and report["totals"]["unexpected pass"] == 1 and report["totals"]["expected failure"] > 10


def test_what_is_not_claimed_is_refused(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = document(
        capsys, "--backend", faulty, "--option", "fault=partial", "--op", OP, "--op", "ngram_match", "--coverage"
    )
    reset, match = report["table"]
    assert match["reasons"] == ["the op is missing"] and "passed" not in match
    assert reset["passed"] > 50 and reset["refused"] > 50 and "M = 4 (largest: 3)" in reset["reasons"]
    assert report["ok"] is (status == 0)
    assert not [rule for part in ("refused", "untouched") for rule in report["coverage"][part] if "ngram_match" in rule]
    assert not any(rule.startswith("ngram") for rule in report["coverage"]["untouched"])


def test_a_crash_is_a_failure_with_its_inputs_saved(
    faulty: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    args = ("--backend", faulty, "--option", "fault=abort", "--op", OP, "--op", "prepare_inputs")
    status, report = document(capsys, *args, "--save", str(tmp_path), "--jobs", "2")
    assert status == 1
    crashes = [result for result in report["results"] if result["check"] == "survival"]
    assert {result["op"] for result in crashes} == {OP} and "was killed by SIGABRT" in crashes[0]["detail"]
    saved = sorted(tmp_path.glob("conformance-crash-*.npz"))
    assert saved and len(np.load(saved[0])["index"]) == 4
    assert str(saved[0]) in "".join(result["detail"] for result in crashes)
    # The other op was tested to its end.
    assert next(row for row in report["table"] if row["op"] == "prepare_inputs")["passed"] > 500


@pytest.mark.parametrize(
    ("fault", "limit", "how"),
    [
        ("hang", ("--case-seconds", "5"), "was ended: it took more than 5 s"),
        ("hog", ("--case-gib", "1"), "of memory, more than 1.0 GiB"),
    ],
)
def test_a_case_without_end_is_a_failure_with_its_inputs_saved(
    faulty: str, fault: str, limit: tuple[str, str], how: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    args = ("--backend", faulty, "--option", f"fault={fault}", "--op", OP, "--jobs", "2")
    status, report = document(capsys, *args, *limit, "--save", str(tmp_path))
    assert status == 1
    ended = [result for result in report["results"] if result["check"] == "survival"]
    ended = [result for result in ended if result["case"] != "(before the first case)"]  # where a start takes so long
    assert ended and all(how in result["detail"] and "its inputs are in" in result["detail"] for result in ended)
    assert list(tmp_path.glob("conformance-crash-*.npz"))


def test_children_end_with_their_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specdec_hal.cli", "conformance", "--backend", "reference", "--level", "soak"]
    with subprocess.Popen([*command, "--jobs", "2"], stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        children = list[int]()
        while len(children) < 2:
            children = descendants(process.pid, "")
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
        process.wait()
        # The pipe is open in the children too: it ends when the last of them, ending, has closed its files.
        process.stderr.read()
    deadline = time.monotonic() + 10
    while not all(map(gone, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(gone, children))


def test_children_run_the_package_of_their_parent(tmp_path: Path) -> None:
    """In a folder with another package of the name, as in a clone beside an installed one."""
    clone = tmp_path / "specdec_hal"
    clone.mkdir()
    (clone / "__init__.py").write_text("raise ImportError('the clone')")
    command = str(Path(sys.executable).with_name("specdec-hal"))
    args = ["conformance", "--backend", "reference", "--op", OP, "--jobs", "1"]
    done = subprocess.run([command, *args], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "Conformance of 'reference' on cpu, level quick, seed 0" in done.stdout
    assert OP in done.stdout and "failed in" not in done.stdout


def test_a_backend_without_workspaces(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--backend", faulty, "--option", "fault=no workspace", "--op", "ngram_match", "--jobs", "1")
    status, report = document(capsys, *args)
    assert status == 1 and report["totals"]["passed"] > 100
    (detail,) = {result["detail"] for result in report["results"] if result["check"] == "workspace"}
    assert "workspace('ngram_match', M=..., L=..., max_ngram_size=...) gives no Layout for 'index'" in detail
    assert "implement Backend.workspace" in detail


def test_an_untouched_rule_fails_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from specdec_hal_conformance import rules

    known = rules.all_rules([OP])
    monkeypatch.setattr(rules, "all_rules", lambda ops=None: {**known, f"{OP}#new": "Nobody looks."})
    assert call("--backend", "reference", "--op", OP, "--jobs", "1") == 1
    assert f"FAILED no case touched {OP}#new: Nobody looks." in capsys.readouterr().out


def test_a_read_outside_a_tensor_is_seen(faulty: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ("--backend", faulty, "--option", "fault=read", "--op", "gather_accepted", "--jobs", "1")
    status, report = document(capsys, *args, "--save", str(tmp_path))
    assert status == 1
    (crash,) = report["results"]
    assert crash["case"].startswith("hostile:") and "was killed by SIGSEGV" in crash["detail"]


def test_a_process_that_never_starts(faulty: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, report = document(capsys, "--backend", faulty, "--option", "fault=start", "--op", OP, "--jobs", "1")
    assert status == 1
    assert {result["case"] for result in report["results"]} == {"(before the first case)"}
    assert "ended with status 5" in report["results"][0]["detail"]


@pytest.mark.slow
def test_soak_runs_rounds_with_fresh_seeds(faulty: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ("--level", "soak", "--rounds", "2", "--op", OP, "--jobs", "2", "--save", str(tmp_path))
    passed = [0]
    for rounds in ("1", "2"):
        assert call("--json", "--backend", "reference", *args, "--rounds", rounds) == 0
        out, progress = capsys.readouterr()
        report = json.loads(out)
        assert "round 1 (seed 0)" in progress and ("round 2 (seed 1)" in progress) is (rounds == "2")
        assert report["rounds"] == int(rounds) and report["totals"]["passed"] > passed[-1]
        assert report["totals"]["passed"] == sum(row["passed"] for row in report["table"])
        passed.append(report["totals"]["passed"])
    status, report = document(capsys, "--backend", faulty, "--option", "fault=abort", *args)
    assert status == 1 and {r["check"] for r in report["results"]} == {"survival"}
    assert len(list(tmp_path.glob("*-seed0.npz"))) == len(list(tmp_path.glob("*-seed1.npz"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("told", "when"), [(signal.SIGINT, "round 2"), (signal.SIGTERM, "round 1")])
def test_soak_runs_until_it_is_told_to_stop(told: signal.Signals, when: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specdec_hal.cli", "conformance", "--json", "--backend", "cpu"]
    soak = [*command, "--level", "soak", "--op", OP, "--jobs", "1"]
    # A shell starts jobs in the background with SIGINT ignored, and their children inherit that.
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipe = subprocess.PIPE
    with subprocess.Popen(soak, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, preexec_fn=listen) as process:
        shown = ""
        while when not in shown:
            shown = process.stderr.readline()
            assert shown, "it ended by itself"
        process.send_signal(told)
        out, _ = process.communicate()
    report = json.loads(out)
    assert process.returncode == 0 and report["ok"] and report["totals"]["failed"] == 0
    assert not list(tmp_path.iterdir())  # what was running when it stopped has not crashed


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--backend", "nobody"), "unknown backend 'nobody'"),
        (("--backend", "reference", "--op", "ngram_macth"), "no op 'ngram_macth' in the contract; did you mean"),
        (("--backend", "reference", "--rounds", "2"), "--rounds: only level soak has rounds"),
        (("--backend", "reference", "--jobs", "0"), "--jobs: expected at least 1, got 0"),
        (("--backend", "reference", "--case-seconds", "0"), "--case-seconds, --case-gib: expected a number > 0"),
        (("--backend", "reference", "--samples", "5"), "--samples: expected at least 1000, got 5"),
        (("--backend", "reference", "--option", "fast"), "backend option 'fast': expected KEY=VALUE"),
        (("--backend", "reference", "--option", "fast=1"), "the reference backend has no options, got fast"),
        (("--backend", "reference", "--device", "cuda:0"), "backend 'reference' works on cpu, not on 'cuda:0'"),
        (("--backend", "reference", "--xfail", "none.txt"), "cannot read expected failures"),
        (("--backend", "reference", "--level", "some"), "invalid choice: 'some'"),
    ],
)
def test_bad_input(args: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*args) == 2
    out, err = capsys.readouterr()
    assert complaint in err and out == "" and "Traceback" not in err
