"""Captures of device graphs by this thread, and checks of forbidden operations.

An op on another stream would silently stay out of the graph, and a read would wait for unsubmitted work. Both are
refused by name. Other threads may launch, allocate, read and capture.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet

from specdec_hal.errors import CaptureError
from specdec_hal.tensors.memory import collector_paused


class Graph(Protocol):
    """What a capture makes."""

    def release(self) -> None:
        """Free it."""


class Capture:
    """A running capture. `users`: sets that must record its graph, since their owners must outlive it."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.users: list[WeakSet[Graph]] = []


class _Here(threading.local):
    capture: Capture | None = None


_here = _Here()
_lock = threading.Lock()
_under_way = 0
"""Captures of all threads."""


@contextmanager
def capturing(stream: int) -> Iterator[Capture]:
    """Mark that this thread captures `stream`.

    Disables the garbage collector while any thread captures: a graph collected meanwhile could never be released.
    """
    before, _here.capture = _here.capture, Capture(stream)
    _count(1)
    try:
        with collector_paused():
            yield _here.capture
    finally:
        _count(-1)
        _here.capture = before


def _count(change: int) -> None:
    global _under_way
    with _lock:
        _under_way += change


def current_capture() -> Capture | None:
    """This thread's capture, if there is one."""
    return _here.capture if _under_way else None  # a thread's own variable takes three times as long to read


def refuse_in_capture(what: str) -> None:
    """CaptureError if this thread captures a step, for host reads and writes."""
    if current_capture() is not None:
        raise CaptureError(
            f"expected launches only while a step is captured, got a tensor {what} by the host; do it before the step"
        )


def check_stream(op: str, stream: int) -> None:
    """CaptureError if this thread captures another stream than that of `op`."""
    if _under_way and (capture := _here.capture) is not None and stream != capture.stream:
        raise CaptureError(
            f"{op}: expected a launch on the captured stream {capture.stream:#x}, got stream {stream:#x}; launch it on "
            "the framework's current stream, or it stays out of the graph"
        )
