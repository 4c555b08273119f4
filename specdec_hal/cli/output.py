"""What every command shares: printing, for people or as JSON, and the options that choose a configuration."""

from __future__ import annotations

import argparse
import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from specdec_hal.runtime import Runtime


class Output:
    """Where a command's result goes. `json`: one document, nothing else."""

    def __init__(self, stdout: TextIO, *, json: bool) -> None:
        self.stdout = stdout
        self.json = json

    @cached_property
    def console(self) -> Console:
        """A rich console on stdout that prints text as it is: no markup, no guessed highlighting."""
        from rich.console import Console

        return Console(file=self.stdout, markup=False, highlight=False, emoji=False)

    def document(self, data: Any) -> None:
        """Print the JSON document."""
        print(json.dumps(data, indent=2, allow_nan=False), file=self.stdout)


def table(title: str, *columns: str) -> Table:
    """An empty table in the one style of this program."""
    from rich import box
    from rich.table import Table

    return Table(*columns, title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """``--config`` and ``--set``."""
    parser.add_argument("--config", metavar="FILE", help="YAML configuration (without: every default)")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override one key, for example sampling.temperature=0.8; may be repeated, the last one of a key wins",
    )


def read_runtime(args: argparse.Namespace) -> Runtime:
    """The configuration that the options ask for, ready to run."""
    from specdec_hal.config import parse
    from specdec_hal.runtime import Runtime, load

    if args.config is None:
        return Runtime(parse({}, args.overrides, source="defaults"))
    return load(args.config, args.overrides)
