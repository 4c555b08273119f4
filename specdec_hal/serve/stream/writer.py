"""From a runner's steps to frames, in the engine's process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specdec_hal.output.detokenizing import PROMPT_TAIL
from specdec_hal.request import TokenLogprobs
from specdec_hal.runner import ModelRunner
from specdec_hal.runner.report import StepReport, StepSink
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.slot_table import Ints, SlotTable
from specdec_hal.serve.frame_codes import PREEMPTED, RECOVERY, FrameKind
from specdec_hal.serve.stream.frame import (
    NOTHING,
    OutputFrame,
    PromptScores,
    StreamEnd,
    StreamStart,
)

Send = Callable[[bytes], bool]
"""Sends a frame; returns False at once if the reader's queue is full."""

TOO_SLOW = "the reader of the output is too far behind (serve.slow_reader: drop)"


class _Verified(NamedTuple):
    """The position, after this many tokens, of verified drafts to report."""

    number: int
    slot: int
    start: int


@dataclass
class _Step:
    """Contents of the frame under construction: number, start, count and drafts of each entry; `slots`: of those with
    tokens.
    """

    slots: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted_draft: bytearray = field(default_factory=bytearray)
    verified: list[_Verified] = field(default_factory=list)


class FrameWriter(StepSink):
    """Sends a frame after every step of a runner.

    `send` may wait for the reader, which blocks the engine, or refuse the frame: then its requests end with an error,
    which the next accepted frame reports.
    """

    def __init__(self, runner: ModelRunner, send: Send) -> None:
        self._runner, self._send = runner, send
        self._max_tokens = runner.state.symbols["S"]
        self._columns = np.arange(self._max_tokens, dtype=np.int32)
        self._by_slot = np.zeros((2, runner.state.symbols["M"]), np.int64)
        """Number and prompt's length of each slot's request."""
        self.begin()
        runner.attach(self)

    def begin(self) -> None:
        """Start a session for a new reader: its first frame has every request with its output so far."""
        self._session, self._sequence = secrets.randbits(62), 0
        self._step = _Step()
        self._numbers: dict[Sequence, int] = {}
        self._next = 0
        self._streams: list[StreamStart] = []
        self._ended: list[StreamEnd] = []
        self._released: list[int] = []
        self._prompts: list[PromptScores] = []
        for sequence in self._runner.streams:
            number = self._number(sequence)
            if sequence.slot is not None:
                self._by_slot[:, sequence.slot] = number, sequence.prompt_len
            self.took(sequence)

    # ---- calls of the runner

    def gained(self, sequence: Sequence, slot: int, from_draft: list[bool], drafted: int | None) -> None:
        """See :class:`~specdec_hal.runner.report.StepSink`."""
        step, start = self._step, sequence.generated
        number = self._number(sequence)
        self._by_slot[:, slot] = number, sequence.prompt_len
        step.slots.append(slot)
        step.numbers.append(number)
        step.starts.append(start)
        step.counts.append(len(from_draft))
        step.drafted.append(-1 if drafted is None else drafted)
        step.accepted_draft.extend(from_draft)
        if drafted and sequence.request.params.return_drafts:
            step.verified.append(_Verified(number, slot, start))

    def scored(self, sequence: Sequence, entries: list[TokenLogprobs]) -> None:
        """See :class:`~specdec_hal.runner.report.StepSink`."""
        self._prompts.append(PromptScores(self._number(sequence), len(sequence.prompt_logprobs), entries))

    def resumes(self, sequence: Sequence, *, failed: bool) -> None:
        """See :class:`~specdec_hal.runner.report.StepSink`."""
        step = self._step
        step.numbers.append(self._number(sequence))
        step.starts.append(sequence.generated)
        step.counts.append(RECOVERY if failed else PREEMPTED)
        step.drafted.append(-1)

    def took(self, sequence: Sequence) -> None:
        """See :class:`~specdec_hal.runner.report.StepSink`."""
        if sequence.finish_reason is not None:
            self._ended.append(StreamEnd(self._number(sequence), sequence.finish_reason, sequence.error))

    def released(self, sequence: Sequence) -> None:
        """Forget a request without readers."""
        number = self._numbers.pop(sequence, None)
        if number is not None:
            self._released.append(number)

    def _number(self, sequence: Sequence) -> int:
        number = self._numbers.get(sequence)
        if number is None:
            self._numbers[sequence] = number = self._next
            self._next += 1
            self._streams.append(_start(number, sequence))
        return number

    # ---- frames

    def stepped(
        self, report: StepReport, slots: Ints, table: SlotTable, running: Mapping[int, Sequence]
    ) -> dict[int, int]:
        """Send collected entries with a step's tokens."""
        step = self._step
        where = np.concatenate([np.array(step.slots, np.int64), slots]) if step.slots else slots
        mask, first = report.counted[where], len(step.slots)
        (numbers, prompts), counts = self._by_slot[:, slots], report.counts[slots]
        step.slots += slots.tolist()
        step.numbers += numbers.tolist()
        step.starts += (table.length[slots] - counts - prompts).tolist()
        step.counts += counts.tolist()
        step.drafted += report.drafted[slots].tolist()
        step.accepted_draft += report.matches[slots][mask[first:]].tobytes()
        if not self._send_drafts(report):
            step, self._step = self._step, _Step()
            self._lose(step)
            return {}
        if report.scores is None:
            self._send_frame(1, report.emitted[where][mask].data, NOTHING, NOTHING)
            return {}
        offsets = report.scores["cu_batch_token_offset"][where]
        rows = (offsets[:, None] + self._columns)[mask]
        ids, scores, ranks = (np.ascontiguousarray(report.scores[name][rows]) for name in ("ids", "logprobs", "ranks"))
        self._send_frame(ids.shape[1], ids.data, scores.data, ranks.data)
        return {}

    def _send_drafts(self, report: StepReport) -> bool:
        """Send drafts of requests with return_drafts; False if the reader refuses."""
        verified = self._step.verified
        if not verified:
            return True
        if self._sequence == 0:  # the session starts with all requests; those that this step ended end after it
            step, self._step, ended, self._ended = self._step, _Step(), self._ended, []
            self._send_frame(1, NOTHING, NOTHING, NOTHING)
            self._step, self._ended = step, ended
            if self._sequence == 0:
                return False
        drafts = [report.drafts(one.slot) for one in verified]
        tokens = np.array([token for ids in drafts for token in ids], "<i8")
        frame = OutputFrame(
            self._session, self._sequence, FrameKind.DRAFT, 1, self._max_tokens, [one.number for one in verified],
            [one.start for one in verified], list(map(len, drafts)), [-1] * len(verified), bytes(len(tokens)),
            tokens.data,
        )  # fmt: skip
        if not self._send(frame.encode()):
            return False
        self._sequence += 1
        return True

    def flush(self) -> None:
        """Send entries collected outside steps, if any."""
        if self._sequence == 0 or self._step.numbers or self._ended or self._released:
            assert not self._step.slots, "tokens go with their step"
            self._send_frame(1, NOTHING, NOTHING, NOTHING)

    def _send_frame(self, n: int, ids: memoryview, scores: memoryview, ranks: memoryview) -> None:
        step, first = self._step, self._sequence == 0
        frame = OutputFrame(
            self._session, self._sequence, FrameKind.TARGET, n, self._max_tokens, step.numbers, step.starts,
            step.counts, step.drafted, bytes(step.accepted_draft), ids, scores, ranks, self._streams, self._ended,
            self._released, sorted(self._runner.end_tokens) if first else [], self._prompts,
        )  # fmt: skip
        self._step = _Step()
        if self._send(frame.encode()):
            self._sequence += 1
            self._streams, self._ended, self._released, self._prompts = [], [], [], []
            return
        self._lose(step)

    def _lose(self, step: _Step) -> None:
        """End the requests whose tokens were refused."""
        lost = set(step.numbers)
        self._ended = [StreamEnd(e.number, "error", TOO_SLOW) if e.number in lost else e for e in self._ended]
        for sequence in [sequence for sequence, number in self._numbers.items() if number in lost]:
            if sequence.finish_reason is None:
                self._runner.cancel(sequence.request.request_id, "error", TOO_SLOW)


def _start(number: int, sequence: Sequence) -> StreamStart:
    request = sequence.request
    return StreamStart(
        number, request.request_id, sequence.prompt_len, sequence.max_new_tokens,
        request.params.model_dump(exclude_defaults=True), sequence.queue_s, list(sequence.token_ids),
        list(sequence.accepted_draft), list(sequence.logprobs), sequence.counts, list(sequence.prompt_logprobs),
        list(sequence.drafts),
        list(request.prompt_token_ids[-PROMPT_TAIL:]), sequence.num_cached_tokens,
    )  # fmt: skip
