"""Processes that a program has started, and whether they have ended."""

from __future__ import annotations

from pathlib import Path


def descendants(process: int, name: str) -> list[int]:
    """The processes below a process whose command line has `name`."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            lines[int(folder.name)] = (folder / "cmdline").read_text()
        except OSError:
            continue  # it has ended

    def is_below(number: int) -> bool:
        while number in parents and number != process:
            number = parents[number]
        return number == process

    return sorted(number for number, line in lines.items() if number != process and name in line and is_below(number))


def gone(pid: int) -> bool:
    """Whether a process has ended, even if it is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
