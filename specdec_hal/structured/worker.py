"""Work in a separate process, killed beyond limits of time or memory.

For work that cannot be bounded inside a process: C code that holds the GIL, or foreign programs.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from weakref import finalize

from specdec_hal.errors import RequestError
from specdec_hal.tensors.memory import trim_heap
from specdec_hal.text import describe

MEMORY = 512 << 20
"""Default limit of memory beyond that at the start, in bytes."""
_START_S = 60.0
_GRACE_S = 2.0
_LARGE = 1 << 16
"""Size of a question after which the process releases memory."""
_log = logging.getLogger("specdec_hal")


class Worker:
    """Sends questions to a function, one at a time, in a process started on first use.

    `module` has a function ``answerer(setup)``, called once in the process, that returns the function from bytes to
    bytes. `task`: the work in errors, after the body's key.
    """

    def __init__(self, module: str, setup: bytes, task: str, memory: int = MEMORY) -> None:
        self._module, self._setup, self._task, self._memory = module, setup, task, memory
        self._thread = ThreadPoolExecutor(1, "worker")
        self._pipe: Connection | None = None
        self._end: Callable[[], object] = _nothing

    async def ask(self, question: bytes, limit_s: float) -> bytes:
        """:meth:`ask_here` on another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.ask_here, question, limit_s)

    def ask_here(self, question: bytes, limit_s: float) -> bytes:
        """The answer; RequestError if it takes more than `limit_s`, or its process ends."""
        try:
            pipe = self._started()
            pipe.send_bytes(str(limit_s).encode())
            pipe.send_bytes(question)
            if pipe.poll(limit_s):
                return pipe.recv_bytes()
            wrong = f"{self._task} has taken more than {limit_s:g} s"
        except (EOFError, OSError) as error:
            wrong = f"{self._task} has failed: its process has ended ({describe(error)})"
        _log.error("%s; restarting the process", wrong)
        self._end()
        self._pipe = None
        raise RequestError(wrong)

    def _started(self) -> Connection:
        if self._pipe is None:
            pipe, theirs = Pipe()
            with theirs:
                command = [sys.executable, "-m", __name__, str(theirs.fileno()), self._module, str(self._memory)]
                process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
            self._end = finalize(self, _end, process, pipe)
            pipe.send_bytes(self._setup)
            if not pipe.poll(_START_S):
                self._end()
                raise OSError(f"it has not started within {_START_S:g} s")
            pipe.recv_bytes()
            self._pipe = pipe
        return self._pipe


def _nothing() -> None:
    """Forget the process."""


def _end(process: subprocess.Popen[bytes], pipe: Connection) -> None:
    pipe.close()
    process.kill()
    process.wait()


def main(descriptor: int, module: str, memory: int) -> None:
    """The process: reads the setup, then pairs of a limit in seconds and a question."""
    with Connection(descriptor) as pipe:
        answer: Callable[[bytes], bytes] = import_module(module).answerer(pipe.recv_bytes())
        _limit_memory(memory)
        gc.freeze()
        pipe.send_bytes(b"")
        while True:
            try:
                limit_s = float(pipe.recv_bytes())
                question = pipe.recv_bytes()
            except EOFError:
                return
            # Ends a process whose parent was killed. Well after the limit: the parent says that it was exceeded.
            signal.setitimer(signal.ITIMER_REAL, limit_s + _GRACE_S)
            pipe.send_bytes(answer(question))
            signal.setitimer(signal.ITIMER_REAL, 0)
            if len(question) > _LARGE:
                gc.collect()
                trim_heap()


def _limit_memory(more: int) -> None:
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = taken + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
