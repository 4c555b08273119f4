"""What `mkdocs build` does to pages: plots and tables of records are drawn, the name of a record becomes a link to it,
and a link to a file outside of docs/ its path.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tools")]

import readme  # noqa: E402
import site_plots  # noqa: E402
import site_tables  # noqa: E402


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Relative links that leave docs/, as path of the repository; a build fails on one that leads nowhere."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2].partition("#")[0]))
        if re.match(r"[a-z]+:|#", link[2]) or target.startswith("docs/"):
            return link[0]
        if not (ROOT / target).exists():
            raise PluginError(f"{page.file.src_uri}: no such file: {target}")
        return readme.named(link[1], target)

    def record(name: re.Match[str]) -> str:
        known = (site_plots.RESULTS / f"{name[1]}.json").exists()
        return f'<a href="{numbers}{name[1]}.json"><code>{name[1]}.json</code></a>' if known else name[0]

    numbers = _numbers(page)
    markdown = re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", shown, markdown)
    markdown = re.sub(r"(?<!\[)`(?:benchmarks/)?(?:results/)?([\w.-]+)\.json`", record, markdown)
    return re.sub(r"<!-- table: ([\w-]+) -->", lambda found: site_tables.tabled(found[1], numbers), markdown)


def _numbers(page: Any) -> str:
    """The way from a page to the folder of records."""
    return posixpath.relpath("numbers", page.url or ".") + "/"


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Plots in their places; roles of reStructuredText in docstrings are code."""
    html = re.sub(r"<!-- plot: ([\w-]+) -->", lambda found: site_plots.drawn(found[1], _numbers(page)), html)
    html = re.sub(r":(?:class|func|attr|meth|mod):<code>~?", "<code>", html)
    return re.sub(r"<code>([\w.]+) &lt;[\w.]+&gt;</code>", r"<code>\1</code>", html)
