"""Recorded runs of `specdec-hal bench` on a GPU as a page of the site.

``python benchmarks/gpu_summary.py benchmarks/results/h200-*.json``; ``--all`` for every row
instead of those that have a target.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

_HEAD = """# Performance on a GPU

Microseconds, medians of 60 replays (15 with `--quick`), of an op inside a CUDA graph: 20 copies for *warm*, one for
*cold*, before which 512 MB are rewritten so that the L2 cache holds nothing of its tensors. The *floor* is what the
bytes that must move take at the copy bandwidth of the same run, plus an empty kernel. Before and after it is timed,
each op's outputs are poisoned and compared with the reference: a wrong kernel gets no figure. *Targets* are what the
project set out to reach; a **bold** figure misses its own. All rows, with minimum and percentiles, are in the JSON
files.

This page is written by `benchmarks/gpu_summary.py` from the documents of `benchmarks/gpu_bench.sh`."""


def cells(row: dict[str, Any], name: str) -> list[str]:
    """Median, floor and target, warm or cold."""
    median, floor, target = row[f"{name}_us"]["median"], row.get(f"{name}_floor_us"), row["target_us"][name]
    missed = target is not None and median > target
    return [
        f"**{median:.1f}**" if missed else f"{median:.1f}",
        "" if floor is None else f"{floor:.1f}",
        "" if target is None else f"{target:g}",
    ]


def section(path: Path, document: dict[str, Any], everything: bool) -> list[str]:
    """A document: where it was measured, and its rows."""
    machine, floor, host = document["machine"], document["floor"], document["host_us"]
    lines = [
        "",
        f"## {', '.join(dict.fromkeys(row['suite'] for row in document['rows']))}",
        "",
        f"`{document['command']}`: `{path.name}`, {machine['gpu']}, driver {machine['driver']}, commit "
        f"{document['commit'][:10]}. Copies move {floor['copy_gb_per_s']:,.0f} GB/s, read and written; an empty kernel "
        f"takes {floor['empty_kernel_warm_us']:.2f} us warm, {floor['empty_kernel_cold_us']:.2f} cold. On the host a "
        f"bound call takes {host['bound']['median']:.1f} us, a bare launch {host['launch']['median']:.1f}, an unbound "
        f"call {host['unbound']['median']:.1f}.",
        "",
        "| case | warm | floor | target | cold | floor | target |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        if "error" in row:
            lines.append(f"| {row['label']} | {row['error']} | | | | | |")
        elif everything or any(target is not None for target in row["target_us"].values()):
            lines.append("| " + " | ".join([row["label"], *cells(row, "warm"), *cells(row, "cold")]) + " |")
    return lines


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every row, not only those with a target")
    parser.add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    print(_HEAD)
    for path in args.files:
        document = json.loads(path.read_text())
        if "rows" in document:  # other results of the same machine have another form
            print("\n".join(section(path, document, args.all)))


if __name__ == "__main__":
    main()
