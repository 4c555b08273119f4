"""The command ``specdec-hal``: one module per subcommand, each with HELP, `add_arguments` and `run`, or with HELP and
further COMMANDS. Parts outside the core announce theirs by entry point (:mod:`specdec_hal.plugin.parts`).

Exit status: 0 done, 1 a check failed or an engine stopped (or a compiler's own status), 2 bad input (one line per
problem on stderr, with a hint). 70 is an internal error (one line with the path of a report), 74 an unwritable result,
130 an interrupt, 141 a closed stdout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from types import ModuleType
from typing import NoReturn

import specdec_hal
from specdec_hal.cli import (
    backends,
    batch,
    bench,
    chat,
    compare,
    drafters,
    explain,
    generate,
    secrets,
    serve,
)
from specdec_hal.cli.output import Guarded, Output, WriteError
from specdec_hal.cli.process import (
    PROGRAM,
    announce_imports,
    complain,
    discard_stdout,
    own_logs,
    prepare_process,
    report,
)
from specdec_hal.errors import EngineDeadError, SpecDecError
from specdec_hal.plugin import parts
from specdec_hal.text import clip, one_line

FAILED, BAD_INPUT, INTERNAL, CANNOT_WRITE, INTERRUPTED, READER_GONE = 1, 2, 70, 74, 130, 141
COMMANDS = {
    "generate": generate,
    "chat": chat,
    "serve": serve,
    "batch": batch,
    "compare": compare,
    "backends": backends,
    "explain": explain,
    "bench": bench,
    "drafters": drafters,
}
"""Those of the core."""


class _Parser(argparse.ArgumentParser):
    """argparse with one-line errors."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {clip(one_line(message))}; see {self.prog} --help\n")


class _Help(argparse.HelpFormatter):
    """Paragraphs at the terminal's width; indented lines, which are commands, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        parts = text.strip().split("\n\n")
        return "\n\n".join(part if part.startswith(" ") else fill(part, width, indent) for part in parts)


def make_parser() -> argparse.ArgumentParser:
    """The program's parser, with all commands."""
    parser = _Parser(
        prog=PROGRAM,
        description="Speculative decoding on any hardware.",
        epilog=__doc__.partition("\n\n")[2],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {specdec_hal.__version__}")
    _add(parser, {**COMMANDS, **{entry.name: entry.load() for entry in parts.entry_points("specdec_hal.commands")}})
    return parser


def _add(parser: argparse.ArgumentParser, modules: Mapping[str, ModuleType]) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name, module in modules.items():
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__, allow_abbrev=False)
        command.formatter_class = _Help
        if hasattr(module, "COMMANDS"):
            _add(command, module.COMMANDS)
            continue
        command.add_argument("--json", action="store_true", help="print one JSON document and nothing else on stdout")
        module.add_arguments(command)
        command.set_defaults(run_command=module.run)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (None: the process's); returns the exit status."""
    command = sys.argv if argv is None else [PROGRAM, *argv]
    prepare_process()
    secrets.learn(command)
    try:
        stdout = Guarded(sys.stdout)
        status = _run(argv, stdout)
        stdout.flush()
    except SpecDecError as error:
        for line in error.command_line.splitlines():
            complain(line)
        return FAILED if isinstance(error, EngineDeadError) else BAD_INPUT
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except WriteError as error:
        discard_stdout()
        if isinstance(error.__cause__, BrokenPipeError):  # the reader went away, as in `specdec-hal ... | head`
            return READER_GONE
        complain(str(error))
        return CANNOT_WRITE
    except BaseException as error:  # also SystemExit raised by a plug-in, and Rust panics
        complain(report(error, command))
        return INTERNAL
    return status


def _run(argv: Sequence[str] | None, stdout: Guarded) -> int:
    with redirect_stdout(stdout):
        try:
            given = sys.argv[1:] if argv is None else list(argv)
            if given and given[0].startswith("xpu-"):  # as the commands were called before 0.2
                given[:1] = given[0].split("-", 1)
            args = make_parser().parse_args(given or ["--help"])
            args.command_line = [PROGRAM, *given]
        except SystemExit as finished:  # --help, --version, or a usage error that argparse has reported
            return int(finished.code or 0)
    if getattr(args, "part", None) is None:  # the server's first process has named them
        announce_imports()
    # Other output (a framework's banner) must not get into the JSON document.
    with redirect_stdout(sys.stderr if args.json else stdout), own_logs():
        status: int = args.run_command(args, Output(stdout, json=args.json))
        return status
