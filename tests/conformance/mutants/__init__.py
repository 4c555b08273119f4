"""Deliberately broken backends, by which the conformance suite is itself tested.

Each is the reference with a few lines changed; every one must fail the suite at level `quick`.
"""

from __future__ import annotations

from tests.conformance.mutants import (
    bitmask,
    conduct,
    draft_model,
    drafter,
    ngram,
    output,
    phases,
    recurrent,
    sampling,
    schedule,
    single_mode,
    status,
    step_index,
    verify,
)
from tests.conformance.mutants.making import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *step_index.MUTANTS,
    *sampling.MUTANTS,
    *verify.MUTANTS,
    *status.MUTANTS,
    *ngram.MUTANTS,
    *output.MUTANTS,
    *schedule.MUTANTS,
    *phases.MUTANTS,
    *draft_model.MUTANTS,
    *bitmask.MUTANTS,
    *drafter.MUTANTS,
    *recurrent.MUTANTS,
    *conduct.MUTANTS,
    *single_mode.MUTANTS,
)
