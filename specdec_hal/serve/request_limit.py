"""A limit on concurrent requests, shared by all HTTP processes."""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RequestLimit:
    """At most `most` places are taken by all processes that share the file at `path`; None: by this process.

    Process `worker` of `workers` counts its places in its own cell of the file. So killed processes leave nothing
    behind: the successor resets the cell, and the kernel unlocks the file.
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
        """Return a place taken by this process."""
        self._taken[self._mine] -= 1

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other processes."""
        if self._file < 0:
            yield
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
