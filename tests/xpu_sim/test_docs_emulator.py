"""The sessions of docs/xpu_emulator.md: its files are written, its commands run, and say what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "xpu_emulator.md").read_text()
SIM = ROOT / "kernels_xpu_sim" / "sim"


def test_the_sessions(tmp_path):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    blocks = re.findall(r"(?:`([\w.]+)`:\n\n)?```(cpp|console)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, kind, _ in blocks if kind == "cpp"] == ["axpy.xpu", "host.cpp", "sum.xpu", "sum_host.cpp"]
    for name, kind, text in blocks:
        if kind == "cpp":
            (tmp_path / name).write_text(text)
            continue
        for command, expected in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", text, re.MULTILINE):
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            assert sorted((done.stdout + done.stderr).splitlines()) == sorted(expected.splitlines()), command
            assert done.returncode == (1 if "xpu_sim: 1 finding" in expected else 0)


def test_every_check_is_named():
    checks = re.findall(r'^  check\(\w+, "(\w+)"', (SIM / "src" / "checks.h").read_text(), re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert checks and set(checks) - named == set()


def test_every_flag_of_the_model_is_named_with_its_default():
    header = (SIM / "include" / "xpu_sim" / "options.h").read_text()
    model = header[header.index("struct Model") : header.index("enum class GmAccess")]
    flags = re.findall(r"^  (?:bool|int) (\w+) = (\w+);", model, re.MULTILINE)
    assert len(flags) == 12
    for name, value in flags:
        row = re.search(rf"`model\.{name}` \| (\d+)", PAGE)
        assert row, name
        assert row[1] == {"true": "1", "false": "0"}.get(value, value), name
