"""What no compiler checks in the C++ and CUDA sources; ruff does it for Python."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".xpu"}
FOLDERS = ("kernels_common", "kernels_cuda", "kernels_xpu_sim")
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
