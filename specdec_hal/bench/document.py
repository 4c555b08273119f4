"""Read documents of `specdec-hal bench --out` and `compare --json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_hal.errors import ConfigError
from specdec_hal.text import clip, one_line

_SUITES = ("backend", "commit", "machine", "rows"), ("suite", "group", "label")
_COMPARED = ("identical", "repeat", "backend", "differences")
_SIDES = (*_COMPARED, "method", "speedup", "naive", "spec"), ()
_METHODS = (
    (*_COMPARED, "strategy", "temperature", "rows"),
    ("prompt", "method", "tokens", "seconds", "speedup", "tokens_per_step", "acceptance_by_position"),
)
"""Keys of each kind of document, and of each of its rows."""


def is_comparison(document: Mapping[str, Any]) -> bool:
    """Whether it was written by `compare`; else by `bench`."""
    return "identical" in document


def read_document(path: Path) -> dict[str, Any]:
    """A document of `bench --out` or `compare --json`, or one inside a recorded result.

    ConfigError for any other file; it names the command of a recorded result.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected a JSON document, got {one_line(error)}; name another file") from error
    recorded = found if isinstance(found, dict) else {}
    document = recorded.get("figures", recorded)
    document = document if isinstance(document, dict) else {}
    if missing := _missing(document):
        got = f"{missing}: no such key"
        if "rows" not in recorded and (command := recorded.get("command")):
            got = f"a result of `{clip(str(command), 200)}`"
        elif not {"rows", "identical"} & set(document):
            got = f"the keys {clip(', '.join(recorded), 200) or 'of no object'}"
        raise ConfigError(f"{path}: expected a document of `bench --out` or `compare --json`, got {got}")
    return document


def _missing(document: Mapping[str, Any]) -> str | None:
    """The first key that is not there."""
    with_rows = _METHODS if "rows" in document else _SIDES
    keys, of_rows = with_rows if is_comparison(document) else _SUITES
    rows = document.get("rows")
    inside = (
        f"rows.{number}.{key}"
        for number, row in enumerate(rows if isinstance(rows, list) else ())
        for key in of_rows
        if not isinstance(row, dict) or key not in row
    )
    return next((key for key in keys if key not in document), None) or next(inside, None)
