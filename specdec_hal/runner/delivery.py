"""From steps to callbacks: each request's deltas in order, without loss, ending with a final one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from specdec_hal.output.processor import TextProcessor
from specdec_hal.output.text import LazyDelta, StepTexts
from specdec_hal.request import RequestOutput, StreamDelta
from specdec_hal.runner.report import StepReport, StepSink
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.slot_table import Ints, SlotTable

_log = logging.getLogger("specdec_hal")


class Delivery(StepSink):
    """Queued deltas, with their texts.

    If an exception such as KeyboardInterrupt escapes a callback, the remaining deltas stay queued for the next
    :meth:`deliver`. `fail(sequence, error)` ends the request of a callback that raises.
    """

    def __init__(self, texts: TextProcessor, slots: int, fail: Callable[[Sequence, str], None]) -> None:
        self._texts, self._fail = texts, fail
        self._joint, self._stops = np.zeros((2, slots), np.bool_)
        """Of each slot's request: whether its text is read and made with others'; whether it has stop strings."""
        self._waiting: deque[tuple[Sequence, StreamDelta]] = deque()
        self._delivered: list[StreamDelta] = []
        self._running = False

    def __len__(self) -> int:
        return len(self._waiting)

    def begun(self, sequence: Sequence) -> None:
        """See :class:`StepSink`."""
        request = sequence.request
        self._texts.begin(
            request.request_id,
            request.params,
            request.prompt_token_ids,
            detokenize=request.detokenize,
            tokens=lambda: sequence.token_ids,
        )

    def gained(self, sequence: Sequence, slot: int, from_draft: list[bool], drafted: int | None) -> None:
        """See :class:`StepSink`."""
        text = self._texts.texts[sequence.request.request_id]
        stops, reader = bool(sequence.request.params.stop), sequence.request.callback
        self._joint[slot], self._stops[slot] = text.joint and (stops or reader is not None), stops

    def stepped(
        self, report: StepReport, slots: Ints, table: SlotTable, running: Mapping[int, Sequence]
    ) -> dict[int, int]:
        """See :class:`StepSink`."""
        if not slots.size:
            return {}
        before, where, joint = table.reported[slots], slots.tolist(), slots[self._joint[slots]]
        table.reported[slots] = before + report.counts[slots]
        step = StepTexts(report.tokens, report.flags)
        if self._texts.known is not None and joint.size:
            last = table.tokens[joint, table.length[joint] - report.counts[joint] - 1]
            step.make = partial(self._texts.known.pieces, last, report.emitted[joint], report.counted[joint])
            step.slots = joint.tolist()
        sequences, starts = list(map(running.__getitem__, where)), before.tolist()
        names = [sequence.request.request_id for sequence in sequences]
        texts = list(map(self._texts.texts.__getitem__, names))
        deltas, ended = list(LazyDelta.of_step(step, where, names, texts, starts)), dict[int, int]()
        stopping = self._stops[slots]
        for at in stopping.nonzero()[0].tolist() if stopping.any() else ():
            slot, text, stream = where[at], texts[at], texts[at].stream
            pieces = None if stream is None else step.pieces.get(slot)
            if pieces is None or stream is None or not stream.passes(pieces):
                tokens, flags = tuple(report.tokens(slot)), tuple(report.flags(slot))
                gained = StreamDelta(names[at], tokens, flags, (), None, counts=sequences[at].counts)
                made = text.take(gained, starts[at])
                assert made is not None
                deltas[at] = made
                if text.stopped:
                    ended[slot] = text.count - starts[at]
        self._waiting.extend(zip(sequences, deltas, strict=True))
        return ended

    def took(self, sequence: Sequence) -> int | None:
        """Queue a request's new delta, if any, merged with queued ones after its end."""
        text, start, made = self._texts.texts[sequence.request.request_id], sequence.reported, sequence.delta()
        delta = None if made is None else text.take(made, start)
        if delta is not None:
            ends = delta.finish_reason is not None
            if ends and (earlier := [waiting for other, waiting in self._waiting if other is sequence]):
                self._waiting = deque(item for item in self._waiting if item[0] is not sequence)
                delta = StreamDelta.joined([*earlier, delta])
            self._waiting.append((sequence, delta))
        return text.count if text.stopped else None

    def deliver(self) -> None:
        """Call the callbacks; nested calls from a callback return at once."""
        if self._running:
            return
        self._running = True
        try:
            while self._waiting:
                sequence, delta = self._waiting.popleft()
                self._delivered.append(delta)
                callback = sequence.request.callback
                if callback is None:
                    continue
                try:
                    callback(delta)
                except Exception as error:
                    self._failed(sequence, error)
        finally:
            self._running = False

    def take(self) -> list[StreamDelta]:
        """See :class:`StepSink`."""
        delivered, self._delivered = self._delivered, []
        return delivered

    def finished(self, sequence: Sequence) -> RequestOutput:
        """See :class:`StepSink`."""
        return self._texts.output(sequence.output())

    def _failed(self, sequence: Sequence, error: Exception) -> None:
        _log.exception("request '%s': its callback failed; the request is ended", sequence.request.request_id)
        if sequence.finish_reason is None:
            self._fail(sequence, f"its callback raised {type(error).__name__}: {error}")
