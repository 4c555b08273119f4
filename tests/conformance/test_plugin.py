"""The suite as a pytest plug-in, run by a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs", "specdec_hal_conformance", "-rsx"]
OP = ("--specdec-op", "gather_accepted")


def pytest_of(tmp_path: Path, *args: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *args], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_one_test_per_op_and_group_in_parallel(tmp_path: Path) -> None:
    quickest = ("--specdec-op", "ngram_index_reset")
    status, out = pytest_of(tmp_path, "--specdec-backend", "cpu", *quickest, "--specdec-seed", "3", "-n", "2", "-v")
    assert status == 0, out
    for group in ("edges", "generated", "hostile", "traces", "arguments"):
        assert f"test_conformance[ngram_index_reset:{group}]" in out


def test_it_says_what_it_needs(tmp_path: Path) -> None:
    status, out = pytest_of(tmp_path)
    assert status == 0 and "1 skipped" in out and "name the backend under test: --specdec-backend NAME" in out


@pytest.mark.slow
def test_failures_expected_failures_and_refusals(faulty: str, tmp_path: Path) -> None:
    fault = ("--specdec-backend", faulty, "--specdec-option", "fault=value")
    status, out = pytest_of(tmp_path, *fault, *OP)
    assert status == 1 and "results are wrong" in out and "'rows'" in out and "print(reproduce('faulty'" in out
    listed = tmp_path / "xfail.txt"
    listed.write_text("gather_accepted/* # issue 9\n")
    status, out = pytest_of(tmp_path, *fault, *OP, "--specdec-xfail", str(listed))
    assert status == 0 and "xfailed" in out and "issue 9" in out
    partial = ("--specdec-backend", faulty, "--specdec-option", "fault=partial")
    status, out = pytest_of(tmp_path, *partial, *OP)
    assert status == 0 and "refused: the op is missing" in out
