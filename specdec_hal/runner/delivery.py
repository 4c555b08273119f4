"""From steps to callbacks: each request's deltas in order, without loss, ending with a final one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from specdec_hal.output.text import LazyDelta, Step
from specdec_hal.request import StreamDelta
from specdec_hal.runner.sequence import Sequence

_log = logging.getLogger("specdec_hal")


class Delivery:
    """Queued deltas.

    If an exception such as KeyboardInterrupt escapes a callback, the remaining deltas stay queued for the next
    :meth:`run`. `fail(sequence, error)` ends the request of a callback that raises.
    """

    def __init__(self, fail: Callable[[Sequence, str], None]) -> None:
        self._fail = fail
        self._waiting: deque[tuple[Sequence, StreamDelta]] = deque()
        self._delivered: list[StreamDelta] = []
        self._running = False

    def __len__(self) -> int:
        return len(self._waiting)

    def extend(self, sequences: list[Sequence], step: Step, slots: list[int], lengths: list[int]) -> None:
        """Queue what requests gained by a step in these slots, after contexts of so many tokens."""
        self._waiting.extend(zip(sequences, LazyDelta.of_step(step, slots, sequences, lengths), strict=True))

    def add(self, sequence: Sequence) -> None:
        """Queue a request's new delta, if any, merged with queued ones after its end."""
        delta = sequence.delta()
        if delta is None:
            return
        if delta.finish_reason is not None:
            earlier = [waiting for other, waiting in self._waiting if other is sequence]
            if earlier:  # else its text need not be made
                self._waiting = deque(item for item in self._waiting if item[0] is not sequence)
                delta = StreamDelta.joined([*earlier, delta])
        self._waiting.append((sequence, delta))

    def run(self) -> None:
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
        """Everything delivered since the last call."""
        delivered, self._delivered = self._delivered, []
        return delivered

    def _failed(self, sequence: Sequence, error: Exception) -> None:
        _log.exception("request '%s': its callback failed; the request is ended", sequence.request.request_id)
        if sequence.finish_reason is None:
            self._fail(sequence, f"its callback raised {type(error).__name__}: {error}")
