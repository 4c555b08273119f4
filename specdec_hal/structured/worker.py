"""Work in separate processes, killed beyond limits of time or memory.

For work that cannot be bounded inside a process: C code that holds the GIL, or foreign programs. One process per
:class:`Worker` imports and prepares what the work needs, and forks those that work. So a killed one is replaced within
milliseconds.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import NamedTuple, NoReturn
from weakref import finalize

from specdec_hal.errors import RequestError, WorkerError
from specdec_hal.plugin import parts
from specdec_hal.tensors.memory import trim_heap
from specdec_hal.text import describe

MEMORY = 512 << 20
"""Default limit of memory beyond that at the start, in bytes."""
_START_S = 60.0
_GRACE_S = 2.0
_LARGE = 1 << 16
"""Size of a question after which the process releases memory."""
_FAULTS = frozenset((signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGPROF, signal.SIGSEGV))
"""Signals that a question causes; others come from outside."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_log = logging.getLogger("specdec_hal")


class TimeLimitError(RequestError):
    """The work takes longer than its limit."""


class CrashedError(RequestError):
    """The work has ended its process by `signal`."""

    def __init__(self, message: str, by: signal.Signals) -> None:
        self.signal = by
        super().__init__(message)


class _Process(NamedTuple):
    pid: int
    pipe: Connection


class Worker:
    """Sends questions to a function, in processes started on first use. Thread-safe.

    `module` has a function ``answerer(setup)``, called once, that returns the function from bytes to bytes. `task`: the
    work in errors, after the body's key. `processes`: how many questions are worked on at once; others wait in line.
    With `quick_s`, a question that takes longer leaves its place to the next one, and `processes` more places are for
    such long work. If these are taken, its work is begun again later. `nice`: added to the processes' nice value.
    """

    def __init__(
        self,
        module: str,
        setup: bytes,
        task: str,
        memory: int = MEMORY,
        *,
        processes: int = 1,
        quick_s: float | None = None,
        nice: int = 0,
    ) -> None:
        self._task, self._quick_s = task, quick_s
        self._template = _Template(module, setup, memory, nice)
        self._threads = ThreadPoolExecutor(processes, "worker")
        self._places, self.long_places = threading.Semaphore(processes), threading.Semaphore(processes)
        self.idle: list[_Process] = []
        """Processes without a question."""

    async def ask(self, question: bytes, limit_s: float) -> bytes:
        """:meth:`ask_here` on another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.ask_here, question, limit_s)

    def ask_here(self, question: bytes, limit_s: float) -> bytes:
        """The answer. TimeLimitError if it takes more than `limit_s`, CrashedError if the question ends its process,
        WorkerError if anything else does.
        """
        first_s = limit_s if self._quick_s is None else min(limit_s, self._quick_s)
        with self._places:
            process = self._asked(question, limit_s)
            answer = self._answered(process, first_s)
            if answer is not None:
                return answer
            goes_on = first_s < limit_s and self.long_places.acquire(blocking=False)
            if not goes_on:
                self._template.end(process)
        if first_s == limit_s:
            raise self._too_long(limit_s)
        if not goes_on:
            self.long_places.acquire()
        try:
            if not goes_on:
                process, first_s = self._asked(question, limit_s), 0.0
            answer = self._answered(process, limit_s - first_s)
            if answer is None:
                self._template.end(process)
                raise self._too_long(limit_s)
            return answer
        finally:
            self.long_places.release()

    def _too_long(self, limit_s: float) -> TimeLimitError:
        wrong = f"{self._task} has taken more than {limit_s:g} s"
        _log.error("%s; its process was ended", wrong)
        return TimeLimitError(wrong)

    def _asked(self, question: bytes, limit_s: float) -> _Process:
        """A process that has the question."""
        process = self._free()
        try:
            process.pipe.send_bytes(str(limit_s).encode())
            process.pipe.send_bytes(question)
        except OSError as error:
            raise self._ended(process) from error
        return process

    def _answered(self, process: _Process, limit_s: float) -> bytes | None:
        """The answer of a process, or None if it has none within `limit_s`."""
        try:
            if not process.pipe.poll(limit_s):
                return None
            answer = process.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._ended(process) from error
        self.idle.append(process)
        return answer

    def _free(self) -> _Process:
        """An idle process that still runs, or a new one."""
        while True:
            try:
                process = self.idle.pop()
            except IndexError:
                break
            if not process.pipe.poll(0):
                return process
            self._template.end(process)  # it has ended while it was idle
        try:
            return self._template.forked()
        except (EOFError, OSError) as error:
            wrong = f"{self._task} has failed: its process does not start ({describe(error)})"
            _log.error("%s", wrong)
            raise WorkerError(f"{wrong}; try again") from error

    def _ended(self, process: _Process) -> CrashedError | WorkerError:
        """Why a process has ended."""
        status = self._template.end(process)
        by = signal.Signals(-status) if status is not None and status < 0 else None
        how = (
            "has ended" if status is None else f"has exited with {status}" if by is None else f"was ended by {by.name}"
        )
        wrong = f"{self._task} has failed: its process {how}"
        _log.error("%s", wrong)
        return CrashedError(wrong, by) if by in _FAULTS else WorkerError(f"{wrong}; try again")


class _Template:
    """The process that forks others, once it has prepared their work."""

    def __init__(self, module: str, setup: bytes, memory: int, nice: int) -> None:
        self._setup = setup
        self._arguments = [module, str(memory), str(nice)]
        self._lock = threading.Lock()
        self._control: Connection | None = None
        self._stop: Callable[[], object] = _nothing

    def forked(self) -> _Process:
        """A new process. OSError or EOFError if there is none."""
        with self._lock:
            if self._control is not None:
                with suppress(EOFError, OSError):  # it was killed
                    return self._fork(self._control)
                self._forget()
            try:
                return self._fork(self._started())
            except (EOFError, OSError):
                self._forget()
                raise

    def end(self, process: _Process) -> int | None:
        """Kill a process, if it still runs; returns its exit status, negative for a signal, or None if unknown."""
        process.pipe.close()
        with self._lock:
            if self._control is None:
                return None
            try:
                self._control.send_bytes(str(process.pid).encode())
                return int(self._control.recv_bytes()) if self._control.poll(_GRACE_S) else None
            except (EOFError, OSError):
                self._forget()
                return None

    def _fork(self, control: Connection) -> _Process:
        pipe, theirs = Pipe()
        with theirs:
            control.send_bytes(b"")
            send_handle(control, theirs.fileno(), None)
            if not control.poll(_START_S):
                raise OSError(f"it has not started within {_START_S:g} s")
        return _Process(int(control.recv_bytes()), pipe)

    def _started(self) -> Connection:
        control, theirs = Pipe()
        with theirs:
            command = parts.command(__name__, str(theirs.fileno()), *self._arguments)
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], start_new_session=True, env={**os.environ, **_ONE_THREAD}
            )
        self._control, self._stop = control, finalize(self, _stop, process, control)
        control.send_bytes(self._setup)
        if not control.poll(_START_S):
            raise OSError(f"it has not started within {_START_S:g} s")
        control.recv_bytes()
        return control

    def _forget(self) -> None:
        self._stop()
        self._control = None


def _nothing() -> None:
    """There is no process yet."""


def _stop(process: subprocess.Popen[bytes], control: Connection) -> None:
    control.close()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with those that it has forked
    process.wait()


# ---- in the processes


def main(descriptor: int, module: str, memory: int, nice: int) -> None:
    """The template: reads the setup, then orders to fork a process (empty, with a socket) or to end one (its id)."""
    os.nice(nice)
    with Connection(descriptor) as control:
        answer: Callable[[bytes], bytes] = import_module(module).answerer(control.recv_bytes())
        gc.freeze()
        control.send_bytes(b"")
        while True:
            try:
                order = control.recv_bytes()
            except EOFError:
                return
            control.send_bytes(str(_killed(int(order)) if order else _forked(control, answer, memory)).encode())


def _killed(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _forked(control: Connection, answer: Callable[[bytes], bytes], memory: int) -> int:
    descriptor = recv_handle(control)
    pid = os.fork()
    if not pid:
        control.close()
        _work(descriptor, answer, memory)
    os.close(descriptor)
    return pid


def _work(descriptor: int, answer: Callable[[bytes], bytes], memory: int) -> NoReturn:
    """A forked process: reads pairs of a limit in seconds and a question."""
    try:
        _limit_memory(memory)
        with Connection(descriptor) as pipe:
            while True:
                try:
                    limit_s = float(pipe.recv_bytes())
                    question = pipe.recv_bytes()
                except EOFError:
                    os._exit(0)
                # Ends a process whose parent was killed. Well after the limit: the parent says that it was exceeded.
                signal.setitimer(signal.ITIMER_REAL, limit_s + _GRACE_S)
                pipe.send_bytes(answer(question))
                signal.setitimer(signal.ITIMER_REAL, 0)
                if len(question) > _LARGE:
                    gc.collect()
                    trim_heap()
    except BaseException:  # it must not return to the template's code
        traceback.print_exc()
    os._exit(1)


def _limit_memory(more: int) -> None:
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = taken + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
