"""Programs made by xpu-cc, what they say when they are run, and the kernels of the pairs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MODES = ("fast", "asan", "strict")
# The same for tests whose programs take the sanitizers' compiler half a minute.
MODES_ASAN_SLOW = ("fast", pytest.param("asan", marks=pytest.mark.slow), "strict")
SOURCES = Path(__file__).parents[1] / "xpu_sim" / "sim"
KERNELS = Path(__file__).parents[1] / "xpu_sim" / "kernels"


@dataclass(frozen=True)
class Result:
    """What a program of xpu-cc said: exit status, findings and counters, standard output and error."""

    status: int
    findings: list[dict[str, Any]]
    unused_suppressions: list[str]
    kernels: list[dict[str, Any]]  # counters of all launches of a kernel
    launches: list[dict[str, Any]]  # of each launch by itself, in the order in which they ended
    out: str
    err: str

    @property
    def checks(self) -> set[str]:
        return {finding["check"] for finding in self.findings}


@dataclass(frozen=True)
class Program:
    path: Path

    def __call__(self, *args: object, options: str = "") -> Result:
        report = self.path.with_name(f"{self.path.name}.{os.getpid()}.json")
        environment = {**os.environ, "XPU_SIM": options, "XPU_SIM_JSON": str(report)}
        ran = subprocess.run(
            [str(self.path), *map(str, args)], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert report.is_file(), f"ended without a report: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        document = json.loads(report.read_text())
        report.unlink()
        return Result(ran.returncode, **document, out=ran.stdout, err=ran.stderr)


@dataclass(frozen=True)
class Kernel:
    """One of ../xpu_sim/kernels, with what its head says."""

    path: Path
    clusters: int
    cores: int
    dma: str
    model: str  # the flag of the model that makes it wrong, or that a repaired twin stands up to: "dma_fifo=1"
    finds: dict[str, str]  # build: check
    decides: str  # the flag of the model that decides about it; nothing: a defect
    object: str  # what the strict build names: "SM total + 0"; LM, whose variables have no names; or nothing

    def lines(self, mark: str) -> set[int]:
        """The lines whose comment has the mark: "here", "the other access"."""
        text = self.path.read_text().splitlines()
        return {number for number, line in enumerate(text, 1) if "// <- " in line and mark in line.split("// <- ")[1]}

    @property
    def name(self) -> str:
        return self.path.stem


def read(path: Path) -> Kernel:
    head = dict(
        re.findall(r"^// (fast|asan|strict|object|launch|dma|model|decides): (.*)$", path.read_text(), re.MULTILINE)
    )
    clusters, cores = map(int, head["launch"].split("x"))
    finds = {mode: head[mode] for mode in MODES if mode in head}
    schedule = head.get("dma", "eager"), head.get("model", "")
    return Kernel(path, clusters, cores, *schedule, finds, head.get("decides", ""), head.get("object", ""))


PAIRS = {path.stem: read(path) for path in sorted(KERNELS.glob("*.xpu"))}


BUILTIN_FILES = sorted((SOURCES / "builtins").glob("*.xpu"))
_NOT_UNDER_ASAN = ("vectors.xpu",)
"""GCC instruments it for minutes; the strict build checks the same accesses."""


def builtin_files(mode: str) -> list[Path]:
    """Those that a mode is tested with."""
    return [path for path in BUILTIN_FILES if mode != "asan" or path.name not in _NOT_UNDER_ASAN]


def builtin_tests(mode: str) -> dict[str, tuple[int, int]]:
    """The tests in them by name: clusters and cores."""
    return {
        name: (int(clusters), int(cores))
        for path in builtin_files(mode)
        for name, clusters, cores in re.findall(r"\bTEST\((\w+),\s*(\d+),\s*(\d+)\)", path.read_text())
    }


BUILTIN_TESTS = builtin_tests("strict")
