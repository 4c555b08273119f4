"""List the builtins of the dialect: parameters, and where the semantics come from.

  specdec-hal xpu builtins reduce

The source is a public header of the vendor's, a programming guide, public kernels that use the builtin, or a guess.
What exactly is guessed is on the page docs/extend/kunlun.md.
"""

from __future__ import annotations

import argparse

from specdec_hal.cli.output import Output

HELP = "list the builtins that kernels may call, with their sources"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The word."""
    parser.add_argument("word", metavar="WORD", nargs="?", default="", help="only those with this word in their names")


def run(args: argparse.Namespace, output: Output) -> int:
    """Print; always 0.

    Raises:
        CompileError: no name has the word.
    """
    from specdec_hal_xpu.builtins import named

    found = {str(one): one for one in named(args.word)}
    if output.json:
        fields = [
            {"name": one.name, "call": call, "status": one.source.kind, "source": str(one.source)}
            for call, one in found.items()
        ]
        output.document({"builtins": fields})
        return 0
    width = min(max(map(len, found)), 80)
    for call, one in found.items():
        print(f"{call:<{width}}  {one.source}")
    return 0
