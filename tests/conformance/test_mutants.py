"""Every mutant is killed at level `quick`; an unedited copy passes."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np
import pytest

from specdec_hal.ops import OPS
from specdec_hal.plugin.backend import Backend
from specdec_hal_conformance.edges import edge_cases
from specdec_hal_conformance.expectations import unmet
from specdec_hal_conformance.subject import Subject
from specdec_hal_conformance.suite import Settings, Unit, run_unit
from specdec_hal_conformance.trial import Trial
from tests.conformance.mutants import MUTANTS
from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import Mutant, around, edited_reference, report_of

ARITHMETIC = {"exponent-reassociated", "polynomial-contracted", "exp2-of-the-library", "logarithm-of-the-library"}
"""tests/kernels_common holds these against exact numbers."""
OF_AN_INDEX = {
    "index-reset-of-all-slots", "index-reset-of-the-others", "index-skips-a-token-per-update", "index-of-prefill-slots",
}  # fmt: skip
"""Whose layout is a backend's own."""
BY_COMPARISON = {
    "ratio-by-reciprocal", "acceptance-shares-the-draw", "candidate-draw-shares-the-sampler's",
    "depends-on-the-batch-size", *(f"{op}-in-32-bits" for op in (
        "gather_next_token", "sample_target", "token_logprobs", "apply_penalties", "top_p_candidates",
        "verify_draft_tokens", "ngram_index_update",
    )),
}  # fmt: skip
"""What backends differ in where one of them has the fault."""
OF_HOSTILE_VALUES = {"lengths-not-clamped"}
"""No edge breaks what the contract asks of values."""


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(mutant: Mutant) -> None:
    assert report_of(mutant).failures, (
        f"'{mutant.name}' survives ({mutant.stands_for}): add the case that it shows to be missing"
    )


def fails_by_hand(backend: Backend, op: str) -> bool:
    """Whether an edge's outputs are not those that were worked out by hand."""
    subject = Subject(backend)
    for case in edge_cases(op):
        try:
            if unmet(case.expected, Trial(subject, case).outcome.outputs):
                return True
        except Exception:
            return True
    return False


@pytest.mark.slow
def test_edges_by_hand_alone_kill_mutants() -> None:
    """So that a fault is found which the reference and the kernels have in common."""
    with np.errstate(all="ignore"):
        assert not [op for op in OPS if fails_by_hand(edited_reference([]), op)]
        edited = [mutant for mutant in MUTANTS if mutant.edits]
        left = {mutant.name for mutant in edited if not any(fails_by_hand(mutant.make(), op) for op in mutant.ops)}
    assert left == BY_COMPARISON | ARITHMETIC | OF_AN_INDEX | OF_HOSTILE_VALUES


def test_every_op_has_mutants() -> None:
    assert {op for mutant in MUTANTS for op in mutant.ops} == set(OPS)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def assert_passes(backend: Backend, op: str, groups: Sequence[str] = ("edges",)) -> None:
    for group in groups:
        results = list(run_unit(Subject(backend), Unit(op, group), Settings()))
        assert results
        assert [result for result in results if result.status != "passed"] == []


@pytest.mark.parametrize("op", OPS)
def test_an_unedited_copy_passes(op: str) -> None:
    """What kills a mutant is its mutation, and not how it was made."""
    # Arguments are checked before the reference is called: one op tells whether the copy is called as it is.
    assert_passes(edited_reference([]), op, ("edges", "arguments") if op == "gather_accepted" else ("edges",))


def test_nothing_done_around_a_launch_passes() -> None:
    assert_passes(
        around("control", "gather_accepted", "", lambda arrays, launch: launch()).make(),
        "gather_accepted",
        ("edges", "arguments"),
    )


CODE = """\
import numpy as np

def update_model_status(stop_flags, step_idx):
    slots, total = len(stop_flags), 0
    for b in range(slots):
        if stop_flags[b]:
            total += step_idx[b]
    return total
"""


@pytest.mark.parametrize(
    ("old", "new", "given", "changed"),
    [
        ("stop_flags[i]", "not stop_flags[i]", "", "if not stop_flags[b]:"),
        ("for i in range(n): ...", "for i in range(n + 1): ...", "", "for b in range(slots + 1):"),
        ("if stop_flags[i]: ...", "pass", "", "pass"),
        ("return x", "return np.maximum(x, n)", "range(n)", "return np.maximum(total, slots)"),
        ("x += step_idx[i]", "b = step_idx[i]\nx += b", "", "total += mutant_b"),
        (
            "range(n)",
            "(lambda n, b: range(n + b))(n, 1)",
            "",
            "for b in (lambda slots, mutant_b: range(slots + mutant_b))(slots, 1):",
        ),
    ],
)
def test_an_edit(old: str, new: str, given: str, changed: str) -> None:
    tree = ast.parse(CODE)
    Edit("status", old, new, "update_model_status", given).apply(tree)
    text = ast.unparse(ast.fix_missing_locations(tree))
    assert changed in [line.strip() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("n + 1", "n", r"backends/reference/status\.py update_model_status: 'n \+ 1' occurs 0 times, expected 1"),
        ("x[i]", "0", "occurs 0 times"),  # `step_idx` is no variable
        ("x += y", "0", "occurs 0 times"),
        ("x", "0", "occurs 8 times"),
        ("step_idx[step_idx]", "0", "occurs 0 times"),
        ("i[i]", "0", "occurs 0 times"),
        ("stop_flags[i]", "stop_flags[j]", "j: in `new`, but neither in `old` nor in `given`"),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error(old: str, new: str, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        Edit("status", old, new, "update_model_status").apply(ast.parse(CODE))
