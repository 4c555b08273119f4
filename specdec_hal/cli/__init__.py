"""The command ``specdec-hal``: one module per subcommand, each with HELP, `add_arguments` and `run`.

Exit status: 0 done, 1 a check failed, 2 bad input (one line per problem on stderr, with the cure), 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import NoReturn

import specdec_hal
from specdec_hal.cli import backends, bench, compare, conformance, explain, generate, xpu_cc
from specdec_hal.cli.output import Output
from specdec_hal.errors import SpecDecError

PROGRAM = "specdec-hal"
COMMANDS = {
    "generate": generate,
    "compare": compare,
    "backends": backends,
    "explain": explain,
    "conformance": conformance,
    "bench": bench,
    "xpu-cc": xpu_cc,
}


class _Parser(argparse.ArgumentParser):
    """argparse with its errors on one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="Speculative decoding on every kind of hardware.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {specdec_hal.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__, allow_abbrev=False)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.add_argument("--json", action="store_true", help="print one JSON document and nothing else on stdout")
        module.add_arguments(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (None: the process's); gives the exit status."""
    try:
        args = _parser().parse_args(argv)
    except SystemExit as finished:  # --help, --version, or a usage error that argparse has reported
        return int(finished.code or 0)
    output = Output(sys.stdout, json=args.json)
    try:
        # Whatever else writes to stdout (a framework's banner) must not get into the JSON document.
        with redirect_stdout(sys.stderr if args.json else sys.stdout):
            status: int = COMMANDS[args.command].run(args, output)
        sys.stdout.flush()
    except SpecDecError as error:
        for line in str(error).splitlines():
            print(f"{PROGRAM}: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader went away, as in `specdec-hal ... | head`; nothing more can be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status
