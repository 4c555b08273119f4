"""The README as an index shows it: a provider of dynamic metadata for scikit-build-core (pyproject.toml).

An index has no other file of the repository. So a relative link becomes its text and the file's path, as on the site,
and pictures are left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def named(text: str, path: str) -> str:
    """What stands for a link whose target cannot be reached."""
    return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"


def described(markdown: str, folder: str) -> str:
    """`markdown`, a file of `folder` of the repository, without relative links outside of its blocks of code."""

    def shown(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        if target is None or re.match(r"[a-z]+:|#", target):
            return found[0]
        return "" if picture else named(text, posixpath.normpath(posixpath.join(folder, target.partition("#")[0])))

    return re.sub(r"```.*?```|(!?)\[([^\]]+)\]\(([^)\s]+)\)", shown, markdown, flags=re.S)


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """The field `readme`, from the file `path` of the repository."""
    path = Path(settings["path"])
    return {"readme": {"content-type": "text/markdown", "text": described((ROOT / path).read_text(), str(path.parent))}}
