"""Requests as lines of JSON, so that another process can resume them.

A request's tokens depend only on its prompt, parameters, seed, earlier tokens, and its status under a limit of
thinking. These are saved, and the request resumes like a preempted one: its context is recomputed.

A file starts with a header, ``{"record": {"specdec_hal_journal": 1, "requests": N}, "crc32": C}``; N such lines with a
request each follow. C is the CRC-32 of the record as compact JSON with sorted keys.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from specdec_hal.config.files import Lock, replacing, sweep
from specdec_hal.config.problems import problems
from specdec_hal.errors import JournalError
from specdec_hal.request import Drafts, FinishReason, Request, SamplingParams, TokenLogprobs
from specdec_hal.runner import sequence as running
from specdec_hal.text import describe, one_line, short

VERSION = 1
_SHARE = 49
"""Ratio of other time to writing time, for a journal without an interval."""
_MARK = "specdec_hal_journal"
_log = logging.getLogger("specdec_hal")
_locks: WeakValueDictionary[Path, Lock] = WeakValueDictionary()
"""Locks of this process, in which a runner may continue the journal of an unused one."""
_locking = threading.Lock()

Record = dict[str, Any]
"""A saved request: parameters, tokens so far, and its end, if any."""


def record_of(sequence: running.Sequence) -> Record:
    """A waiting, running or ended request. Its deadlines restart on resumption."""
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


_Count = Annotated[StrictInt, Field(ge=0, lt=1 << 63)]


class _Saved(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Logprob(_Saved):
    logprob: StrictFloat
    rank: _Count
    top: list[tuple[_Count, StrictFloat]]

    def entry(self) -> TokenLogprobs:
        return TokenLogprobs(self.logprob, self.rank, tuple(self.top))


class _Drafts(_Saved):
    start: _Count
    token_ids: list[_Count]
    accepted: _Count


class _Request(_Saved):
    """A record."""

    request_id: StrictStr
    prompt_token_ids: list[_Count]
    params: dict[str, Any]
    timeout_s: StrictFloat | StrictInt | None
    ttft_timeout_s: StrictFloat | StrictInt | None
    token_ids: list[_Count]
    accepted_draft: list[StrictBool]
    logprobs: list[_Logprob]
    prompt_logprobs: list[_Logprob | None]
    drafts: list[_Drafts]
    limit_status: Annotated[StrictInt, Field(ge=-(1 << 31), lt=1 << 31)]
    counts: tuple[_Count, _Count, _Count, _Count]
    ended: tuple[FinishReason, StrictStr] | None

    def problems(self, params: SamplingParams, vocab_size: int) -> Iterator[str]:
        """A message about inconsistent fields."""
        if params.seeded() is not params:  # a new seed would change its tokens
            yield "seed: expected one for a request that is sampled, got none"
        tokens, prompt = len(self.token_ids), len(self.prompt_token_ids)
        entries = [entry for entry in (*self.logprobs, *self.prompt_logprobs) if entry is not None]
        named = [self.token_ids, *(one.token_ids for one in self.drafts), *([t for t, _ in e.top] for e in entries)]
        if (highest := max(map(max, filter(None, named)), default=0)) >= vocab_size:
            yield f"expected token ids in 0..{vocab_size - 1}, the model's vocabulary, got {highest}"
        if tokens > params.max_new_tokens:
            yield f"token_ids: expected at most max_new_tokens = {params.max_new_tokens}, got {tokens}"
        if len(self.accepted_draft) != tokens:
            yield f"accepted_draft: expected {tokens}, one for each token, got {len(self.accepted_draft)}"
        if len(self.logprobs) != (0 if params.logprobs is None else tokens):
            yield f"logprobs: expected those that params ask for of {tokens} tokens, got {len(self.logprobs)}"
        if len(self.prompt_logprobs) > prompt or bool(self.prompt_logprobs) != (params.prompt_logprobs is not None):
            yield f"prompt_logprobs: expected those that params ask for, got {len(self.prompt_logprobs)}"
        if None in self.prompt_logprobs[1:]:
            yield "prompt_logprobs: expected null for the first token alone"
        for one in self.drafts:
            if one.start > tokens or one.accepted > len(one.token_ids):
                yield f"drafts: expected a start of at most {tokens} and no more accepted than drafted, got {one!r}"


def revive(
    records: Iterable[Record],
    make: Callable[[Request], running.Sequence],
    end_tokens: frozenset[int],
    vocab_size: int,
) -> list[running.Sequence]:
    """The sequences of saved requests, built by `make`; their first deltas repeat all tokens.

    JournalError for a bad record, RequestError for an unservable request.
    """
    return [_sequence(at, record, make, end_tokens, vocab_size) for at, record in enumerate(records)]


def _sequence(
    at: int,
    record: Record,
    make: Callable[[Request], running.Sequence],
    end_tokens: frozenset[int],
    vocab_size: int,
) -> running.Sequence:
    try:
        saved = _Request.model_validate(record)
    except ValidationError as error:
        key, message = next(problems(error, _Request))
        raise JournalError(f"record {at}: expected a request, got {short(record)} ({key}: {message})") from error
    params = SamplingParams(**saved.params)
    if wrong := next(saved.problems(params, vocab_size), None):
        raise JournalError(f"record {at}: request {short(saved.request_id)}: {wrong}")
    request = Request(saved.request_id, saved.prompt_token_ids, params, None, saved.timeout_s, saved.ttft_timeout_s)
    sequence = make(request)
    entries = [entry.entry() for entry in saved.logprobs]
    kept = sequence.until_end(saved.token_ids, end_tokens)
    sequence.extend(saved.token_ids[:kept], saved.accepted_draft[:kept])
    sequence.logprobs += entries[:kept]
    sequence.drafts += [Drafts(one.start, tuple(one.token_ids), one.accepted) for one in saved.drafts]
    sequence.limit_status = saved.limit_status
    if sequence.prompt_logprobs:
        sequence.prompt_logprobs[1:] = [e.entry() for e in saved.prompt_logprobs[1:] if e is not None]
    sequence.counts = saved.counts
    if saved.ended is not None and sequence.finish_reason is None:
        sequence.finish(*saved.ended)
    return sequence


# ---- files


class Journal:
    """A file that is atomically rewritten every `interval` steps.

    `interval` None: at most a fiftieth of the time, for journals that only save time. Write errors are counted and
    logged once. JournalError if another runner writes it.
    """

    def __init__(self, path: str | os.PathLike[str], interval: int | None) -> None:
        self.path, self.interval = Path(path), interval
        self.failures = 0
        self._lock = lock(self.path)
        if self._lock is not None:
            sweep(self.path.parent, self.path.name)
        self._steps = 0
        self._due_s = -math.inf

    def step(self, snapshot: Callable[[], list[Record]], idle: bool = False) -> None:
        """Record a step. `idle`: possibly the last one."""
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
                _log.error("the journal %s cannot be written (%s); decoding continues without it", self.path, error)
            self.failures += 1


def lock(path: Path) -> Lock | None:
    """Lock a journal against other processes while the returned object lives.

    None, with a warning, if locking is impossible. JournalError names the holder.
    """
    file = path.resolve().with_name(f"{path.name}.lock")
    try:
        with _locking:
            found = _locks.get(file)
            if found is None:
                found = _locks[file] = Lock(file)
            return found
    except BlockingIOError as error:
        what = f"{path}: expected a journal without another writer, but {error.strerror}"
        raise JournalError(f"{what}; choose another file, or wait until that has ended") from error
    except OSError as error:
        _log.warning("the journal %s cannot be locked (%s)", path, error)
        return None


def write(path: Path, records: Sequence[Record]) -> None:
    """Replace a file by one with these records. OSError leaves the previous one."""
    lines = [_line({_MARK: VERSION, "requests": len(records)}), *map(_line, records)]
    with replacing(path) as file:
        file.writelines(line.encode() for line in lines)


def read(path: str | os.PathLike[str]) -> list[Record]:
    """The records of a file. JournalError for an invalid, damaged or other version's file."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror or error}") from error
    header, *records = [_record(path, at, line) for at, line in enumerate(lines, 1)] or [{}]
    if header.get(_MARK) != VERSION:
        got = short(header.get(_MARK))
        raise JournalError(f"{path}: expected a journal of version {VERSION}, got {got}; give a file of runner.journal")
    if header.get("requests") != len(records):
        raise JournalError(f"{path}: expected {short(header.get('requests'))} requests, got {len(records)}: truncated")
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
        raise JournalError(f"{path}:{at}: wrong checksum; the line was changed after it was written")
    return record
