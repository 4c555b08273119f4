"""What no compiler checks: the C++ and CUDA sources, Python that no test runs, and what tests use of the package."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".xpu"}
NATIVE = ["specdec_hal/models/native", "specdec_hal/runner/native"]
FOLDERS = ["kernels_common", "kernels_cpu", "kernels_cuda", "kernels_xpu_sim", *NATIVE]
if not (ROOT / "kernels_xpu_sim").is_dir():  # a part that may be absent
    FOLDERS.remove("kernels_xpu_sim")
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


RULES, OPS, FFI = (f"kernels_common/include/specdec{part}/" for part in ("", "_ops", "_ffi"))
SIM, KERNELS = (f"kernels_xpu_sim/{room}/" for room in ("sim", "kernels"))
CUDA = "kernels_cuda/ops/"
ROOMS: dict[str, tuple[str, ...]] = {
    RULES: (),
    OPS: (RULES,),
    FFI: (RULES, OPS),
    "kernels_common/": (),
    SIM: (),
    KERNELS: (RULES, OPS, SIM),
    "kernels_xpu_sim/ffi/": (FFI, KERNELS, SIM),
    "kernels_xpu_sim/device/": (RULES, OPS, KERNELS, SIM),
    "kernels_xpu_sim/probes/": (SIM,),
    "kernels_cpu/": (RULES, OPS, FFI),
    CUDA: (RULES, OPS, "kernels_cuda/host/ptx.h"),  # in place of PTX, on a CPU
    "kernels_cuda/ffi/": (RULES, FFI, CUDA),
    "kernels_cuda/host/": (RULES, CUDA, SIM),
    "kernels_cuda/bench/": (CUDA, "kernels_cuda/ffi/"),
    "specdec_hal/models/native/": (FFI, "kernels_cpu/threads.h"),
}
"""What the C++ of a room may include besides its own. The emulator stands alone: it compiles kernels of others."""


def _included(path: Path, name: str) -> str:
    """The header from the repository's root. One that the build makes need not be there."""
    beside = (path.parent / name).resolve()
    if beside.is_file():
        return beside.relative_to(ROOT).as_posix()
    return f"{SIM if name.startswith('xpu') else 'kernels_common/'}include/{name}"


@pytest.mark.parametrize("room", [room for room in ROOMS if room.startswith(tuple(FOLDERS))])
def test_includes_run_in_one_direction(room: str) -> None:
    sources = [path for path in (ROOT / room).rglob("*") if path.suffix in {*SUFFIXES, ".cpp"}]
    included = [(path, name) for path in sources for name in re.findall(r'^#include "(.*)"', path.read_text(), re.M)]
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name in included
        if not _included(path, name).startswith((room, *ROOMS[room]))
    ]
    assert included and not wrong, "\n".join(wrong)


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


def test_tests_on_a_gpu_need_few_packages() -> None:
    """Those that the head of tools/gpu_check.sh names: such a machine may have no others."""
    paths, seen, needed = sorted((ROOT / "tests/cuda").glob("*.py")), set[Path](), set[str]()
    while paths:
        path = paths.pop()
        if path in seen:
            continue
        seen.add(path)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tests."):
                folder = ROOT / str(node.module).replace(".", "/")
                files = [folder.with_suffix(".py"), *(folder / f"{name.name}.py" for name in node.names)]
                paths += [file for file in files if file.is_file()]
            elif isinstance(node, ast.ImportFrom):
                needed.add(str(node.module).split(".")[0])
            elif isinstance(node, ast.Import):
                needed |= {name.name.split(".")[0] for name in node.names}
    allowed = {"specdec_hal", "specdec_hal_conformance", "numpy", "pytest", "hypothesis", "torch"}
    assert len(seen) > 30 and needed - sys.stdlib_module_names <= allowed


NAMEDTUPLE = ("_asdict", "_fields", "_make", "_replace")
"""Public, as Python documents them."""


def _private(name: object) -> bool:
    if not isinstance(name, str) or name in NAMEDTUPLE:
        return False
    return name.isidentifier() and name[0] == "_" and name[:2] != "__"


def _private_names(source: str) -> dict[str, int]:
    """Private names of other objects and modules, and a line of each."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(source)):
        names: list[Any] = []
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if own else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call):  # monkeypatch.setattr("package.module._name", ...)
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            texts = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
            reflects = called in ("getattr", "setattr", "delattr", "setitem", "object", "patch")
            names = [part for text in texts for part in text.split(".")] if reflects else []
        found |= {name: getattr(node, "lineno", 0) for name in names if _private(name)}
    return found


def test_tests_use_what_is_public() -> None:
    """A private name of the package in a test hides what a user sees, and keeps the name from changing."""
    package = [*(ROOT / "specdec_hal").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]
    own = re.compile(r"(?:(?<![\w.])|self\.|cls\.)(_[A-Za-z]\w*)")
    defined = {name for path in package for name in own.findall(path.read_text())}
    assert len(defined) > 1000
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if not defined.isdisjoint(re.findall(r"\b_[A-Za-z]\w*", text := path.read_text()))
        for name, line in _private_names(text).items()
        if name in defined
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("engine._live", ["_live"]), ("self._live", []), ("from package import _live", ["_live"]),
        ("monkeypatch.setattr('package.module._live', 3)", ["_live"]), ("getattr(engine, '_live')", ["_live"]),
        ("engine.__dict__", []),
    ],
)  # fmt: skip
def test_private_names_are_found(source: str, names: list[str]) -> None:
    assert list(_private_names(source)) == names
