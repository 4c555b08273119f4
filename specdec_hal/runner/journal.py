"""Requests as lines of JSON, so that another process can go on with them.

A request's tokens depend on nothing but its prompt, parameters and seed, on the tokens before them, and on where it is
in thinking, if that has a limit. So a request is saved as these alone, and resumed as a preempted one is: its context
is computed again.

A file starts with a header, ``{"record": {"specdec_hal_journal": 1, "requests": N}, "crc32": C}``; N such lines with a
request each follow. C is the CRC-32 of the record as compact JSON with sorted keys.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from specdec_hal.errors import JournalError, SpecDecError
from specdec_hal.files import replacing
from specdec_hal.runner import sequence as running
from specdec_hal.runner.request import Drafts, Request, SamplingParams, TokenLogprobs
from specdec_hal.wording import describe, one_line, short

VERSION = 1
_SHARE = 49
"""Time without writing for each second of it, where a journal has no interval."""
_MARK = "specdec_hal_journal"
_log = logging.getLogger("specdec_hal")

Record = dict[str, Any]
"""A saved request: what was asked, the tokens so far, and how it has ended if it has."""


def record_of(sequence: running.Sequence) -> Record:
    """A request that waits, runs, or has ended. Its deadlines start anew when it is resumed."""
    request, reason = sequence.request, sequence.finish_reason
    return {
        "request_id": request.request_id,
        "prompt_token_ids": sequence.prompt.tolist(),
        "params": request.params.model_dump(mode="json"),
        "timeout_s": request.timeout_s,
        "ttft_timeout_s": request.ttft_timeout_s,
        "token_ids": list(sequence.token_ids),
        "accepted_draft": list(sequence.accepted_draft),
        "logprobs": [entry._asdict() for entry in sequence.logprobs],
        "prompt_logprobs": [entry and entry._asdict() for entry in sequence.prompt_logprobs],
        "drafts": [one._asdict() for one in sequence.drafts],
        "limit_status": sequence.limit_status,
        "counts": list(sequence.counts),
        "ended": None if reason is None else [reason, sequence.error],
    }


def revive(
    records: Iterable[Record], make: Callable[[Request], running.Sequence], end_tokens: frozenset[int]
) -> list[running.Sequence]:
    """The sequences of saved requests, from `make`; the first delta of each shows all its tokens again.

    JournalError for a bad record.
    """
    sequences = []
    for at, record in enumerate(records):
        try:
            sequences.append(_sequence(record, make, end_tokens))
        except SpecDecError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"record {at}: expected a request, got {short(record)} ({describe(error)})") from error
    return sequences


def _sequence(
    record: Record, make: Callable[[Request], running.Sequence], end_tokens: frozenset[int]
) -> running.Sequence:
    names = ("request_id", "prompt_token_ids", "timeout_s", "ttft_timeout_s")
    params = SamplingParams(**record["params"])
    if params.seeded() is not params:  # another one would change its tokens in the middle
        raise ValueError("seed: expected one for a request that is sampled, got none")
    sequence = make(Request(params=params, **{name: record[name] for name in names}))
    tokens, flags, entries = record["token_ids"], record["accepted_draft"], list(map(_logprob, record["logprobs"]))
    sequence.extend(tokens, flags, entries, end_tokens)
    for one in record.get("drafts", ()):  # not in journals of older versions
        sequence.drafts.append(Drafts(one["start"], tuple(one["token_ids"]), one["accepted"]))
    sequence.limit_status = record.get("limit_status", 0)  # not in journals of older versions
    if sequence.prompt_logprobs:
        sequence.prompt_logprobs[1:] = map(_logprob, record["prompt_logprobs"][1:])
    steps, drafted, accepted, *num_drafts = record["counts"]  # journals of older versions end here
    sequence.counts = steps, drafted, accepted, *(num_drafts or [steps if drafted else 0])
    if record["ended"] is not None and sequence.finish_reason is None:
        sequence.finish(*record["ended"])
    return sequence


def _logprob(entry: Record) -> TokenLogprobs:
    return TokenLogprobs(entry["logprob"], entry["rank"], tuple((token, value) for token, value in entry["top"]))


# ---- files


class Journal:
    """A file that is written anew every `interval` steps, at once or not at all.

    `interval` None: as often as takes a fiftieth of the time, where a journal saves time and nothing else.
    A disk that fails stops nobody: it is logged the first time, and counted.
    """

    def __init__(self, path: str | os.PathLike[str], interval: int | None) -> None:
        self.path, self.interval = Path(path), interval
        self.failures = 0
        self._steps = 0
        self._due_s = -math.inf

    def step(self, snapshot: Callable[[], list[Record]], idle: bool = False) -> None:
        """A step is done. `idle`: nothing is left to do, so that this may be the last one."""
        start = time.monotonic()
        due = start >= self._due_s if self.interval is None else self._steps % self.interval == 0  # the first one is
        self._steps += 1
        if not due and not idle:
            return
        self._write(snapshot)
        end = time.monotonic()
        self._due_s = end + _SHARE * (end - start)

    def _write(self, snapshot: Callable[[], list[Record]]) -> None:
        try:
            write(self.path, snapshot())
        except OSError as error:
            if not self.failures:
                _log.error("the journal %s cannot be written (%s); decoding goes on without it", self.path, error)
            self.failures += 1


def write(path: Path, records: Sequence[Record]) -> None:
    """Replace a file by one with these records. OSError leaves the one before."""
    lines = [_line({_MARK: VERSION, "requests": len(records)}), *map(_line, records)]
    with replacing(path) as file:
        file.writelines(line.encode() for line in lines)


def read(path: str | os.PathLike[str]) -> list[Record]:
    """The records of a file. JournalError for what is none, of another version, or damaged."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror or error}") from error
    header, *records = [_record(path, at, line) for at, line in enumerate(lines, 1)] or [{}]
    if header.get(_MARK) != VERSION:
        got = short(header.get(_MARK))
        raise JournalError(f"{path}: expected a journal of version {VERSION}, got {got}; give a file of runner.journal")
    if header.get("requests") != len(records):
        raise JournalError(f"{path}: expected {short(header.get('requests'))} requests, got {len(records)}; it is cut")
    return records


def _line(record: Record) -> str:
    text = _canonical(record)
    return f'{{"crc32":{zlib.crc32(text.encode())},"record":{text}}}\n'


def _canonical(record: Record) -> str:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _record(path: str | os.PathLike[str], at: int, line: bytes) -> Record:
    try:
        found = json.loads(line)
        record, crc = found["record"], found["crc32"]
        if not isinstance(record, dict):
            raise TypeError(f"record: {short(record)}")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        message = f"{path}:{at}: expected a line of a journal, got {short(line)} ({one_line(describe(error))})"
        raise JournalError(f"{message}; give a file of runner.journal") from error
    if zlib.crc32(_canonical(record).encode()) != crc:
        raise JournalError(f"{path}:{at}: the checksum does not fit; the line was changed after it was written")
    return record
