"""What no compiler checks in the C++ and CUDA sources, and in Python that no test runs."""

from __future__ import annotations

import ast
import importlib.util
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


@pytest.mark.parametrize("folder", ("benchmarks", "tools", "examples", "tests"))
def test_names_that_scripts_import_exist(folder: str) -> None:
    """Type checks cover the package alone, and many scripts run on GPUs alone."""
    missing, seen = [], 0
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("specdec_hal"):
                continue
            try:
                module = importlib.import_module(str(node.module))
            except ModuleNotFoundError as error:
                assert not str(error.name).startswith("specdec_hal"), f"{path}:{node.lineno}: {error}"
                continue  # a framework that is not installed
            seen += len(node.names)
            missing += [
                f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}.{name.name}"
                for name in node.names
                if not hasattr(module, name.name) and not _is_module(f"{node.module}.{name.name}")
            ]
    assert seen
    assert not missing, "\n".join(missing)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
