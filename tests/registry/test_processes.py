"""Processes that the package starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import specdec_hal
from specdec_hal.plugin.processes import command

SOURCES = Path(specdec_hal.__file__).parent


def test_files_of_the_working_directory_replace_no_module(tmp_path: Path) -> None:
    """Such as the sources of another version of this package."""
    for name in ("random.py", "specdec_hal.py"):
        (tmp_path / name).write_text("raise SystemExit('a file of the working directory')")
    done = subprocess.run(
        command("specdec_hal.cli", "--version"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"specdec-hal {specdec_hal.__version__}\n", "")


def test_every_process_is_started_so() -> None:
    sources = list(SOURCES.rglob("*.py"))
    assert len(sources) > 100 and not [path for path in sources if '"-m"' in path.read_text()]
