"""tools/compare_sass.py, on listings as cuobjdump prints them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "compare_sass.py"
CODE = ("MOV R1, c[0x0][0x28]", "LDC.64 R2, c[0x0][0x210]", "FADD R4, R2, R3", "EXIT")
"""Parameters begin at 0x210 on sm_90: the first instruction reads none, the second reads one."""


def listing(name: str, *instructions: str) -> str:
    lines = [f"        /*{16 * i:04x}*/   {text} ;   /* 0x{i:016x} */" for i, text in enumerate(instructions)]
    return "\n".join(["\tcode for sm_90", f"\t\tFunction : {name}", *lines, ""])


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """compare(before, after): what the tool prints of two listings, and its exit status."""
    for name, program in (("cuobjdump", 'cat "$2"'), ("c++filt", 'for name; do echo "void $name(int)"; done')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def run(before: str, after: str, *options: str) -> tuple[str, int]:
        for side, text in (("before", before), ("after", after)):
            (tmp_path / side).write_text(text)
        command = [sys.executable, str(TOOL), str(tmp_path / "before"), str(tmp_path / "after"), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr, done.returncode

    return run


def test_equal_kernels(compare):
    said, status = compare(listing("a", *CODE) + listing("b", *CODE), listing("a", *CODE) + listing("b", *CODE))
    assert status == 0
    assert said == "2 kernels equal, 0 equal but for parameter offsets (masked), 0 differ or are missing\n"


def test_parameters_may_move_and_this_is_said(compare):
    said, status = compare(listing("a", *CODE), listing("a", *(line.replace("0x210", "0x238") for line in CODE)))
    assert status == 0
    assert said == "0 kernels equal, 1 equal but for parameter offsets (masked), 0 differ or are missing\n"


@pytest.mark.parametrize(("was", "becomes"), [("FADD", "FMUL"), ("0x28]", "0x30]"), ("R4", "R5")])
def test_what_differs_is_named(compare, was, becomes):
    """Another instruction, another constant that is no parameter, another register."""
    said, status = compare(
        listing("a", *CODE), listing("a", *(line.replace(was, becomes, 1) for line in CODE)), "--diff"
    )
    assert status == 1
    assert "differs: sm_90 a: 4 instructions, then 4; 2 lines of difference" in said
    assert becomes in said


def test_a_kernel_that_only_one_side_has(compare):
    said, status = compare(listing("a", *CODE), listing("a", *CODE) + listing("b", *CODE))
    assert status == 1
    assert "only after: sm_90 b" in said


def test_a_file_without_kernels_is_refused(compare):
    said, status = compare("", listing("a", *CODE))
    assert status == 1
    assert "expected CUDA kernels, found none" in said
