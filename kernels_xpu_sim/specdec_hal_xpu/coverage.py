"""Lines of kernels that ran on some core, by the compiler's counts (gcov)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_hal.errors import BackendUnavailableError, CompileError
from specdec_hal_xpu.cc import toolchain


@dataclass(frozen=True)
class FileCoverage:
    """A source file's number of lines with code, and those that no core ran."""

    file: str
    lines: int
    missed: list[int]


def read_coverage(folder: Path) -> list[FileCoverage]:
    """Coverage by file of the kernels and their headers with counts in `folder`.

    A template's line has run if it has in any instance.

    Raises:
        CompileError: no counts: nothing ran, or not compiled for coverage.
        BackendUnavailableError: gcov, part of g++, is missing.
    """
    notes = sorted(folder.glob("*.gcno"))
    if not notes or not any(folder.glob("*.gcda")):
        raise CompileError(f"expected counts in {folder}, found none; use xpu cc --coverage, then run the program")
    tool = os.environ.get("GCOV", "gcov")
    if shutil.which(tool) is None:
        raise BackendUnavailableError(f"expected gcov, found no {tool}; install g++ in full, or set GCOV to another")
    counts: dict[str, dict[int, int]] = {}
    emulator = str(toolchain().include)
    for note in notes:
        command = [tool, "--json-format", "--stdout", note.name]
        out = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
        for document in map(json.loads, out.splitlines()):
            base = document["current_working_directory"]
            for file in document["files"]:
                path = os.path.join(base, file["file"])
                if path.startswith((emulator, "/usr/")) or not os.path.isfile(path):
                    continue
                lines = counts.setdefault(os.path.normpath(path), {})
                for line in file["lines"]:
                    lines[line["line_number"]] = lines.get(line["line_number"], 0) + line["count"]
    return [
        FileCoverage(path, len(lines), sorted(line for line, count in lines.items() if count == 0))
        for path, lines in sorted(counts.items())
    ]


def to_text(files: Sequence[FileCoverage]) -> str:
    """A line for each file, then the lines that no core ran."""
    parts = []
    for one in files:
        text = Path(one.file).read_text(encoding="utf-8", errors="replace").splitlines()
        parts.append(f"{os.path.relpath(one.file)}: {one.lines - len(one.missed)} of {one.lines} lines ran")
        parts += [f"  {line}: {text[line - 1].strip()}" for line in one.missed]
    return "\n".join(parts)
