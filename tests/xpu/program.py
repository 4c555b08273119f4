"""Programs made by xpu cc, what they say when they are run, and the kernels of the pairs."""

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
SOURCES = Path(__file__).parent / "sim"
KERNELS = Path(__file__).parent / "kernels"


@dataclass(frozen=True)
class Result:
    """Results of a program of xpu cc: exit status, findings and counters, standard output and error."""

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
class Pair:
    """A template of ../xpu_sim/kernels, a bad kernel and its repaired twin, with what its head says."""

    path: Path
    name: str
    text: tuple[tuple[int, str], ...]  # its lines, by number
    launches: dict[bool, tuple[int, int]]  # clusters and cores of the bad one, False, and the good one
    dma: str
    model: str  # the flag of the model that makes it wrong, and that the good one stands up to: "dma_fifo=1"
    finds: dict[str, str]  # build: check
    decides: str  # the flag of the model that decides about it; nothing: a defect
    object: str  # what the strict build names: "SM total + 0"; LM, whose variables have no names; or nothing

    def kernel(self, good: bool = False) -> str:
        """The name in C++."""
        return f"{self.name}<{str(good).lower()}>"

    def launch(self, good: bool = False) -> tuple[str, int, int]:
        """The kernel, clusters and cores."""
        return self.kernel(good), *self.launches[good]

    def lines(self, mark: str) -> set[int]:
        """The lines whose comment has the mark: "here", "the other access"."""
        return {number for number, line in self.text if "// <- " in line and mark in line.split("// <- ")[1]}


_FINDS = re.compile(r"^// ((?:(?:fast|asan|strict)(?:, )?)+): (\w+)(?: in (.*))?$", re.MULTILINE)


def read(path: Path) -> list[Pair]:
    """The pairs of a file. Each begins with a comment that says what builds find, and how to launch it if not 1 x 4."""
    pairs = []
    lines = list(enumerate(path.read_text().splitlines(), 1))
    texts = [line for _, line in lines]
    finding = [i for i, line in enumerate(texts) if _FINDS.match(line)]
    starts = sorted({next(k for k in range(i, 0, -1) if not texts[k - 1].startswith("//")) for i in finding})
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        block = "\n".join(texts[start:end])
        (name,) = re.findall(r"__global__ void (\w+)\(", block)
        head = dict(re.findall(r"^// (launch|good launch|dma|model|decides): (.*)$", block, re.MULTILINE))
        finds, where = {}, ""
        for modes, check, place in _FINDS.findall(block):
            finds |= dict.fromkeys(modes.split(", "), check)
            where = where or place
        bad = head.get("launch", "1 x 4")
        launches = {good: _shape(head.get("good launch", bad) if good else bad) for good in (False, True)}
        schedule = head.get("dma", "eager"), head.get("model", "")
        pairs.append(
            Pair(path, name, tuple(lines[start:end]), launches, *schedule, finds, head.get("decides", ""), where)
        )
    return pairs


def _shape(launch: str) -> tuple[int, int]:
    clusters, cores = map(int, launch.split("x"))
    return clusters, cores


PAIRS = {pair.name: pair for path in sorted(KERNELS.glob("*.xpu")) for pair in read(path)}


BUILTIN_FILES = sorted((SOURCES / "builtins").glob("*.xpu"))
BUILTIN_TESTS = {
    name: (int(clusters), int(cores))
    for path in BUILTIN_FILES
    for name, clusters, cores in re.findall(r"\bTEST\((\w+),\s*(\d+),\s*(\d+)\)", path.read_text())
}
"""The tests in them by name: clusters and cores."""
