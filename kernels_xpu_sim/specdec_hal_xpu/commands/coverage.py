"""List the lines of kernels that no core ran.

  specdec-hal xpu cc --coverage scale.xpu host.cpp -o scale && ./scale && specdec-hal xpu coverage scale

Counts add up over the runs of the program, until it is compiled again.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from specdec_hal.cli.output import Output

HELP = "list the lines of kernels that no core ran"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The program."""
    parser.add_argument("program", metavar="PROGRAM", type=Path, help="program built by xpu cc --coverage")


def run(args: argparse.Namespace, output: Output) -> int:
    """Print; always 0."""
    from specdec_hal_xpu.cc import Build
    from specdec_hal_xpu.coverage import read_coverage, to_text

    files = read_coverage(Build(sources=(), output=args.program).counts)
    if output.json:
        output.document({"files": [asdict(one) for one in files]})
    else:
        print(to_text(files))
    return 0
