"""The support matrix of backends, from reports of the suite.

    specdec-hal conformance --backend NAME --json > NAME.json
    python -m specdec_hal_conformance.matrix docs/reference/support NAME.json ...

writes docs/reference/support.csv, which the site has as a page. Columns of backends without a report are kept, so that
machines with different hardware can contribute in turn.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specdec_hal.ops import OPS
from specdec_hal.ops.page import table

Cells = dict[tuple[str, str], dict[str, str]]
"""(op, mode) -> backend -> text of the cell."""

PASSES, MISSING = "passes", "-"
HEAD = """# Support matrix

What the [conformance suite](../extend/conformance.md) found, per op and mode: `passes` means every case of level
quick or above, bit for bit; otherwise the backend's own reason for refusing the mode, or what failed. A mode that
a backend lacks is refused by name, never tried.
"""


def cell(row: Mapping[str, Any]) -> str:
    """One row of a report's table as a word: passes, FAILS, known failures, or the reason of the refusal."""
    wrong = row.get("failed", 0) + row.get("unexpected pass", 0)
    if wrong:
        return f"FAILS ({wrong})"
    words = []
    if row.get("passed"):
        words.append(PASSES)
    if row.get("expected failure"):
        words.append(f"known failures ({row['expected failure']})")
    if row.get("refused"):
        reasons = dict.fromkeys(re.sub(r"= \d+ \(largest: (\d+)\)", r"> \1", reason) for reason in row["reasons"])
        words += [f"refused: {reason}" for reason in reasons]
    return "; ".join(words)


def cells_of(document: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """The cells of one report (its JSON document). Results without a mode count in all rows of the op."""
    rows = {(row["op"], row["mode"]): cell(row) for row in document["table"]}
    for op in OPS:
        modes = [mode for name, mode in rows if name == op and mode]
        general = rows.get((op, ""), "")
        if not modes or general == "refused: the op is missing":
            continue
        rows.pop((op, ""), None)
        if general.startswith("FAILS"):
            rows.update({(op, mode): f"{rows[op, mode]}; {general}" for mode in modes})
    return rows


def read(path: Path) -> Cells:
    """A CSV of :func:`write`; empty if there is none."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    return {(row.pop("op"), row.pop("mode")): {name: text for name, text in row.items() if text} for row in table}


def merge(cells: Cells, documents: Iterable[Mapping[str, Any]]) -> Cells:
    """The cells with the columns of these reports replaced."""
    merged = {key: dict(columns) for key, columns in cells.items()}
    for document in documents:
        name = document["backend"]
        for columns in merged.values():
            columns.pop(name, None)
        for key, text in cells_of(document).items():
            merged.setdefault(key, {})[name] = text
    modes = {op: any(name == op and mode for name, mode in merged) for op in OPS}
    whole = {op: merged.pop((op, "")) for op in OPS if modes[op] and (op, "") in merged}
    for (op, _), columns in merged.items():  # a missing op lacks each of its modes
        columns.update({name: text for name, text in whole.get(op, {}).items() if name not in columns})
    order = {op: number for number, op in enumerate(OPS)}
    kept = {key: columns for key, columns in merged.items() if columns}
    return dict(sorted(kept.items(), key=lambda item: (order[item[0][0]], item[0][1])))


def write(target: Path, cells: Cells) -> None:
    """`target` with the suffix .csv."""
    names = _backends(cells)
    with target.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["op", "mode", *names])
        writer.writerows(
            [op, mode, *(columns.get(name, "") for name in names)] for (op, mode), columns in cells.items()
        )


def render(cells: Cells) -> str:
    """The page of the site."""
    names = _backends(cells)
    rows = ((f"`{op}`", mode, *(found.get(name, MISSING) for name in names)) for (op, mode), found in cells.items())
    return f"{HEAD}\n{table(('op', 'mode', *names), rows)}\n"


def _backends(cells: Cells) -> list[str]:
    return sorted({name for columns in cells.values() for name in columns})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="where to, without suffix")
    parser.add_argument("reports", type=Path, nargs="+", help="JSON documents of `specdec-hal conformance --json`")
    args = parser.parse_args()
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in args.reports]
    write(args.target, merge(read(args.target.with_suffix(".csv")), documents))


if __name__ == "__main__":
    main()
