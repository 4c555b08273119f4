"""The op table in C++, generated from the OpSpecs."""

from __future__ import annotations

import subprocess
import sys

from specdec_hal.ops import OPS, cpp
from specdec_hal.ops.parts import PART_OPS


def test_the_module_writes_them(tmp_path):
    for folder in ("specdec", "specdec_ops"):
        (tmp_path / cpp.INCLUDE / folder).mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "specdec_hal.ops.cpp"], cwd=tmp_path, check=True)
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.h")}
    assert written == cpp.headers()
    assert {path.stem for path in written} == {"contract", *OPS, *PART_OPS}
