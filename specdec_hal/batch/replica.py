"""One engine that answers blocks, in an actor of Ray or in the process of the batch."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_hal.batch.blocks import Block, OutputFolder, lines_of
from specdec_hal.batch.rows import Answered, Line, OwnLine, custom_id_of
from specdec_hal.config import Config, parse
from specdec_hal.engine import LLM
from specdec_hal.errors import RequestError

if TYPE_CHECKING:
    from specdec_hal.batch.openai_rows import Endpoints


class Replica:
    """Answers blocks of `source` into an output folder. `config`: a configuration as JSON (:func:`dump`).

    An invalid row is answered with an error, and so is a row that kills its process `max_crashes` times. To find that
    row, a block that killed as many processes is decoded row by row.
    """

    def __init__(self, config: dict[str, Any], source: str, output: str, max_crashes: int) -> None:
        self._llm = LLM(config=parse(config, source="batch"))
        self._source, self._output, self._max_crashes = Path(source), OutputFolder(Path(output)), max_crashes
        self.name = f"{socket.gethostname()}:{os.getpid()}"

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        """Answer a block (the fields of :class:`Block`); returns counts and seconds."""
        block = Block(**{name: int(value) for name, value in item.items()})
        start = time.perf_counter()
        rows = self._answer(block)
        self._output.finish(block, (answered.row for answered in rows))
        counts: Counter[str] = Counter()
        for row in rows:
            counts.update(row.counts)
        return {"block": block.number, "replica": self.name, "seconds": time.perf_counter() - start, **counts}

    def _answer(self, block: Block) -> list[Answered]:
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
                died = f"{notes.alone[number]} processes died while they decoded this row"
                row = self._line(number, line).failed(died)
            self._output.note_answer(block, row)
            notes.rows[number] = row
        return [notes.rows[number] for number, _ in lines]

    def _decode(self, lines: list[tuple[int, bytes]]) -> list[Answered]:
        runner = self._llm.runner
        answers: dict[int, Answered] = {}
        under_way: list[tuple[Line, list[str]]] = []
        for number, data in lines:
            line = self._line(number, data)
            try:
                requests = line.requests()
                runner.add_requests(requests)
                under_way.append((line, [request.request_id for request in requests]))
            except RequestError as error:
                answers[number] = line.failed(str(error))
        while runner.has_requests:
            runner.step()
        done = runner.take_finished()
        for line, names in under_way:
            answers[line.number] = line.answered([done[name] for name in names])
        return [answers[number] for number, _ in lines]

    def _line(self, number: int, data: bytes) -> Line:
        if custom_id_of(data) is None:
            return OwnLine(number, data, self._llm)
        from specdec_hal.batch.openai_rows import OpenAILine

        return OpenAILine(number, data, self._endpoints)

    @cached_property
    def _endpoints(self) -> Endpoints:
        from specdec_hal.batch.openai_rows import Endpoints

        return Endpoints(self._llm)


def dump(config: Config) -> dict[str, Any]:
    """A configuration as JSON, for processes that cannot read its file. ConfigError if it does not suit a batch."""
    for key, message in _unfit(config):
        raise config.error(key, message)
    settings = config.as_json()
    settings["speculative"] = {**settings.get("speculative", {}), "adaptive": False}
    return settings


def _unfit(config: Config) -> Iterator[tuple[str, str]]:
    """Settings that make answers depend on other requests, time or the process: (key, message)."""
    runner, speculative = config.runner, config.speculative
    sizes = "max_num_batched_tokens", "mixed_step_ratio", "num_kv_blocks"
    for name in ("max_waiting_requests", "queue_timeout_s", "journal", *sizes):
        if getattr(runner, name) is not None:
            yield f"runner.{name}", "expected null for a batch, whose answers must not depend on each other; remove it"
    if speculative.adaptive:
        yield "speculative.adaptive", "expected false for a batch: drafts would depend on the time of steps; remove it"
    cached = getattr(speculative.settings, "max_cached_requests", 0)
    if cached:
        message = f"expected 0 for a batch, whose drafts must not depend on other requests, got {cached}; set it to 0"
        yield f"speculative.{speculative.method}.max_cached_requests", message
