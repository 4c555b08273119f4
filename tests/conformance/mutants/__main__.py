"""Write docs/mutants.md anew: ``python -m tests.conformance.mutants``, from the repository's root."""

from pathlib import Path

from tests.conformance.mutants import MUTANTS
from tests.conformance.mutants.table import page

Path("docs/mutants.md").write_text(page(MUTANTS), encoding="utf-8")
