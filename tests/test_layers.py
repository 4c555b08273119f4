"""Layers in one direction: the modules of the package import each other without a circle, lazily or not."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "specdec_hal"


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; `specdec_hal/backends` is a symlink to `backends`."""
    files = [(path, path.relative_to(ROOT).parts) for path in (ROOT / PACKAGE).rglob("*.py")]
    files += [(path, (PACKAGE, *path.relative_to(ROOT).parts)) for path in (ROOT / "backends").rglob("*.py")]
    found = {}
    for path, parts in files:
        name = ".".join(parts).removesuffix(".py").removesuffix(".__init__")
        found[name] = path
    return found


def imported(source: str, known: dict[str, Path]) -> set[str]:
    """A module's imports from the package: at its top, in functions, and for type checkers."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "the package imports absolutely"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in known else str(node.module) for name in full}
    return names & known.keys()


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle() -> None:
    known = modules()
    assert len(known) > 100 and f"{PACKAGE}.backends.reference.backend" in known
    # The package itself resolves its names on first use; its imports for type checkers do not count.
    graph = {name: imported(path.read_text(), known) - {name} for name, path in known.items() if name != PACKAGE}
    found = circle(graph)
    assert not found, " imports ".join(reversed(found))


@pytest.mark.parametrize(
    "back", ["import pkg.a", "from pkg import a", "from pkg.a import x", "def f():\n    from pkg.a import x"]
)
def test_a_circle_is_found(back: str) -> None:
    known = dict.fromkeys(("pkg.a", "pkg.b"), Path())
    sources = {"pkg.a": "if TYPE_CHECKING:\n    from pkg.b import y", "pkg.b": back}
    assert set(circle({name: imported(source, known) for name, source in sources.items()})) == {"pkg.a", "pkg.b"}


ROOMS = """
    text errors tensors ops plugin config backends models structured proposers runner parallel loop conformance
    engine serve batch compat bench xpu cli __main__
"""
FLOORS = {room: floor for floor, room in enumerate(ROOMS.split())}
"""The rooms of the package, the ground floor first: none imports what stands above it."""


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def at_run_time(source: str) -> str:
    """Without what only type checkers import: an annotation may name what is built above."""
    tree = ast.parse(source)
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
    ]
    return ast.unparse(tree)


def test_every_room_has_a_floor() -> None:
    assert {room(name) for name in modules()} - {""} == FLOORS.keys()
    top = {path.name for path in (ROOT / PACKAGE).iterdir() if path.suffix == ".py"}
    assert top == {"__init__.py", "__main__.py", "text.py", "errors.py"}


def test_no_room_imports_what_stands_above_it() -> None:
    known = modules()
    up = {
        f"{name} -> {other}"
        for name, path in known.items()
        for other in imported(at_run_time(path.read_text()), known)
        if name != PACKAGE and other != PACKAGE and FLOORS[room(name)] < FLOORS[room(other)]
    }
    assert not up
