"""The header of recorded results: command, commit, machine, versions, date."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_SOURCES = Path(__file__).parents[2]
_PACKAGES = ("numpy", "paddlepaddle", "torch", "cupy-cuda13x", "apache-tvm-ffi")


def circumstances(command: Sequence[str]) -> dict[str, Any]:
    """Where and how figures were taken. The environment variable COMMIT replaces a missing git checkout."""
    return {
        "command": " ".join(command),
        "commit": os.environ.get("COMMIT") or _commit() or "unknown",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cpu": _cpu(), "python": platform.python_version(), **_gpu()},
        "packages": {package: _version(package) for package in _PACKAGES},
    }


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=_SOURCES, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _commit() -> str:
    commit = _run("git", "rev-parse", "HEAD")
    return f"{commit} with changes" if commit and _run("git", "status", "--porcelain") else commit


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def _gpu() -> dict[str, str]:
    asked = _run("nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem", "--format=csv,noheader")
    if not asked:
        return {}
    name, driver, core, memory = (part.strip() for part in asked.splitlines()[0].split(","))
    return {"gpu": name, "driver": driver, "max_sm_clock": core, "max_memory_clock": memory}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
