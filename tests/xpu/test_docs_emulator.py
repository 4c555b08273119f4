"""What docs/extend/xpu_emulator.md names: its files and the checks."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.sessions import files_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend" / "xpu_emulator.md").read_text()
SIM = ROOT / "kernels_xpu_sim" / "sim"
FILES = ("axpy.xpu", "host.cpp", "sum.xpu", "sum_host.cpp", "timeline.py", "test_axpy.py", "axpy_op.cpp", "inputs.py")


def test_the_files_of_the_sessions():
    """tests/wheel writes them, runs the page's commands, and compares what they say."""
    assert tuple(files_of(PAGE)) == FILES


def test_every_check_is_named():
    checks = re.findall(r'^  check\(\w+, "(\w+)"', (SIM / "src" / "checks.h").read_text(), re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert checks and set(checks) - named == set()
