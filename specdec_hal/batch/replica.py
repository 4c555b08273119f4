"""One engine that answers blocks: what an actor of Ray holds, and what a batch without Ray runs in its own process."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec_hal.batch.blocks import Block, OutputFolder, lines_of
from specdec_hal.batch.rows import Row, Wanted, answer, failed, params_of, read_row
from specdec_hal.config import Config, parse
from specdec_hal.engine import LLM
from specdec_hal.errors import RequestError
from specdec_hal.runner import Request, SamplingParams

_OF_ROWS = ("steps", "num_drafts", "drafted_tokens", "accepted_tokens")
COUNTS = ("rows", "failed", "tokens", *_OF_ROWS)


class Replica:
    """Answers blocks of `source` into an output folder. `config`: a configuration as JSON (:func:`dump`).

    A row that cannot be served is answered with an error. So is a row of which the process dies `max_crashes` times:
    a block at which processes have died as often is decoded row by row, so that the row is known.
    """

    def __init__(self, config: dict[str, Any], source: str, output: str, max_crashes: int) -> None:
        self._llm = LLM(config=parse(config, source="batch"))
        self._source, self._output, self._max_crashes = Path(source), OutputFolder(Path(output)), max_crashes
        self.name = f"{socket.gethostname()}:{os.getpid()}"

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        """Answer a block (the fields of :class:`Block`); gives what was done in how many seconds."""
        block = Block(**{name: int(value) for name, value in item.items()})
        start = time.perf_counter()
        rows = self._answer(block)
        self._output.finish(block, rows)
        return {"block": block.number, "replica": self.name, "seconds": time.perf_counter() - start, **count(rows)}

    def _answer(self, block: Block) -> list[Row]:
        lines, notes = lines_of(self._source, block), self._output.notes(block)
        if notes.together < self._max_crashes:
            self._output.note_attempt(block)
            return self._decode(lines)
        for number, line in lines:
            if number in notes.rows:
                continue
            if notes.alone[number] < self._max_crashes:
                self._output.note_attempt(block, number)
                row = self._decode([(number, line)])[0]
            else:
                row = failed(number, name_of(line), f"{notes.alone[number]} processes died while they decoded this row")
            self._output.note_answer(block, row)
            notes.rows[number] = row
        return [notes.rows[number] for number, _ in lines]

    def _decode(self, lines: list[tuple[int, bytes]]) -> list[Row]:
        runner, defaults = self._llm.runner, self._llm.default_params
        names: dict[int, str | None] = {}
        refused: dict[int, Row] = {}
        for number, line in lines:
            try:
                wanted = read_row(line)
                names[number] = wanted.id
                runner.add_request(self._request(number, wanted, defaults))
            except RequestError as error:
                refused[number] = failed(number, names.get(number), str(error))
        while runner.has_requests:
            runner.step()
        done = runner.take_finished()
        return [
            refused[number] if number in refused else answer(number, names[number], done[str(number)])
            for number, _ in lines
        ]

    def _request(self, number: int, wanted: Wanted, defaults: SamplingParams) -> Request:
        tokenizer = self._llm.runner.tokenizer
        assert tokenizer is not None  # LLM has loaded it
        tokens = wanted.prompt_token_ids
        if wanted.prompt is not None:
            tokens = tokenizer.encode(wanted.prompt, wanted.add_special_tokens)
        assert tokens is not None  # read_row has seen to it
        return Request(str(number), tokens, params_of(wanted, defaults, number))


def name_of(line: bytes) -> str | None:
    """The `id` of a line, if it can be read."""
    try:
        return read_row(line).id
    except RequestError:
        return None


def count(rows: list[Row]) -> Counter[str]:
    """What rows add up to, by the names in :data:`COUNTS`."""
    counts = Counter(dict.fromkeys(COUNTS, 0))
    for row in rows:
        counts["rows"] += 1
        counts["failed"] += row["finish_reason"] == "error"
        counts["tokens"] += len(row["token_ids"])
        for name in _OF_ROWS:
            counts[name] += row[name]
    return counts


def dump(config: Config) -> dict[str, Any]:
    """A configuration as JSON, for processes that cannot read its file. ConfigError if it is not fit for a batch."""
    for key, message in _unfit(config):
        raise config.error(key, message)
    settings = config.as_json()
    settings["speculative"] = {**settings.get("speculative", {}), "adaptive": False}
    return settings


def _unfit(config: Config) -> Iterator[tuple[str, str]]:
    """Settings under which an answer depends on other requests, on time, or on the process: (key, message)."""
    runner, speculative = config.runner, config.speculative
    for name in ("max_waiting_requests", "queue_timeout_s", "journal", "max_num_batched_tokens", "num_kv_blocks"):
        if getattr(runner, name) is not None:
            yield f"runner.{name}", "expected null for a batch, whose answers must not depend on each other; remove it"
    if speculative.adaptive:
        yield "speculative.adaptive", "expected false for a batch: drafts would depend on the time of steps; remove it"
    cached = getattr(speculative.settings, "max_cached_requests", 0)
    if cached:
        message = f"expected 0 for a batch, whose drafts must not depend on other requests, got {cached}; set it to 0"
        yield f"speculative.{speculative.method}.max_cached_requests", message
