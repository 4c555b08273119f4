"""The native libraries with compilers that the project has not tried: a warning stops a build only where asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.skipif(
    not all((BIN / tool).exists() for tool in ("cmake", "ninja")), reason="this environment has no cmake or ninja"
)
needs_clang = pytest.mark.skipif(shutil.which("clang++") is None, reason="there is no clang++")


def commands(folder: Path, *options: str, compiler: str = "g++") -> dict[str, list[str]]:
    """How each object is compiled."""
    fixed = (f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}", "-DSPECDEC_CUDA=OFF")
    configure = [BIN / "cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *fixed]
    environ = {**os.environ, "CXX": compiler}
    done = subprocess.run([*configure, *options], env=environ, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = json.loads((folder / "compile_commands.json").read_text())
    assert len(listed) > 50
    return {entry["output"]: entry["command"].split() for entry in listed}


def test_warnings_are_errors_only_where_asked_for(tmp_path):
    for_users = commands(tmp_path)
    assert [name for name, flags in for_users.items() if "-Werror" in flags] == []
    assert [name for name, flags in for_users.items() if "-Wall" not in flags] == []
    strict = commands(tmp_path, "-DSPECDEC_STRICT=ON", "-DSPECDEC_CUDA_HOST=ON")
    assert [name for name, flags in strict.items() if "-Werror" not in flags] == []


@needs_clang
def test_clang_is_given_no_flag_that_it_lacks(tmp_path):
    """All flags of the build, on an empty file; what the sources hold is for `make clang`."""
    empty = tmp_path / "empty.cc"
    empty.touch()
    for flags in {
        tuple(flag for flag in command if flag.startswith(("-f", "-m", "-W", "-O", "-g", "-std", "--param")))
        for command in commands(tmp_path / "build", "-DSPECDEC_STRICT=ON", compiler="clang++").values()
    }:
        done = subprocess.run(["clang++", *flags, "-fsyntax-only", empty], text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), flags
