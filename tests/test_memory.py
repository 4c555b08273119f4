"""What is free, and the refusal of what needs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_hal import memory
from specdec_hal.errors import InsufficientMemoryError
from specdec_hal.memory import as_text, host_free, require


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemFree: 5 kB\nMemAvailable: 64 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "cgroup")
    (tmp_path / "cgroup" / "memory").mkdir(parents=True)
    return tmp_path


def group(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_machine(machine: Path) -> None:
    assert host_free() == 64 << 10


def test_group_of_version_2(machine: Path) -> None:
    group(
        machine / "cgroup", memory__max="5000\n", memory__current="3000\n", memory__stat="anon 1\ninactive_file 400\n"
    )
    assert host_free() == 2400
    group(machine / "cgroup", memory__max="max\n")
    assert host_free() == 64 << 10


def test_group_of_version_1(machine: Path) -> None:
    folder = machine / "cgroup" / "memory"
    group(folder, memory__limit_in_bytes="5000\n", memory__usage_in_bytes="6000\n")
    assert host_free() == 0
    group(folder, memory__stat="inactive_file 1\ntotal_inactive_file 1500\n")
    assert host_free() == 500


def test_nobody_knows(machine: Path) -> None:
    (machine / "meminfo").unlink()
    assert host_free() is None


def test_this_machine() -> None:
    free = host_free()
    assert free is not None and 1 << 20 < free < 1 << 50


def test_refusal() -> None:
    parts = {"small": 10, "nothing": 0, "large": 3 << 30}
    with pytest.raises(MemoryError) as caught:
        require("x", parts, "cuda:1", 1 << 20, "buy more")
    assert isinstance(caught.value, InsufficientMemoryError)
    assert str(caught.value) == (
        "x: expected at most the 1.0 MiB that are free on cuda:1, got a need of 3.0 GiB "
        "(large 3.0 GiB, small 10 bytes); buy more"
    )
    require("x", parts, "cpu", (3 << 30) + 10, "")
    require("x", parts, "cpu", None, "")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), ((1 << 20) - 1, "1048575 bytes"), (1 << 20, "1.0 MiB"), (5 << 29, "2.5 GiB")]
)
def test_text(size: int, text: str) -> None:
    assert as_text(size) == text
