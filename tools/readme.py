"""The README as an index shows it: a provider of dynamic metadata for scikit-build-core (pyproject.toml).

An index has no other file of the repository, so relative links lead nowhere there. With `Repository` in
`[project.urls]` they lead to the file at the version's tag. Without, the file's path stands in brackets after the
link's text, and pictures are left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def named(text: str, path: str) -> str:
    """What stands for a link where its target cannot be reached: its text and the file's path."""
    return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"


def described(markdown: str, folder: str, repository: str | None, tag: str) -> str:
    """`markdown`, a file of `folder` of the repository, without relative links."""

    def shown(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        path, sharp, place = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        if repository is not None:
            return f"{picture}[{text}]({repository}/{'raw' if picture else 'blob'}/{tag}/{path}{sharp}{place})"
        return "" if picture else named(text, path)

    # Blocks of code are taken first, and stay.
    pattern = r"```.*?```|(!?)\[([^\]]+)\]\(([^)\s]+)\)"
    return re.sub(pattern, lambda found: found[0] if found[3] is None else shown(found), markdown, flags=re.S)


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """The field `readme`, from the file `path` of the repository."""
    path, urls = Path(settings["path"]), project.get("urls", {})
    text = described((ROOT / path).read_text(), str(path.parent), urls.get("Repository"), f"v{project['version']}")
    return {"readme": {"content-type": "text/markdown", "text": text}}
