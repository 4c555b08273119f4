"""Starts the processes, and restarts those that die."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq

from specdec_hal.serve.split.addresses import ENGINE, Down, Outbox, http, parts, worker_of

_log = logging.getLogger("specdec_hal")

_FAILURES = 3
"""Most consecutive failed starts of a process before all are ended."""
_BAD_INPUT = 2
"""Exit status of a process that has printed what is wrong with its input, such as the model's files."""
_PAUSE_S = 0.1
"""Before a process restarts."""


@dataclass(frozen=True)
class Part:
    """A process's arguments from its supervisor. `alive_fd`: a pipe that closes with the supervisor."""

    name: str
    directory: Path
    alive_fd: int
    resume: bool

    @property
    def worker(self) -> int | None:
        """Its number among HTTP processes; None for others."""
        return worker_of(self.name)

    def watch(self) -> None:
        """End this process after the supervisor."""
        threading.Thread(target=self._watch, name="supervisor-watch", daemon=True).start()

    def until_engine_listens(self) -> None:
        """Wait until an engine has loaded its model."""
        while not (self.directory / ENGINE).exists():
            time.sleep(_PAUSE_S)

    def _watch(self) -> None:
        while os.read(self.alive_fd, 1):
            pass
        os._exit(1)


class Supervisor:
    """Keeps the processes of a server running. `command` returns a process's command line; all inherit `fds`.

    Killed processes restart. One that exits by itself at its first start, or three times in a row, ends all.
    """

    def __init__(self, command: Callable[[Part], list[str]], fds: tuple[int, ...], http_workers: int = 1) -> None:
        self._command, self._fds = command, fds
        self._parts, self._http = parts(http_workers), [http(worker) for worker in range(http_workers)]
        self.directory = Path(tempfile.mkdtemp(prefix="specdec-hal-"))
        self._alive, self._held = os.pipe()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._failures = dict.fromkeys(self._parts, 0)
        self._stopping = False

    def run(self) -> int:
        """Until SIGTERM, SIGINT, or a process that cannot be started; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        outboxes = [Outbox(context, self.directory, name) for name in self._http]
        ended = dict[str, int]()
        try:
            for name in self._parts:
                self._start(name, resume=False)
            while True:
                pid, status = os.waitpid(-1, 0)
                code = os.waitstatus_to_exitcode(status)
                found = [name for name, process in self._processes.items() if process.pid == pid]
                if not found:  # another child, such as the log's
                    continue
                (name,) = found
                self._processes[name].returncode = code  # waited for above
                if self._stopping and name in self._http:
                    ended[name] = code
                    if len(ended) < len(self._http):
                        continue
                    return 0 if all(code in (0, -signal.SIGTERM) for code in ended.values()) else 1
                if code < 0:
                    self._failures[name] = 0
                elif not self._may_start_again(name, code):
                    return code or 1
                _log.error("the process '%s' has died (%s); restarting it", name, code)
                if name not in self._http:
                    for outbox in outboxes:
                        outbox.send(Down())
                time.sleep(_PAUSE_S)
                self._start(name, resume=True)
        finally:
            self._end()
            for outbox in outboxes:
                outbox.close()

    def _may_start_again(self, name: str, code: int) -> bool:
        """Handle a process's own exit, which is tolerated if it has worked before."""
        self._failures[name] += 1
        if self._failures[name] < _FAILURES and (self.directory / name).exists():  # its socket
            return True
        if code != _BAD_INPUT:
            _log.error("the process '%s' ends with status %d; the server ends", name, code)
        return False

    def _start(self, name: str, resume: bool) -> None:
        part = Part(name, self.directory, self._alive, resume)
        self._processes[name] = subprocess.Popen(
            self._command(part), pass_fds=(self._alive, *self._fds), start_new_session=True
        )
        if self._stopping and name in self._http:  # the signal came while there was none
            self._processes[name].send_signal(signal.SIGTERM)

    def _stop(self, number: int, frame: object) -> None:
        """Let HTTP finish its requests first; the second time end everything at once."""
        for name in self._http:
            process = self._processes.get(name)
            if process is not None and process.returncode is None:
                process.send_signal(signal.SIGKILL if self._stopping else signal.SIGTERM)
        self._stopping = True

    def _end(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
                process.wait()
        os.close(self._held)
        os.close(self._alive)
        shutil.rmtree(self.directory, ignore_errors=True)
