"""Asking the suite about a mutant, and the page that says by which case each is killed."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_hal.conformance import Report, Result, run
from tests.conformance.mutants.making import Mutant

_DRAWN = {"generated": "a generated case", "hostile": "a case with hostile values", "trace": "a recorded call"}

HEAD = """\
# Mutants

The conformance suite is itself tested: by backends that are broken on purpose, each a few lines away from the reference
(`tests/conformance/mutants/`). At level `quick` every one of them must fail. The table says what each stands for and
the first check of the first case that fails it. It is generated: `python -m tests.conformance.mutants`.

| mutant | breaks | seen as | killed by | check |
|---|---|---|---|---|
"""


def judge(mutant: Mutant) -> Report:
    """What the suite says, up to the first failure, about the ops that the mutant breaks."""
    return run(mutant.make(), ops=mutant.ops, level="quick", stop_at_failure=True, shrink_failures=False, samples=8192)


def row(mutant: Mutant, killer: Result) -> str:
    """A mutant's line of the table. Drawn cases go without their number: another one may come first some day."""
    kind, _, name = killer.case.partition(":")
    case = _DRAWN.get(kind, name if kind in ("edge", "wide") else killer.case)
    cells = (f"`{mutant.name}`", _listed(mutant.ops), mutant.stands_for, f"`{killer.op}`: {case}", killer.check)
    return f"| {' | '.join(cells)} |\n"


def _listed(ops: Sequence[str]) -> str:
    return ", ".join(f"`{op}`" for op in ops)


def page(mutants: Sequence[Mutant]) -> str:
    """The whole page. Raises LookupError for a mutant that survives."""
    text = HEAD
    for mutant in mutants:
        failures = judge(mutant).failures
        if not failures:
            raise LookupError(f"mutant '{mutant.name}' survives the suite: add the case that it shows to be missing")
        text += row(mutant, failures[0])
    return text
