"""Answers of both sides by question, kept in a file of JSON lines: a run can be resumed, or one side recorded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

from specdec_hal.cli.output import writing
from specdec_hal.errors import ConfigError
from specdec_hal_conformance.audit.endpoint import Answer


class Answers:
    """`path`: a file to read answers from and to append new ones to; None: they are kept in memory.

    `plain`: another file, with answers of the plain side. Thread-safe.
    """

    def __init__(self, path: Path | None = None, plain: Path | None = None) -> None:
        self._path, self._lock = path, threading.Lock()
        self._known: dict[str, list[Answer]] = {}
        if plain is not None:
            self._read(plain, "plain/")
        if path is not None and path.exists():
            self._read(path, "")

    def _read(self, path: Path, side: str) -> None:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                data = json.loads(line)
                question, answers = str(data["question"]), [Answer.of(one) for one in data["answers"]]
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}:{number}: expected answers of an audit, got {line[:60]!r}") from error
            if question.startswith(side):
                self._known[question] = answers

    def __contains__(self, question: str) -> bool:
        return question in self._known

    def of(self, side: str) -> list[Answer]:
        """All answers of a side."""
        return [one for question, answers in self._known.items() if question.startswith(f"{side}/") for one in answers]

    def get(self, question: str, ask: Callable[[], list[Answer]]) -> list[Answer]:
        """The known answers to a question, or those of `ask`, which are kept."""
        if question not in self._known:
            answers = ask()
            with self._lock:
                self._known[question] = answers
                if self._path is not None:
                    line = json.dumps({"question": question, "answers": [one.document() for one in answers]})
                    with writing(self._path), self._path.open("a") as file:
                        print(line, file=file)
        return self._known[question]
