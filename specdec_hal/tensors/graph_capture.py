"""Whether this thread captures a step in a device graph, and what may not happen meanwhile.

An op launched on another stream than the captured one raises nothing by itself and silently stays out of the graph; a
read waits for work that has not been submitted. Both are refused by name instead. Other threads go on as before: they
launch, allocate, read, and capture steps of their own.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet

from specdec_hal.errors import CaptureError


class Graph(Protocol):
    """What a capture makes."""

    def release(self) -> None:
        """Free it."""


class Capture:
    """A capture under way. `users`: where its graph has to be noted, by those who must outlive it."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.users: list[WeakSet[Graph]] = []


class _Here(threading.local):
    capture: Capture | None = None


_here = _Here()
_lock = threading.Lock()
_under_way = 0
"""Captures of all threads."""
_collecting = False
"""Whether the collector of cycles ran before the first of them."""


@contextmanager
def capturing(stream: int) -> Iterator[Capture]:
    """Mark that this thread captures the work on `stream`.

    The collector of cycles rests until no thread captures: a graph that it found could not be released, and would stay
    forever.
    """
    before, _here.capture = _here.capture, Capture(stream)
    _pause(1)
    try:
        yield _here.capture
    finally:
        _pause(-1)
        _here.capture = before


def _pause(change: int) -> None:
    global _under_way, _collecting
    with _lock:
        if not _under_way:
            _collecting = gc.isenabled()
            gc.disable()
        _under_way += change
        if not _under_way and _collecting:
            gc.enable()


def current_capture() -> Capture | None:
    """This thread's capture, if there is one."""
    return _here.capture if _under_way else None  # a thread's own variable takes three times as long to read


def refuse_in_capture(what: str) -> None:
    """CaptureError if this thread captures a step: the host neither reads nor writes tensors then."""
    if current_capture() is not None:
        raise CaptureError(
            f"expected launches only while a step is captured, got a tensor {what} by the host; do it before the step"
        )


def check_stream(op: str, stream: int) -> None:
    """CaptureError if this thread captures a step on another stream than the one that `op` is launched on."""
    if _under_way and (capture := _here.capture) is not None and stream != capture.stream:
        raise CaptureError(
            f"{op}: expected a launch on the captured stream {capture.stream:#x}, got stream {stream:#x}; launch it on "
            "the framework's current stream, or it stays out of the graph"
        )
