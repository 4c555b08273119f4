"""What every recorded result carries: command, commit, machine, versions, date."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("numpy", "paddlepaddle", "torch", "apache-tvm-ffi")


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def document(figures: Any) -> dict[str, Any]:
    """The figures with their circumstances."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": _git("rev-parse", "HEAD") + (" with changes" if _git("status", "--porcelain") else ""),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cpu": _cpu(), "python": platform.python_version()},
        "packages": {package: _version(package) for package in PACKAGES},
        "figures": figures,
    }


def write(figures: Any, out: Path | None) -> None:
    """Print the document, or write it to a file."""
    text = json.dumps(document(figures), indent=1)
    if out is None:
        print(text)
    else:
        out.write_text(text + "\n")
