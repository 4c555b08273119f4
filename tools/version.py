"""The version of a build, from the tag: a provider of dynamic metadata for scikit-build-core (pyproject.toml).

A commit with the tag vX.Y.Z is X.Y.Z. N commits later the version is X.Y.(Z+1).devN, and before the first tag it is
FIRST.devN. A source archive has the version that its PKG-INFO names. A copy without history, such as a Docker
context, has FIRST.dev0, or what SPECDEC_HAL_BUILD_VERSION says.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIRST = "0.2.0"
"""The version that the first tag will have."""


def _git(root: Path, *words: str) -> str | None:
    """What git prints, or None if it fails or is absent."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def version(root: Path = ROOT) -> str:
    """The version of the source tree at `root`, without a local part, which no index takes."""
    if given := os.environ.get("SPECDEC_HAL_BUILD_VERSION"):
        return given
    if (root / "PKG-INFO").exists():
        return str(HeaderParser().parsestr((root / "PKG-INFO").read_text())["Version"])
    if not (root / ".git").exists():  # a repository above it is another project's
        return f"{FIRST}.dev0"
    described = _git(root, "describe", "--tags", "--long", "--dirty", "--match", "v[0-9]*.[0-9]*.[0-9]*")
    if described is None:
        return f"{FIRST}.dev{_git(root, 'rev-list', '--count', 'HEAD') or 0}"
    found = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)-(\d+)-g[0-9a-f]+(-dirty)?", described)
    if found is None:
        raise ValueError(f"expected a tag vX.Y.Z, got {described!r} from git describe in {root}")
    major, minor, patch, commits = map(int, found.groups()[:4])
    if commits == 0 and not found[5]:
        return f"{major}.{minor}.{patch}"
    return f"{major}.{minor}.{patch + 1}.dev{commits}"


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """The field `version`, and for `pinned` the requirement of exactly this version of those distributions."""
    now = version()
    fields: dict[str, Any] = {"version": now}
    if "pinned" in settings:
        fields["dependencies"] = [f"{name}=={now}" for name in settings["pinned"]]
    return fields


if __name__ == "__main__":
    print(version())
