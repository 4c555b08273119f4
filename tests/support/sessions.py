"""The sessions of a page: its files are written, its commands run, and say what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdec_hal.runner import SamplingParams

_BLOCK = re.compile(r"(?:`([\w.]+)`:\n\n)?```(cpp|python|console)\n(.*?)```", re.DOTALL)


def files_of(page: str) -> list[str]:
    """The files that a page shows, by the names before them."""
    return [name for name, kind, _ in _BLOCK.findall(page) if kind != "console"]


def run_here(folder: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs commands in `folder`, with this environment's programs before all others."""
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return lambda command: subprocess.run(
        ["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def run_sessions(page: str, folder: Path, run: Callable[[str], subprocess.CompletedProcess[str]]) -> None:
    """Write the files to `folder`, and `run` the commands, which must say what the page says."""
    for name, kind, text in _BLOCK.findall(page):
        if kind != "console":
            (folder / name).write_text(text)
            continue
        for command, expected in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", text, re.MULTILINE):
            done = run(command)
            assert sorted((done.stdout + done.stderr).splitlines()) == sorted(expected.splitlines()), command
            assert done.returncode == (3 if "depending on the model" in expected else 0)


WORDS = ["bcdefbcdef", "bcdffcbd", "fedcb"]


def params(seed: int = 1, **keys: Any) -> SamplingParams:
    given = {"temperature": 1.0, "structured": {"choice": WORDS}, **keys}
    return SamplingParams(seed=seed, max_new_tokens=24, **given)
