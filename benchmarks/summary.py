"""A recorded run of `decode.py` as the Markdown tables of docs/numbers/engine.md.

``python benchmarks/summary.py benchmarks/results/NAME.json``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def table(figures: dict[str, Any]) -> str:
    """One row per prompt and kind of sampling."""
    head = "| prompts | naive tokens/s | n-gram tokens/s | speed-up | tokens per step | acceptance | identical |"
    rows = [head, "|---|---|---|---|---|---|---|"]
    for name, figure in figures.items():
        if "naive" not in figure:
            continue
        naive, spec = figure["naive"], figure["spec"]
        cells = [
            name,
            f"{naive['tokens_per_second']:.0f}",
            f"{spec['tokens_per_second']:.0f}",
            f"{figure['speedup']:.2f}",
            f"{spec['tokens_per_step']:.2f}",
            f"{spec['acceptance_rate']:.2f}",
            "yes" if figure["identical"] else "NO",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Print the tables of a file."""
    recorded = json.loads(Path(sys.argv[1]).read_text())
    figures = recorded["figures"]
    start, imported = figures["start"], figures["import"]
    print(f"{recorded['machine']['cpu']}, Python {recorded['machine']['python']}, commit {recorded['commit'][:10]}\n")
    print(table(figures))
    print(
        f"\nfirst text after {start['seconds_to_first_text']:.1f} s, peak memory {start['peak_rss_gb']:.2f} GB, ",
        end="",
    )
    print(f"`import specdec_hal` {imported['median'] * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
