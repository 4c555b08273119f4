"""Processes that a program has started, and whether they have ended."""

from __future__ import annotations

from pathlib import Path


def descendants(process: int, name: str) -> list[int]:
    """The processes below a process whose command line has `name`, in the order in which they started.

    Numbers do not tell the order: they start again from small ones after the largest.
    """
    parents: dict[int, int] = {}
    started: dict[int, int] = {}
    lines: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            number, fields = int(folder.name), (folder / "stat").read_text().rpartition(")")[2].split()
            parents[number], started[number] = int(fields[1]), int(fields[19])
            lines[number] = (folder / "cmdline").read_text()
        except OSError:
            continue  # it has ended

    def is_below(number: int) -> bool:
        while number in parents and number != process:
            number = parents[number]
        return number == process

    found = (number for number, line in lines.items() if number != process and name in line and is_below(number))
    return sorted(found, key=started.__getitem__)


def gone(pid: int) -> bool:
    """Whether a process has ended, even if it is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
