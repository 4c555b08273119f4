"""Shared by all commands: output for people or as JSON, and the options for the configuration."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

    from specdec_hal.engine.runtime import Runtime


class WriteError(Exception):
    """A result cannot be written where it should go. The cause is the OSError."""

    def __init__(self, where: str, error: OSError) -> None:
        super().__init__(f"{where}: cannot be written: {error.strerror or error}")
        self.__cause__ = error


class Guarded:
    """A stream whose failures are WriteError, to tell them from those of files and sockets.

    WriteError at once for None: a stdout that was closed before the program started.
    """

    def __init__(self, stream: TextIO | None) -> None:
        if stream is None:
            raise WriteError("stdout", OSError("it is closed"))
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As TextIO.write."""
        with writing("stdout"):
            return self._stream.write(text)

    def flush(self) -> None:
        """As TextIO.flush."""
        with writing("stdout"):
            self._stream.flush()


@contextmanager
def writing(where: str | Path) -> Iterator[None]:
    """Turns an OSError of the block into an WriteError."""
    try:
        yield
    except OSError as error:
        raise WriteError(str(where), error) from error


def output_file(text: str) -> Path:
    """Type of options that name an output file; unwritable paths are refused before any work."""
    path = Path(text)
    folder = path.parent
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder; name a file")
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {folder}; make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written; choose another")
    return path


def positive(text: str) -> int:
    """Type of options that count something."""
    if not text.isdecimal() or (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text}")
    return value


class Output:
    """Where a command's result goes. `json`: one document, nothing else."""

    def __init__(self, stdout: Guarded, *, json: bool) -> None:
        self.stdout = cast(TextIO, stdout)
        self.json = json

    @cached_property
    def console(self) -> Console:
        """A rich console on stdout without markup or highlighting."""
        from rich.console import Console

        return Console(file=self.stdout, markup=False, highlight=False, emoji=False)

    def document(self, data: Any) -> None:
        """Print the JSON document."""
        print(json.dumps(data, indent=2, allow_nan=False), file=self.stdout)


def add_config_arguments(parser: argparse.ArgumentParser, default: str = "built-in defaults") -> None:
    """``--config``, ``--model``, ``--download`` and ``--set``."""
    parser.add_argument("--config", metavar="FILE", help=f"YAML configuration (default: {default})")
    parser.add_argument(
        "--model",
        dest="overrides",
        metavar="PATH",
        action="append",
        default=[],
        type=lambda path: f"model.path={json.dumps(path)}",
        help="checkpoint folder, .gguf file or name on a hub (ORG/NAME), same as --set model.path=PATH",
    )
    parser.add_argument(
        "--download",
        dest="overrides",
        action="append_const",
        const="model.download=true",
        help="fetch named checkpoints that the hub's cache lacks, same as --set model.download=true",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key, such as sampling.temperature=0.8; may be repeated, the last value of a key wins",
    )


def read_runtime(args: argparse.Namespace) -> Runtime:
    """The runtime configured by the options."""
    from specdec_hal.config import parse
    from specdec_hal.engine.runtime import Runtime, load

    if args.config is None:
        return Runtime(parse({}, args.overrides, source="defaults"))
    return load(args.config, args.overrides)
