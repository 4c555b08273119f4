"""Decode runs of ops with states by position find the faults that engines have had, without a reference."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.ops import OPS
from specdec_hal_conformance.decodes import decodes
from specdec_hal_conformance.subject import CallFailed, Subject
from tests.conformance.mutants import recurrent
from tests.conformance.mutants.making import Mutant, edited_reference

POSITIONAL = {
    "state-of-another-column-without-drafts", "state-copied-backward-on-a-boundary", "state-after-padding-kept",
    "one-state-for-a-slot", "state-of-the-last-request", "state-times-zero", "first-token-of-a-prompt-starts-over",
    "ring-one-entry-short", "checkpoint-of-the-last-request", "a-token-folded-twice", "a-token-not-folded",
    "last-draft-folded", "checkpoint-never-moved", "checkpoint-moved-each-step", "checkpoint-not-clamped",
    "fold-in-float64", "updated-before-the-decay", "inputs-of-the-last-request", "inputs-of-zero-at-each-chunk",
    "inputs-of-the-last-step", "first-inputs-kept", "input-ring-one-entry-short", "only-the-last-input-kept",
}  # fmt: skip


def found(subject: Subject, op: str) -> list[str]:
    faults = []
    for decode in decodes(op):
        try:
            fault = decode.wrong(subject)
        except CallFailed as failure:
            fault = str(failure)
        faults += [fault] if fault else []
    return faults


@pytest.mark.parametrize("mutant", [m for m in recurrent.MUTANTS if m.name in POSITIONAL], ids=lambda m: m.name)
def test_a_fault_is_found(mutant: Mutant) -> None:
    with np.errstate(all="ignore"):
        assert all(found(Subject(mutant.make()), op) for op in mutant.ops)


def test_an_unedited_copy_has_none() -> None:
    assert {m.name for m in recurrent.MUTANTS} >= POSITIONAL
    with np.errstate(all="ignore"):
        assert [fault for op in OPS for fault in found(Subject(edited_reference([])), op)] == []
