"""The host side: launches, memory, findings, options and counters. C++ tests, each in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_hal_xpu.cc import Build, build, toolchain
from tests.xpu.program import MODES, MODES_ASAN_SLOW, SOURCES, Program

FILES = sorted((SOURCES / "host").glob("*.cpp"))
TESTS = [name for path in FILES for name in re.findall(r"^HOST_TEST\((\w+)\)", path.read_text(), re.MULTILINE)]
# GCC 12's libasan does not hold its own locks over a fork: a child may wait forever for one of another thread's.
NOT_UNDER_ASAN = {"a_child_launches_whatever_the_parents_threads_did"}
RUNS = [
    pytest.param(name, mode, marks=[pytest.mark.slow] if mode == "asan" else [])
    for name in TESTS for mode in MODES if mode != "asan" or name not in NOT_UNDER_ASAN
]  # fmt: skip


@pytest.fixture(scope="session")
def program(compiled):
    return lambda mode: compiled("host", [SOURCES / "host" / "kernels.xpu", *FILES], mode, ["-O1"])


@pytest.mark.parametrize(("name", "mode"), RUNS)
def test_host(program, name, mode):
    # The findings that a test asks for are printed too, hence its own status: 4 failed, else 0, or 1 or 3 for findings.
    result = program(mode)(name)
    assert result.status in (0, 1, 3) and "expected" not in result.out, (result.out, result.err)


@pytest.mark.parametrize("mode", MODES_ASAN_SLOW)
def test_no_launch_of_a_thread_is_lost(program, mode):
    result = program(mode)("threads_launch_at_the_same_time")
    assert len(result.launches) == sum(kernel["launches"] for kernel in result.kernels) == 4 * 500


@pytest.mark.slow  # compiles all of the emulator
def test_fibers_of_other_machines(tmp_path):
    """The emulator's own sources with the portable switch between fibers."""
    sources = Path(__file__).parents[3] / "kernels_xpu_sim" / "sim" / "src"
    runtime = [*sorted(sources.glob("*.cc")), *sorted((sources / "program").glob("*.cc"))]
    tools, program = toolchain(), tmp_path / "host"
    command = ["g++", "-std=c++17", "-O1", "-fno-omit-frame-pointer", "-DXPU_SIM_UCONTEXT", *tools.flags("every")]
    command += [f"-I{tools.include}", f"-I{sources}", *map(str, runtime), *map(str, FILES)]
    command += ["-x", "c++", str(SOURCES / "host" / "kernels.xpu"), "-pthread", "-ldl", "-o", str(program)]
    subprocess.run(command, check=True)
    for name in TESTS:
        result = Program(program)(name)
        assert result.status in (0, 1, 3) and "expected" not in result.out, (name, result.out, result.err)


def test_a_large_library_can_be_loaded_late(shared_folder):
    """All kernels' SM is thread-local memory of the library, far more than fits the static part of it."""
    source = shared_folder / "large.xpu"
    names = [f"large_{i}" for i in range(6)]
    source.write_text(
        '#include "xpu/kernel/cluster.h"\n#include "xpu_sim/launch.h"\n'
        + "".join(
            f"__global__ void {name}(int* out) {{\n"
            "  __shared__ int row[60000];\n"
            "  for (int i = core_id(); i < 60000; i += core_num()) row[i] = i;\n"
            "  mfence_sm(); sync_cluster();\n"
            "  if (core_id() == 0) { SM2GM(&row[59999], out, 4); }\n}\n"
            f'extern "C" int run_{name}(int* out) {{ return xpu_sim::launch({name}, 2, 64)(out); }}\n'
            for name in names
        )
    )
    library = shared_folder / "liblarge.so"
    status, _ = build(Build(sources=(source,), output=library, shared=True))
    assert status == 0
    code = (
        "import ctypes, numpy\n"
        f"lib = ctypes.CDLL({str(library)!r})\n"
        "out = numpy.zeros(1, numpy.int32)\n"
        f"for name in {names}:\n"
        "    print(lib['run_' + name](out.ctypes.data_as(ctypes.c_void_p)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    # `out` is no GM: each launch runs up to the copy and ends there, and so does not crash.
    assert done.stdout.split() == ["2"] * len(names), done.stderr
