"""Keep keys and passwords of this process out of logs and reports."""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HIDDEN = "<redacted>"
_OPTION = re.compile(r"--(?:[\w-]+-)?(?:key|token|secret|password)")
_VARIABLE = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:$|_)")
_LOGIN = re.compile(r"(?<=://)[^\s/@:]+:[^\s/@]+(?=@)")
"""In a URL."""
_SHORTEST = 4
"""Shortest secret that is searched for in texts: shorter ones would match ordinary words."""

_known: set[str] = set()


def learn(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Keep the secrets of a command line and of the environment (None: the process's) out of logs and reports."""
    variables = os.environ if environment is None else environment
    _known.update(value for name, value in variables.items() if _VARIABLE.search(name.upper()))
    _known.update(command[at][cut:] for at, cut in _arguments(command))
    if not isinstance(logging.getLogRecordFactory(), _Factory):
        logging.setLogRecordFactory(_Factory(logging.getLogRecordFactory()))


def redact(text: str) -> str:
    """A text without them."""
    for secret in sorted(_known, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN)
    return _LOGIN.sub(HIDDEN, text)


def redact_command(command: Sequence[str]) -> list[str]:
    """A command line without them, however short they are."""
    redacted = list(command)
    for at, cut in _arguments(command):
        redacted[at] = command[at][:cut] + HIDDEN
    return [redact(word) for word in redacted]


def _arguments(command: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The words of a command line that are secrets, and where in them."""
    for at, word in enumerate(command):
        name, equals, _ = word.partition("=")
        if _OPTION.fullmatch(name):
            if equals:
                yield at, len(name) + 1
            elif at + 1 < len(command):
                yield at + 1, 0


class _Factory:
    """Removes secrets from log records and their tracebacks."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, *args: Any, **options: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._inner(*args, **options)
        try:
            record.msg, record.args = redact(record.getMessage()), ()
        except (TypeError, ValueError):  # a message that does not fit its arguments: logging reports it
            return record
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = redact("".join(traceback.format_exception(*record.exc_info))).rstrip("\n")
        return record
