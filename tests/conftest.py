"""Settings for all tests: reproducible property tests, and skips that name what is absent."""

from __future__ import annotations

import gc
import importlib.util
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

# The same examples everywhere: a failure on one machine is a failure on all. Deadlines would be timing asserts.
settings.register_profile("specdec_hal", deadline=None, derandomize=True)
settings.load_profile("specdec_hal")


ROOT = Path(__file__).parents[1]
_NEEDED = {
    "torch": ("torch", "PyTorch is not installed (pip install 'specdec-hal[torch]')"),
    "gguf": ("xllamacpp", "llama.cpp is not installed (pip install 'specdec-hal[gguf]')"),
    "paddleformers": ("paddleformers", "paddleformers is not installed (docs/use/models.md says how)"),
    "ray": ("ray", "Ray is not installed (pip install 'specdec-hal[ray]')"),
    "engine": ("vllm", "vLLM is not installed (make engine-test installs it)"),
}


@pytest.fixture
def anyio_backend() -> str:
    """The loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once an AsyncEngine that closes waits for its thread."""
    event, join = threading.Event(), threading.Thread.join

    def watched(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "specdec-engine":
            event.set()
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", watched)
    return event


@pytest.fixture(scope="module")
def little_garbage() -> Iterator[None]:
    """Freeze existing objects for tests that collect garbage."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


PARTS = ("specdec_hal_xpu", "specdec_hal_conformance", "specdec_hal_fastdeploy")
_ABSENT = [part for part in PARTS if importlib.util.find_spec(part) is None]
"""Parts that were deleted from this tree: tests that use them are left out."""
_left_out = set[Path]()


def _uses_absent(path: Path) -> bool:
    """Whether a test file imports an absent part, by itself or through other files of tests."""
    source = path.read_text()
    if any(re.search(rf"^ *(from|import) {part}\b", source, re.M) for part in _ABSENT):
        return True
    for module, names in re.findall(r"^from (tests[\w.]*) import ([\w, ]+)", source, re.M):
        own = ROOT.joinpath(*module.split("."))
        files = [own.with_suffix(".py")] if own.with_suffix(".py").is_file() or not own.is_dir() else []
        files += [own / f"{name}.py" for name in names.split(", ") if (own / f"{name}.py").is_file()]
        if any(not one.is_file() or _uses_absent(one) for one in files):
            return True
    return False


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if _ABSENT and collection_path.suffix == ".py" and _uses_absent(collection_path):
        _left_out.add(collection_path)
        return True
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left_out:
        terminalreporter.write_line(f"{len(_left_out)} test files use {', '.join(_ABSENT)}, not in this tree: left out")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--wheel", metavar="FILE", help="the wheel that tests/wheel installs and tests")
    parser.addoption(
        "--part", action="append", default=[], metavar="MARKER:I/N",
        help="of the tests with this marker, only those whose names hash to I modulo N",
    )  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for part in config.getoption("part"):
        marker, i, n = re.fullmatch(r"(\w+):(\d+)/(\d+)", part).groups()
        others = [
            item for item in items if item.get_closest_marker(marker) and crc32(item.nodeid.encode()) % int(n) != int(i)
        ]
        config.hook.pytest_deselected(items=others)
        gone = set(others)
        items[:] = [item for item in items if item not in gone]
    for marker, (module, reason) in _NEEDED.items():
        if importlib.util.find_spec(module) is None:
            for item in items:
                if item.get_closest_marker(marker):
                    item.add_marker(pytest.mark.skip(reason=reason))
