"""Compiling for the tests: each program once per session, whichever worker asks first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal_xpu.calls import Call, Host, Ran
from specdec_hal_xpu.cc import Build, build, toolchain
from specdec_hal_xpu.pytest_plugin import XpuPrograms
from tests.xpu.program import BUILTIN_FILES, BUILTIN_TESTS, PAIRS, Program

# No fence but the kernels' own: what these tests are about.
PROFILES = ("portable",)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of the session."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / "xpu_programs"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def compiled(shared_folder: Path) -> Callable[..., Program]:
    """compiled(name, sources, mode): the program, built unless some worker has."""
    toolchain()  # says what is missing, once

    def make(name: str, sources: Sequence[Path], mode: str, flags: Sequence[str] = ()) -> Program:
        output = shared_folder / f"{name}_{mode}"
        with open(f"{output}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            failed = output.with_suffix(".failed")  # once is enough
            if not output.is_file() and not failed.is_file():
                unfinished = output.with_suffix(".tmp")
                flags = ("-Wall", "-Wextra", "-Werror", *flags)
                parts = [Path(f"{output}.{number}.o") for number in range(len(sources))]

                def compile_part(source: Path, part: Path) -> int:
                    only = Build(
                        sources=(source,), output=part, mode=mode, compile_only=True, profiles=PROFILES,
                        flags=tuple(flags),
                    )  # fmt: skip
                    return build(only)[0]

                # Several at once: workers that need the program wait for it meanwhile.
                with ThreadPoolExecutor(2) as pool:
                    status = max(pool.map(compile_part, sources, parts))
                if status == 0:
                    status, _ = build(Build(sources=tuple(parts), output=unfinished, mode=mode))
                unfinished.rename(output) if status == 0 else failed.touch()
            assert output.is_file(), f"{name} does not compile"
        return Program(output)

    return make


@pytest.fixture(scope="session")
def pairs(xpu_programs: XpuPrograms) -> Callable[[str], Callable[..., Ran]]:
    """pairs(mode)(name, clusters, cores, ..., options=): the kernels of the pairs that are named, in one process."""

    def make(mode: str) -> Callable[..., Ran]:
        # What is wrong on purpose is what compilers warn about.
        files = sorted({pair.path for pair in PAIRS.values()})
        kernels = [pair.kernel(good) for pair in PAIRS.values() for good in (False, True)]
        program = xpu_programs(files, kernels, mode, profiles=PROFILES, flags=["-w"])

        def run(*words: Any, options: str = "") -> Ran:
            elements = 1024
            calls = []
            for i in range(0, len(words), 3):
                data, out = np.arange(elements, dtype=np.int32), np.full(elements, 0xA5A5A5A5, np.uint32).view(np.int32)
                arguments = [data, out, elements, Host(np.zeros(elements, np.int32))]
                calls.append(Call(words[i], arguments, clusters=words[i + 1], cores=words[i + 2]))
            return program.run(calls, options=options)

        return run

    return make


@pytest.fixture(scope="session")
def builtins(xpu_programs: XpuPrograms) -> Callable[[str], Callable[..., Ran]]:
    """builtins(mode)(name, options=): a test of the builtins; an AssertionError with the line where one fails."""

    def make(mode: str) -> Callable[..., Ran]:
        flags = ["-Wall", "-Wextra", "-Werror", "-O1"]  # compiling takes longer than running them
        program = xpu_programs(BUILTIN_FILES, list(BUILTIN_TESTS), mode, profiles=PROFILES, flags=flags)

        def run(name: str, options: str = "") -> Ran:
            clusters, cores = BUILTIN_TESTS[name]
            data, out = np.arange(4096, dtype=np.int32), np.zeros(4096, np.int32)
            failures = np.zeros((clusters, cores), np.int32)
            ran = program.run([Call(name, [data, out, failures], clusters, cores)], options=options)
            for cluster, core in np.argwhere(failures):
                line = failures[cluster, core]
                raise AssertionError(f"{name}: line {line}, cluster {cluster}, core {core}\n{ran.err}")
            return ran

        return run

    return make
