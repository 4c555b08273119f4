"""Expected failures: a file of patterns and reasons that cannot go stale."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_hal.errors import ConfigError
from specdec_hal_conformance.report import EXPECTED, FAILED, PASSED, REFUSED, UNEXPECTED, Result
from specdec_hal_conformance.xfail import ExpectedFailures

FAILURE = Result("ngram_match", "LATEST index", "edge:all tokens equal", "equality", FAILED, "off by one")


def listed(tmp_path: Path, text: str) -> ExpectedFailures:
    path = tmp_path / "xfail.txt"
    path.write_text(text)
    return ExpectedFailures.read(path)


@pytest.mark.parametrize(
    "pattern",
    ["ngram_match/edge:all tokens equal::equality [LATEST index]", "ngram_match/edge:*::equality [LATEST*]", "*"],
)  # fmt: skip
def test_a_listed_failure_is_expected(tmp_path: Path, pattern: str) -> None:
    expected = listed(tmp_path, f"# known defects\n\n{pattern}   # issue 12\n")
    applied = expected.apply(FAILURE)
    assert applied.status == EXPECTED and applied.detail == "issue 12 (off by one)"
    assert expected.stale() == []


def test_others_fail_as_before(tmp_path: Path) -> None:
    expected = listed(tmp_path, "hybrid_mtp_ngram/*  # issue 12\n")
    assert expected.apply(FAILURE) is FAILURE
    assert expected.stale() == [f"{tmp_path}/xfail.txt:1: 'hybrid_mtp_ngram/*' matches no result; delete the line"]


def test_a_listed_case_that_passes_fails_the_run(tmp_path: Path) -> None:
    passing = Result("ngram_match", "", "edge:x", "equality", PASSED)
    expected = listed(tmp_path, "ngram_match/edge:x::equality # issue 12\n")
    applied = expected.apply(passing)
    assert (
        applied.status == UNEXPECTED and "xfail.txt:1 expects a failure (issue 12); delete the line" in applied.detail
    )
    wildcard = listed(tmp_path, "ngram_match/edge:* # issue 12\n")
    assert wildcard.apply(passing) is passing
    assert "lists only what passes" in wildcard.stale()[0]


def test_what_was_refused_is_no_pass(tmp_path: Path) -> None:
    refused = Result("ngram_match", "", "edge:x", "equality", REFUSED)
    expected = listed(tmp_path, "ngram_match/edge:x::equality # issue 12\n")
    assert expected.apply(refused) is refused


@pytest.mark.parametrize("line", ["ngram_match/*", "ngram_match/* #", "ngram_match/*# no blank before the mark"])
def test_a_line_needs_a_reason(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"xfail\.txt:1: expected 'PATTERN # reason', got .*; give the reason"):
        listed(tmp_path, line)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read expected failures"):
        ExpectedFailures.read(tmp_path / "none.txt")
