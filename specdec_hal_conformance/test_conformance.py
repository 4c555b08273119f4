"""Tests collected by ``pytest --pyargs specdec_hal_conformance``."""

from __future__ import annotations

from collections import Counter

import pytest

from specdec_hal_conformance.report import EXPECTED, FAILED, REFUSED, UNEXPECTED
from specdec_hal_conformance.subject import Subject
from specdec_hal_conformance.suite import Settings, Unit, run_unit
from specdec_hal_conformance.xfail import ExpectedFailures


def test_conformance(
    conformance_unit: Unit,
    conformance_subject: Subject,
    conformance_settings: Settings,
    conformance_expected: ExpectedFailures,
) -> None:
    """Every check of every case of one op and group; skipped if the backend refuses all of them."""
    found = run_unit(conformance_subject, conformance_unit, conformance_settings)
    results = [conformance_expected.apply(result) for result in found]
    wrong = [result for result in results if result.status in (FAILED, UNEXPECTED)]
    if wrong:
        lines = [f"{len(wrong)} of {len(results)} results are wrong"]
        lines += [f"{result.id}: {result.detail}" for result in wrong]
        lines += [result.reproduction for result in wrong if result.reproduction][:3]
        pytest.fail("\n".join(lines), pytrace=False)
    counts = Counter(result.status for result in results)
    if results and counts[REFUSED] == len(results):
        pytest.skip(f"refused: {results[0].detail}")
    if counts[EXPECTED]:
        pytest.xfail("; ".join(dict.fromkeys(r.detail for r in results if r.status == EXPECTED)))
