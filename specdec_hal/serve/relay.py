"""Makes every line on stdout and stderr of a process and its children a JSON object.

Loggers have a formatter. Native libraries, child processes and the interpreter's own last words do not: they write to
file descriptors. :func:`start` turns these into pipes to another process, this file as a script, which passes JSON
objects on and wraps other lines. It is a process because a thread would need the GIL to empty the pipe, which a library
may hold while it waits for room, and because it outlives a crash. The file imports the standard library alone.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

_NAMES = {1: "stdout", 2: "stderr"}
_GATHER_S = 0.1
"""Lines without a pause of this length between them, such as those of a traceback, become one object."""
_LONGEST = 1 << 20
"""Bytes of a line or of gathered lines after which they are written."""
_FLUSH_S = 2.0
"""How long a process waits for its last lines. Its children may still write."""
_started = False


def entry(created: float, level: str, logger: str, message: str, /, **more: Any) -> str:
    """A line of the log. `created`: seconds since the epoch."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    found = {"time": f"{moment}.{int(created % 1 * 1e3):03d}Z", "level": level, "logger": logger, "message": message}
    return json.dumps({**found, **more}, ensure_ascii=False)


def start() -> None:
    """Wrap what this process and its children write from now on. Further calls do nothing."""
    global _started
    if _started:
        return
    _started = True
    saved, ours, pairs = dict[int, int](), dict[int, int](), list[tuple[str, int, int]]()
    for descriptor, name in _NAMES.items():
        with contextlib.suppress(OSError):  # it is closed
            saved[descriptor] = os.dup(descriptor)
            theirs, ours[descriptor] = os.pipe()
            pairs.append((name, theirs, saved[descriptor]))
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, *(f"{name}:{theirs}:{target}" for name, theirs, target in pairs)],
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor for _, *both in pairs for descriptor in both],
        start_new_session=True,  # Ctrl-C is not for it
    )
    _flush()
    for _, theirs, _ in pairs:
        os.close(theirs)
    for descriptor, end in ours.items():
        os.dup2(end, descriptor)
        os.close(end)
    atexit.register(_finish, process, saved)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError, ValueError):
            stream.flush()


def _finish(process: subprocess.Popen[bytes], saved: dict[int, int]) -> None:
    """Wait until everything is written, as the end of this process may be that of a container."""
    _flush()
    for descriptor, end in saved.items():
        os.dup2(end, descriptor)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_FLUSH_S)


class Stream:
    """Lines from a pipe to a descriptor."""

    def __init__(self, name: str, target: int) -> None:
        self._name, self._target = name, target
        self._rest = b""
        self._plain = list[bytes]()
        """Lines that are to become one object."""
        self._size = 0

    @property
    def gathers(self) -> bool:
        """Whether lines wait for others."""
        return bool(self._plain)

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > _LONGEST:
            self._take(self._rest)
            self._rest = b""

    def end(self) -> None:
        """Write what is left."""
        self._take(self._rest)
        self.wrap()

    def _take(self, line: bytes) -> None:
        if _is_object(line):
            self.wrap()
            self._write(line)
        elif line.strip() or self._plain:
            self._plain.append(line)
            self._size += len(line)
            if self._size > _LONGEST:
                self.wrap()

    def wrap(self) -> None:
        """Write gathered lines as an object."""
        text = b"\n".join(self._plain).decode("utf-8", "backslashreplace").rstrip()
        self._plain, self._size = [], 0
        if text:
            self._write(entry(time.time(), "INFO", self._name, text).encode())

    def _write(self, line: bytes) -> None:
        line += b"\n"
        while line:
            try:
                line = line[os.write(self._target, line) :]
            except OSError:  # without a reader, the processes continue
                return


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _relay(pairs: list[str]) -> None:
    """In the process: until every writer has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    streams = dict[int, Stream]()
    with selectors.DefaultSelector() as selector:
        for name, source, target in (pair.split(":") for pair in pairs):
            streams[int(source)] = Stream(name, int(target))
            selector.register(int(source), selectors.EVENT_READ)
        while streams:
            ready = selector.select(_GATHER_S if any(stream.gathers for stream in streams.values()) else None)
            for key, _ in ready:
                if data := os.read(key.fd, 1 << 16):
                    streams[key.fd].feed(data)
                else:
                    selector.unregister(key.fd)
                    streams.pop(key.fd).end()
            if not ready:
                for stream in streams.values():
                    stream.wrap()


if __name__ == "__main__":
    _relay(sys.argv[1:])
