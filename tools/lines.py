#!/usr/bin/env python3
"""Lines per part and folder, beside the budgets of budgets.toml; status 1 if a part is above its own.

Counts the lines of tracked text files, comments and blank lines too; records, data and pictures do not count.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
DATA = {".json", ".jsonl", ".csv", ".xz", ".png", ".svg", ".safetensors", ".gguf", ".npz"}


def tracked() -> list[str]:
    """The files that count."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and Path(name).suffix not in DATA]
    return [name for name in names if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


def part_of(name: str, parts: dict[str, list[str]]) -> str:
    """The part that a file belongs to."""
    for part, paths in parts.items():
        if any(name == path or name.startswith(f"{path}/") for path in paths):
            return part
    return "core"


def main() -> int:
    """Print."""
    budgets = tomllib.loads((ROOT / "budgets.toml").read_text())
    parts = {name: list(budget.get("paths", ())) for name, budget in budgets.items()}
    lines: dict[str, Counter[str]] = {name: Counter() for name in budgets}
    for name in tracked():
        count = len((ROOT / name).read_text(errors="replace").splitlines())
        lines[part_of(name, parts)][name.partition("/")[0] if "/" in name else "(top)"] += count
    above = [part for part, folders in lines.items() if folders.total() > budgets[part]["lines"]]
    for part, folders in lines.items():
        note = "  ABOVE ITS BUDGET" if part in above else ""
        print(f"{part:<12} {folders.total():>7} of {budgets[part]['lines']}{note}")
        for folder, count in folders.most_common():
            print(f"  {folder:<24} {count:>7}")
    print(f"{'all':<12} {sum(folders.total() for folders in lines.values()):>7}")
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
