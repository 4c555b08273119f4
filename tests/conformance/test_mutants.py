"""Every mutant is killed at level `quick`, by the case that docs/mutants.md names; an unedited copy passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_hal.backend import Backend
from specdec_hal.conformance.subject import Subject
from specdec_hal.conformance.suite import Settings, Unit, run_unit
from specdec_hal.ops import OPS
from tests.conformance.mutants import MUTANTS
from tests.conformance.mutants.making import Edit, Mutant, around, edited_reference, undefined
from tests.conformance.mutants.table import HEAD, judge, row

PAGE = (Path(__file__).parents[2] / "docs" / "mutants.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(mutant: Mutant) -> None:
    failures = judge(mutant).failures
    assert failures, f"'{mutant.name}' survives ({mutant.stands_for}): add the case that it shows to be missing"
    line = row(mutant, failures[0])
    assert line in PAGE, f"docs/mutants.md lacks this line; run python -m tests.conformance.mutants:\n{line}"


def test_the_page_lists_the_mutants_and_nothing_else() -> None:
    assert PAGE.startswith(HEAD)
    names = [line.split("`")[1] for line in PAGE[len(HEAD) :].splitlines()]
    assert names == [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)


def test_every_op_has_mutants() -> None:
    assert {op for mutant in MUTANTS for op in mutant.ops} == set(OPS)


def assert_passes(backend: Backend, op: str) -> None:
    for group in ("edges", "arguments"):
        results = list(run_unit(Subject(backend), Unit(op, group), Settings()))
        assert results
        assert [result for result in results if result.status != "passed"] == []


@pytest.mark.parametrize("op", OPS)
def test_an_unedited_copy_passes(op: str) -> None:
    """What kills a mutant is its mutation, and not how it was made."""
    assert_passes(edited_reference([]), op)


def test_nothing_done_around_a_launch_passes() -> None:
    assert_passes(around("control", "gather_accepted", "", lambda arrays, launch: launch()).make(), "gather_accepted")


def test_an_edit_that_finds_nothing_is_an_error() -> None:
    with pytest.raises(
        LookupError, match=r"backends/reference/status\.py update_model_status: 'no such text' occurs 0"
    ):
        edited_reference([Edit("status", "no such text", "", within="update_model_status")])


def test_outputs_left_undefined() -> None:
    """The mutants of `undefined` leave exactly the filled elements alone."""
    mutant = undefined("gather_accepted", "rows", -1, "a test")
    failures = judge(mutant).failures
    assert len(failures) == 1
    assert failures[0].check == "equality"
    assert "'rows'" in failures[0].detail
