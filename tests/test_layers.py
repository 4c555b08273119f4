"""Layers in one direction: modules import each other without a circle, and no room imports what stands above it."""

from __future__ import annotations

import importlib.util
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("rooms", ROOT / "tools" / "rooms.py")
assert _spec is not None and _spec.loader is not None
rooms = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rooms)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle() -> None:
    known = rooms.modules()
    assert len(known) > 100 and "specdec_hal.backends.reference.backend" in known
    graph: dict[str, set[str]] = {name: set() for name in known}
    for name, other in rooms.arrows(known):
        graph[name].add(other)
    found = circle(graph)
    assert not found, " imports ".join(reversed(found))


@pytest.mark.parametrize(
    "back", ["import pkg.a", "from pkg import a", "from pkg.a import x", "def f():\n    from pkg.a import x"]
)
def test_a_circle_is_found(back: str) -> None:
    known = dict.fromkeys(("pkg.a", "pkg.b"), Path())
    sources = {"pkg.a": "if TYPE_CHECKING:\n    from pkg.b import y", "pkg.b": back}
    assert set(circle({name: rooms.imported(source, known) for name, source in sources.items()})) == {"pkg.a", "pkg.b"}


def test_every_room_has_a_floor() -> None:
    known = rooms.modules()
    assert {rooms.room(name) for name in known} - {"", *rooms.PARTS} == rooms.FLOORS.keys()
    top = {path.stem for path in (ROOT / "specdec_hal").iterdir() if path.suffix == ".py"}
    assert top == {"__init__", "text", "errors", "version", "request", "__main__", "conformance", "xpu"}


def test_no_arrow_points_up() -> None:
    assert not [f"{name} -> {other}" for name, other in rooms.arrows(rooms.modules()) if rooms.points_up(name, other)]


@pytest.mark.parametrize(
    ("name", "other", "up"),
    [
        ("specdec_hal.runner.plan", "specdec_hal.engine.llm", True),
        ("specdec_hal.engine.llm", "specdec_hal.runner.plan", False),
        ("specdec_hal.engine.shadow_check", "specdec_hal_conformance.suite", True),
        ("specdec_hal_conformance.suite", "specdec_hal.cli.output", False),
        ("specdec_hal_conformance.suite", "specdec_hal_xpu.backend", True),
    ],
)
def test_which_arrows_point_up(name: str, other: str, up: bool) -> None:
    assert rooms.points_up(name, other) is up


def test_the_map_in_contributing() -> None:
    assert rooms.table() in (ROOT / "CONTRIBUTING.md").read_text(), "run tools/rooms.py --map and paste its table"
