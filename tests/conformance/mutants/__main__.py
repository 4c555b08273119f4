"""The check and case that kill each mutant: ``python -m tests.conformance.mutants``."""

from tests.conformance.mutants import MUTANTS
from tests.conformance.mutants.making import report_of

for mutant in MUTANTS:
    failures = report_of(mutant).failures
    print(f"{mutant.name}: {failures[0].case}, {failures[0].check}" if failures else f"{mutant.name} SURVIVES")
