"""Compile kernels before they are launched, in separate processes.

Triton compiles each kernel at its first launch. Here launches only record the kernels that they need (Triton's
jit_cache_hook), and processes without a device compile these in parallel into Triton's persistent cache folder
(TRITON_CACHE_DIR, ~/.triton/cache). The next launch loads them.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.cache import triton_key
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from specdec_hal.plugin import parts
from specdec_hal.tensors import cpu_threads
from specdec_hal.text import describe

_log = logging.getLogger("specdec_hal")
_IDLE_S = 60
_compiled = 0


class Kernel(NamedTuple):
    """A kernel with the types and constants of a launch, as ``JITFunction.preload`` takes them, for a ``GPUTarget``."""

    module: str
    name: str
    data: str
    target: str


class NoDevice:
    """A substitute for a device of that kind, sufficient for compilation."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        """See DriverBase."""
        return self._target

    def get_current_device(self) -> int:
        """See DriverBase."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """See DriverBase."""
        return 0


@cache
def _listen() -> None:
    """Start counting, once per process; an existing listener is still called."""
    before = knobs.compilation.listener

    def heard(**event: Any) -> None:
        global _compiled
        _compiled += 1
        if before is not None:
            before(**event)

    knobs.compilation.listener = heard


def compilations() -> int:
    """Kernels compiled or loaded from the cache folder by this process since the first call."""
    _listen()
    return _compiled


class _Recorder:
    """Has some threads launch nothing, but record the kernels that are not loaded. Others go on as before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[int, dict[Kernel, Path]] = {}
        """What each of the threads has recorded."""
        self._before: tuple[Any, Any] = (None, None)

    @contextmanager
    def recording(self, wanted: dict[Kernel, Path]) -> Iterator[None]:
        """Context in which this thread fills `wanted`."""
        thread = threading.get_ident()
        with self._lock:
            if not self._wanted:
                self._before = knobs.runtime.jit_cache_hook, JITFunction.run
                knobs.runtime.jit_cache_hook = self._missing
                JITFunction.run = lambda kernel, *args, **more: self._run(kernel, *args, **more)
            self._wanted[thread] = wanted
        try:
            yield
        finally:
            with self._lock:
                del self._wanted[thread]
                if not self._wanted:
                    knobs.runtime.jit_cache_hook, JITFunction.run = self._before

    def _missing(self, *, fn: Any, compile: dict[str, Any], **event: Any) -> bool | None:
        wanted, (before, _) = self._wanted.get(threading.get_ident()), self._before
        if wanted is None:
            return None if before is None else bool(before(fn=fn, compile=compile, **event))
        target = json.dumps(vars(driver.active.get_current_target()))
        kernel = Kernel(fn.module, fn.name, compile["specialization_data"], target)
        wanted[kernel] = _marker(kernel, fn.jit_function.cache_key)
        return True

    def _run(self, kernel: Any, *args: Any, warmup: bool, **more: Any) -> Any:
        """Not even a loaded kernel, which would read what others have not written, or wait for a rank that waits."""
        return self._before[1](kernel, *args, warmup=warmup or threading.get_ident() in self._wanted, **more)


_recorder = _Recorder()


@contextmanager
def compiling(workers: int | None = None) -> Iterator[None]:
    """Context in which this thread launches nothing, but records missing kernels; on exit, `workers` processes (None:
    one per core) compile them. Outputs of kernels are undefined.
    """
    wanted = dict[Kernel, Path]()
    with _recorder.recording(wanted):
        yield
    missing = {kernel: marker for kernel, marker in wanted.items() if not marker.exists()}
    if not missing:
        return
    began, count = time.perf_counter(), min(workers or cpu_threads.cores(), len(missing))
    if why := compile_all(list(missing), count):  # launches compile the rest
        _log.warning("kernels could not be compiled ahead: %s", why)
        return
    for marker in missing.values():
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    _log.info("compiled %d kernels in %.1f s", len(missing), time.perf_counter() - began)


class _Compiler:
    """A process without a device, which does not rerun the caller's script, and forks for each share of the kernels.

    So a share begins at once. The process ends after a minute without kernels.
    """

    def __init__(self) -> None:
        command = parts.command(__name__)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._process.wait, daemon=True).start()  # leaves no zombie

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    def compile(self, kernels: Sequence[Kernel], processes: int) -> str:
        """See :func:`compile_all`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps([processes, *kernels]), file=self._process.stdin, flush=True)
        if answer := self._process.stdout.readline():
            return str(json.loads(answer))
        return f"the compiling process ended with status {self._process.wait()}"


_compiler: _Compiler | None = None
_compiler_lock = threading.Lock()


def compile_all(kernels: Sequence[Kernel], processes: int) -> str:
    """Put kernels into the cache folder; returns the reason of a failure, or of the first of several."""
    with _compiler_lock:
        return _running().compile(kernels, processes)


def _running() -> _Compiler:
    global _compiler
    if _compiler is None or not _compiler.running:
        _compiler = _Compiler()
    return _compiler


def prepare() -> None:
    """Start the process that compiles, if nothing was compiled ahead into the cache folder yet; and hash this Triton in
    another thread, without the interpreter's lock, as its first launch would."""
    threading.Thread(target=triton_key, daemon=True).start()
    if not _folder().exists():
        with _compiler_lock:
            _running()


def _marker(kernel: Kernel, source: str) -> Path:
    """The file in the cache folder that marks a kernel as present."""
    digest = sha256("\0".join([triton.__version__, source, *kernel]).encode()).hexdigest()
    return _folder() / digest


def _folder() -> Path:
    return Path(knobs.cache.dir) / "specdec_hal"


def _serve(requests: TextIO, answers: TextIO) -> None:
    """In a process without a device: compile what is asked for into the cache folder."""
    triton_key()
    import_module("triton.compiler.code_generator")
    while True:
        signal.alarm(_IDLE_S)
        line = requests.readline()
        signal.alarm(0)
        if not line:
            return
        processes, *found = json.loads(line)
        kernels, why = [Kernel(*kernel) for kernel in found], ""
        driver.set_active(NoDevice(GPUTarget(**json.loads(kernels[0].target))))
        try:
            for kernel in kernels:
                import_module(kernel.module)
            with ProcessPoolExecutor(processes, get_context("fork")) as pool:
                list(pool.map(_preload, kernels))
        except Exception as error:
            why = describe(error)
        print(json.dumps(why), file=answers, flush=True)


def _preload(kernel: Kernel) -> None:
    compiled = getattr(import_module(kernel.module), kernel.name).preload(kernel.data)
    with suppress(Exception):  # Triton 3.6 compiles a launcher in C too, at the first launch of a signature
        import_module("triton.backends.nvidia.driver").CudaLauncher(compiled.src, compiled.metadata)


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as stdout:
        os.dup2(2, 1)  # for what the compiler prints
        _serve(sys.stdin, stdout)
