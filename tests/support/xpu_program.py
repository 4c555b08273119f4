"""Programs made by xpu-cc, and what they say when they are run."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODES = ("fast", "asan", "strict")
SOURCES = Path(__file__).parents[1] / "xpu_sim" / "sim"
KERNELS = Path(__file__).parents[1] / "xpu_sim" / "kernels"


@dataclass(frozen=True)
class Result:
    """What a program of xpu-cc said: exit status, findings and counters, standard output and error."""

    status: int
    findings: list[dict[str, Any]]
    kernels: list[dict[str, Any]]
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
        return Result(ran.returncode, document["findings"], document["kernels"], ran.stdout, ran.stderr)
