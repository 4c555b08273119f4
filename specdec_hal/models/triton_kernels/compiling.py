"""Compile kernels before they are launched, in separate processes.

Triton compiles each kernel at its first launch. Here launches only record the kernels that they need (Triton's
jit_cache_hook), and processes without a device compile these in parallel into Triton's persistent cache folder
(TRITON_CACHE_DIR, ~/.triton/cache). The next launch loads them.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from specdec_hal.text import one_line

_log = logging.getLogger("specdec_hal")
_compiled = 0


class _Kernel(NamedTuple):
    """A kernel with the types and constants of a launch, as ``JITFunction.preload`` takes them, for a ``GPUTarget``."""

    module: str
    name: str
    data: str
    target: str


class _NoDevice:
    """A substitute for a device of that kind, sufficient for compilation."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
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


@contextmanager
def compiling(workers: int | None = None) -> Iterator[None]:
    """Context in which this thread's launches only record missing kernels; on exit, `workers` processes (None: one per
    core) compile them. Outputs of kernels are undefined.
    """
    wanted, thread, before = dict[_Kernel, Path](), threading.get_ident(), knobs.runtime.jit_cache_hook
    target = json.dumps(vars(driver.active.get_current_target()))

    def name(*, fn: Any, compile: dict[str, Any], **event: Any) -> bool | None:
        if threading.get_ident() != thread:
            return None if before is None else before(fn=fn, compile=compile, **event)
        kernel = _Kernel(fn.module, fn.name, compile["specialization_data"], target)
        wanted[kernel] = _marker(kernel, fn.jit_function.cache_key)
        return True

    knobs.runtime.jit_cache_hook = name
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = before
    missing = {kernel: marker for kernel, marker in wanted.items() if not marker.exists()}
    if not missing:
        return
    began, count = time.perf_counter(), min(workers or len(os.sched_getaffinity(0)), len(missing))
    shares = [list(missing)[share::count] for share in range(count)]
    with ThreadPoolExecutor(count) as pool:
        failures = [why for why in pool.map(_in_a_process, shares) if why]
    if failures:  # launches compile the rest
        _log.warning("kernels could not be compiled ahead: %s", failures[0])
        return
    for marker in missing.values():
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    _log.info("compiled %d kernels in %.1f s", len(missing), time.perf_counter() - began)


def _in_a_process(kernels: Sequence[_Kernel]) -> str:
    """Compile them in another process, without rerunning the caller's script; returns the reason of a failure."""
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=json.dumps(kernels), text=True, capture_output=True)
    return f"{one_line(done.stderr[-500:])} (status {done.returncode})" if done.returncode else ""


def _marker(kernel: _Kernel, source: str) -> Path:
    """The file in the cache folder that marks a kernel as present."""
    digest = sha256("\0".join([triton.__version__, source, *kernel]).encode()).hexdigest()
    return Path(knobs.cache.dir) / "specdec_hal" / digest


def _compile(kernel: _Kernel) -> None:
    """In a process without a device: compile a kernel into the cache folder."""
    driver.set_active(_NoDevice(GPUTarget(**json.loads(kernel.target))))
    getattr(import_module(kernel.module), kernel.name).preload(kernel.data)


if __name__ == "__main__":
    for found in json.load(sys.stdin):
        _compile(_Kernel(*found))
