"""Compiling for the tests: each program once per session, whichever worker asks first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from specdec_hal.xpu_cc import Build, build, toolchain
from tests.support.xpu_program import BUILTIN_FILES, BUILTIN_TESTS, PAIRS, SOURCES, Program


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


@pytest.fixture(scope="session")
def pairs(shared_folder: Path, compiled: Callable[..., Program]) -> Callable[[str], Program]:
    """pairs(mode): all kernels of the pairs in one program, which runs those named."""

    def make(mode: str) -> Program:
        kernels = shared_folder / f"pairs_{mode}.xpu"
        main = shared_folder / f"pairs_{mode}.cpp"
        write(kernels, "".join(f'#include "{kernel.path}"\n' for kernel in PAIRS.values()))
        declared = "".join(f"void {name}(const int*, int*, int, const int*);\n" for name in PAIRS)
        entries = "".join(f'  {{"{name}", {name}}},\n' for name in PAIRS)
        write(
            main,
            f'#include "{SOURCES / "pairs_main.h"}"\n{declared}static const Entry kernels[] = {{\n{entries}}};\n'
            "int main(int argc, char** argv) { return run_pairs(kernels, argc, argv); }\n",
        )
        # What is wrong on purpose is what compilers warn about.
        return compiled("pairs", [kernels, main], mode, flags=["-Wno-error", "-w"])

    return make


def write(path: Path, text: str) -> None:
    if not path.is_file():
        path.write_text(text)


@pytest.fixture(scope="session")
def builtins(shared_folder: Path, compiled: Callable[..., Program]) -> Callable[[str], Program]:
    """builtins(mode): all tests of the builtins in one program."""

    def make(mode: str) -> Program:
        main = shared_folder / f"builtins_{mode}.cpp"
        declared = "".join(f"void {name}(const int*, int*, int*);\n" for name in BUILTIN_TESTS)
        entries = "".join(f'  {{"{name}", {name}, {size[0]}, {size[1]}}},\n' for name, size in BUILTIN_TESTS.items())
        write(
            main,
            f'#include "{SOURCES}/builtins/main.h"\n{declared}static const Test tests[] = {{\n{entries}}};\n'
            "int main(int, char** argv) { return run_test(tests, argv[1]); }\n",
        )
        return compiled("builtins", [*BUILTIN_FILES, main], mode)

    return make
