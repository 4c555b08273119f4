"""What no compiler checks in the C++ and CUDA sources; ruff does it for Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".xpu"}
FOLDERS = ("kernels_common", "kernels_cuda", "kernels_xpu_sim", "specdec_hal/models/native")
WIDEST = 120


@pytest.mark.parametrize("folder", FOLDERS)
def test_lines_are_at_most_120_columns_wide(folder: str) -> None:
    sources = [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    assert sources
    wide = [
        f"{path.relative_to(ROOT)}:{number}: {len(line)} columns"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > WIDEST
    ]
    assert not wide, "\n".join(wide)


def test_the_emulator_includes_nothing_of_this_project() -> None:
    """Kernels of others are compiled with it: it stands alone."""
    folder = ROOT / "kernels_xpu_sim" / "sim"
    own = {path.name for path in folder.rglob("*.h")}
    included = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in folder.rglob("*")
        if path.suffix in SUFFIXES
        for name in re.findall(r'#include "(.*)"', path.read_text())
        if Path(name).name not in own or name.startswith("specdec")
    }
    assert included == set()
