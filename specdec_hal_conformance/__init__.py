"""The conformance suite, which proves a backend's claims. README.md has the interfaces.

specdec-hal conformance --backend NAME
pytest --pyargs specdec_hal_conformance --specdec-backend NAME
report = specdec_hal_conformance.run(backend)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_hal import lazy

if TYPE_CHECKING:
    from specdec_hal_conformance.case import Case
    from specdec_hal_conformance.checks import Check
    from specdec_hal_conformance.report import Report, Result
    from specdec_hal_conformance.reproduction import reproduce
    from specdec_hal_conformance.suite import run
    from specdec_hal_conformance.xfail import ExpectedFailures

_HOME = {
    "Case": "case",
    "Check": "checks",
    "ExpectedFailures": "xfail",
    "Report": "report",
    "Result": "report",
    "reproduce": "reproduction",
    "run": "suite",
}

__all__ = ["Case", "Check", "ExpectedFailures", "Report", "Result", "reproduce", "run"]

__getattr__ = lazy(__name__, _HOME)
