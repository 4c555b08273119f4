"""Free memory, checks against it, and the garbage collector."""

from __future__ import annotations

import ctypes
import functools
import gc
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from specdec_hal.errors import InsufficientMemoryError

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_lock = threading.Lock()
_pauses = 0
"""Pauses of the garbage collector, of all threads."""
_collecting = False
"""Whether it ran before the first of them."""


def require(what: str, parts: Mapping[str, int], device: str, free: int | None, hint: str) -> None:
    """InsufficientMemoryError, with every part and the hint, if `parts` (bytes) are more than `free` bytes.

    `free` None: unknown, and nothing is refused.
    """
    needed = sum(parts.values())
    if free is not None and needed > free:
        largest = sorted(parts.items(), key=lambda part: -part[1])
        listed = ", ".join(f"{name} {as_text(size)}" for name, size in largest if size)
        raise InsufficientMemoryError(
            f"{what}: expected at most the {as_text(free)} that are free on {device}, got a need of {as_text(needed)} "
            f"({listed}); {hint}"
        )


def as_text(size: int) -> str:
    """Bytes for people."""
    for unit, shift in (("GiB", 30), ("MiB", 20)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.1f} {unit}"
    return f"{size} bytes"


def freeze_heap() -> None:
    """Exclude existing objects from garbage collection.

    For servers when ready: a full collection visits all objects of the frameworks, which takes tens of milliseconds in
    the middle of a step. Later calls first collect new garbage.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Context without garbage collection in any thread."""
    _pause(1)
    try:
        yield
    finally:
        _pause(-1)


def _pause(change: int) -> None:
    global _pauses, _collecting
    with _lock:
        if not _pauses:
            _collecting = gc.isenabled()
            gc.disable()
        _pauses += change
        if not _pauses and _collecting:
            gc.enable()


def age_heap() -> None:
    """Put all objects into the oldest generation, without a visit to each; nothing if some are frozen."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


def trim_heap() -> None:
    """Return freed memory from glibc to the system; takes milliseconds."""
    if (trim := getattr(_libc(), "malloc_trim", None)) is not None:
        trim(0)


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


def heap_bytes() -> int:
    """Bytes that glibc has handed out in this process, without freed ones; 0 with another C library."""
    if (info := getattr(_libc(), "mallinfo2", None)) is None:
        return 0
    info.restype = _MallInfo
    found = info()
    return int(found.uordblks + found.hblkhd)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def host_free() -> int | None:
    """Free bytes for this process: of the machine or its control group, whichever is less."""
    known = [free for free in (_machine_free(), _group_free()) if free is not None]
    return min(known, default=None)


def _machine_free() -> int | None:
    for line in _lines(_MEMINFO):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return None


def _group_free() -> int | None:
    """From a control group of version 2, or of version 1; None without a limit."""
    for folder, limit, used, cache in (
        (_CGROUP, "memory.max", "memory.current", "inactive_file"),
        (_CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, current = ("".join(_lines(folder / name)).strip() for name in (limit, used))
        if most.isdecimal() and current.isdecimal():
            reclaimable = (line.split() for line in _lines(folder / "memory.stat"))
            cached = sum(int(words[1]) for words in reclaimable if words[:1] == [cache])
            return max(0, int(most) - int(current) + cached)
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
