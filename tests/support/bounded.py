"""Hostile input in a test: a hang becomes a failure, and so does memory that grows out of proportion."""

from __future__ import annotations

import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

MEMORY = 100 << 20
PATIENCE = 60
"""Seconds: far beyond what a slow machine needs, so that only a hang takes so long."""


@contextmanager
def bounded() -> Iterator[None]:
    """Fail if the block hangs or needs more than 100 MB at a time."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still busy after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(PATIENCE)
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
        assert peak < MEMORY, f"{peak >> 20} MB"
    finally:
        tracemalloc.stop()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
