#!/usr/bin/env python3
"""Let a source tree that is not installed run as if it were: PYTHONPATH=$(python3 tools/tree_path.py).

Prints the folders with this project's packages, and one with the metadata that pip would write, which announces
commands and backends of the parts. Native libraries are looked for in specdec_hal/lib.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

from version import version

ROOT = Path(__file__).resolve().parents[1]


def write_metadata(root: Path) -> Path:
    """Write the metadata of the parts whose folders are in `root`; returns the folder for PYTHONPATH."""
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())
    name, now = project["project"]["name"], version(root)
    folder = root / "build" / "tree" / f"specdec_hal-{now}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {now}\n")
    here = {Path(package).name for package in packages(project) if (root / package).is_dir()}
    lines = []
    for group, entries in project["project"]["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {target}" for name, target in entries.items() if target.partition(".")[0] in here]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder.parent


def packages(project: dict[str, Any]) -> list[str]:
    """The folders of the packages."""
    found: list[str] = project["tool"]["scikit-build"]["wheel"]["packages"]
    return found


def tree_path(root: Path = ROOT) -> str:
    """The value of PYTHONPATH."""
    metadata = write_metadata(root)
    project = tomllib.loads((root / "pyproject.toml").read_text())
    parents = dict.fromkeys(str((root / package).parent) for package in packages(project))
    return os.pathsep.join([*parents, str(metadata)])


if __name__ == "__main__":
    print(tree_path())
