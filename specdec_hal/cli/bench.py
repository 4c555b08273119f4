"""Measure a backend's ops: each checked against the reference first, then timed warm and cold, beside the floor.

On a GPU a time is that of one op inside a CUDA graph, replayed; the floor is what its bytes take at the copy bandwidth
of the same run, and one empty kernel. On a CPU it is wall time.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from specdec_hal.bench import SUITES
from specdec_hal.cli.compare import show
from specdec_hal.cli.output import Output, output_file, writing
from specdec_hal.cli.tables import Rows
from specdec_hal.engine.progress import progress_bar

HELP = "measure a backend's ops"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Suites, backend, and output files."""
    what = "; ".join(f"{name}: {text}" for name, text in SUITES.items())
    parser.add_argument("--suite", metavar="NAME", action="append", default=[], help=f"may be repeated ({what})")
    parser.add_argument("--backend", metavar="NAME", default="auto", help="default: the best available")
    parser.add_argument(
        "--only", metavar="TEXT", action="append", default=[],
        help="only cases whose group or label contains this; may be repeated",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer cases and repetitions: a rough look")
    parser.add_argument("--out", metavar="FILE", type=output_file, help="write the JSON document to this file too")
    parser.add_argument(
        "--lock",
        metavar="FILE",
        type=output_file,
        help="hold this lock while using the device, so that other commands can prepare inputs meanwhile",
    )
    parser.add_argument("--read", metavar="FILE", type=Path, help="print a file of --out or compare --record")


def run(args: argparse.Namespace, output: Output) -> int:
    """Measure and print; 1 if a kernel's result is wrong."""
    from specdec_hal.bench.document import is_comparison, read_document

    document = _measured(args) if args.read is None else read_document(args.read)
    if output.json:
        output.document(document)
    elif is_comparison(document):
        show(document, output)
    else:
        _print(document, output)
    return int(any("error" in row for row in document.get("rows", ())))


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    from specdec_hal.bench.runner import run_suites
    from specdec_hal.plugin import registry

    backend = registry.get_backend(args.backend)
    suites = args.suite or list(SUITES)
    command = ["specdec-hal", "bench", *(part for suite in suites for part in ("--suite", suite))]
    command += ["--backend", backend.name, *(part for text in args.only for part in ("--only", shlex.quote(text)))]
    command += ["--quick"] if args.quick else []
    with progress_bar("measuring", None, "cases") as show:

        def on_row(document: dict[str, Any], total: int) -> None:
            if args.out is not None:  # after every row: measured rows are kept if a later one fails
                with writing(args.out):
                    args.out.write_text(json.dumps(document) + "\n")
            show(advance=1, total=total, description=document["rows"][-1]["label"])

        alone = nullcontext if args.lock is None else partial(_locked, args.lock)
        return run_suites(suites, backend, command, quick=args.quick, only=args.only, alone=alone, on_row=on_row)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, which ends with the process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _print(document: dict[str, Any], output: Output) -> None:
    for name in ("floor", "host_us"):
        if name in document:
            figures = {k: v["median"] if isinstance(v, dict) else v for k, v in document[name].items()}
            output.console.print(
                f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()), soft_wrap=True
            )
    columns = ["suite", "group", "case", "warm"]
    if "floor" in document:  # on a GPU, for which the targets are
        columns += ["floor", "target", "cold", "floor", "target"]
    rows = Rows("microseconds, median", columns, [n for n in (1, 0, 8, 5, 7, 6) if n < len(columns)])
    for row in document["rows"]:
        cells = [row["suite"], row["group"], row["label"]]
        if "error" in row:
            rows.add_row(*cells, "failed", style="red")
            continue
        for name in ("warm", "cold"):
            time = row.get(f"{name}_us", {}).get("median")
            cells += [_text(time), _text(row.get(f"{name}_floor_us")), _text(row["target_us"][name])]
        rows.add_row(*cells[: len(columns)])
    rows.print(output.console)
    for row in document["rows"]:
        if "error" in row:
            output.console.print(f"FAILED {row['label']}: {row['error']}", style="red", soft_wrap=True)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
