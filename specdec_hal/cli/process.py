"""The process around a command: its streams, its terminal, and reports of errors of this program."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from importlib import metadata

import specdec_hal
from specdec_hal.cli import secrets
from specdec_hal.text import clip, describe

PROGRAM = "specdec-hal"
_WIDTHS = range(20, 1001)
"""Columns of a terminal that a table can be laid out in."""
_DISTRIBUTIONS = (
    "numpy",
    "pydantic",
    "apache-tvm-ffi",
    "paddlepaddle",
    "paddlepaddle-gpu",
    "torch",
    "tokenizers",
    "rich",
)


def prepare_process() -> None:
    """Prevent tracebacks from closed streams, limited encodings and COLUMNS."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (until the process ends)
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and (len(columns) > 4 or int(columns) not in _WIDTHS):
        del os.environ["COLUMNS"]


class _Imports(logging.Handler):
    """Names the plug-in that is being imported; on a terminal the line disappears afterwards."""

    def emit(self, record: logging.LogRecord) -> None:
        terminal = sys.stderr.isatty()
        text = record.getMessage()
        with contextlib.suppress(OSError):
            if text != "imported":
                print(f"{PROGRAM}: {text}", file=sys.stderr, end="" if terminal else "\n", flush=True)
            elif terminal:
                print("\r\x1b[K", file=sys.stderr, end="", flush=True)


def announce_imports() -> None:
    """Name third-party plug-ins before they are imported, since one may end the process silently."""
    imports = logging.getLogger("specdec_hal.plugin.registry.imports")
    if not any(isinstance(handler, _Imports) for handler in imports.handlers):
        imports.addHandler(_Imports())
        imports.setLevel(logging.INFO)
        imports.propagate = False


@contextlib.contextmanager
def own_logs() -> Iterator[None]:
    """Log this package's warnings to stderr in one format, whatever handlers frameworks give the root logger."""
    package = logging.getLogger("specdec_hal")
    handlers, propagate = package.handlers[:], package.propagate
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"{PROGRAM}: %(message)s"))
    package.handlers[:], package.propagate = [handler], False
    try:
        yield
    finally:
        package.handlers[:], package.propagate = handlers, propagate


def complain(line: str) -> None:
    """One line on stderr; nothing if that cannot be written."""
    try:
        print(f"{PROGRAM}: {secrets.redact(line)}", file=sys.stderr, flush=True)
    except OSError:
        _discard(2)


def discard_stdout() -> None:
    """Discard the buffer, so that nothing raises at interpreter exit."""
    _discard(1)


def _discard(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def report(error: BaseException, command: Sequence[str]) -> str:
    """Write a report with what is needed to find the cause; returns the line that names it."""
    what = clip(secrets.redact(describe(error)), 300)
    text = "\n".join([
        f"command: {' '.join(map(ascii, secrets.redact_command(command)))}",
        f"folder: {os.environ.get('PWD', '')!a}",
        f"specdec-hal {specdec_hal.__version__}, Python {sys.version}, {platform.platform()}",
        *(f"{name} {version}" for name in _DISTRIBUTIONS if (version := _version(name))),
        "",
        secrets.redact("".join(traceback.format_exception(error))),
    ])  # fmt: skip
    try:
        descriptor, path = tempfile.mkstemp(prefix=f"{PROGRAM}-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as failure:
        return f"internal error: {what}; no report could be written ({failure.strerror})"
    return f"internal error: {what}; please send the report {path}"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
