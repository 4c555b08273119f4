"""Write killed.md again: ``python -m tests.conformance.mutants``, from the repository's root."""

from pathlib import Path

from tests.conformance.mutants import MUTANTS
from tests.conformance.mutants.table import page

Path(__file__).with_name("killed.md").write_text(page(MUTANTS), encoding="utf-8")
