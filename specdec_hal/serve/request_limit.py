"""How many requests are answered at the same time: one count of all processes that speak HTTP."""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RequestLimit:
    """At most `most` are taken at the same time, by all processes that share the file at `path`; None: by this one.

    Process `worker` of `workers` counts what it has taken in a cell of the file that it alone writes. So nothing is
    left over when processes are killed: what one had taken counts until its successor begins with a cell of 0, and the
    kernel unlocks the file.
    """

    def __init__(self, most: int, path: Path | None = None, worker: int = 0, workers: int = 1) -> None:
        self.most, self._mine, self._file = most, worker, -1
        size = workers * 4
        if path is None:
            self._taken = memoryview(bytearray(size)).cast("i")
            return
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, size)
        self._taken = memoryview(mmap.mmap(self._file, size)).cast("i")
        self._taken[worker] = 0

    @property
    def full(self) -> bool:
        """Whether all are taken."""
        return sum(self._taken) >= self.most

    def take(self) -> bool:
        """Take one; False if all are taken."""
        with self._locked():
            if self.full:
                return False
            self._taken[self._mine] += 1
        return True

    def give(self) -> None:
        """Give one back that this process has taken."""
        self._taken[self._mine] -= 1

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """No other process takes one meanwhile."""
        if self._file < 0:
            yield
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
