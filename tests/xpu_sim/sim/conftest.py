"""Compiling for the tests: each program once per session, whichever worker asks first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from specdec_hal.xpu_cc import Build, build, toolchain
from tests.support.xpu_program import Program


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
                status, _ = build(Build(sources=tuple(sources), output=unfinished, mode=mode, flags=tuple(flags)))
                unfinished.rename(output) if status == 0 else failed.touch()
            assert output.is_file(), f"{name} does not compile"
        return Program(output)

    return make
