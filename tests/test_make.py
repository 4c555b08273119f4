"""The steps of `make` in a fresh clone, and its printed next commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEXT = re.findall(r"^  \$\(BIN\)/(specdec-hal .*)$", (ROOT / "Makefile").read_text(), re.M)


def plan(target: str, environment: Path) -> str:
    done = subprocess.run(
        ["make", "--dry-run", target, f"VENV={environment}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_demo_builds_what_it_runs(tmp_path: Path) -> None:
    demo, test = (plan(target, tmp_path / "none") for target in ("demo", "test"))
    assert "SPECDEC_CUDA=OFF" in demo and "SPECDEC_XPU_SIM_STRICT=OFF" in demo
    assert '".[paddle,models,conformance]"' in demo  # README runs conformance after the demo
    assert "SPECDEC_CUDA_HOST" not in demo
    assert (
        "SPECDEC_CUDA_HOST=ON" in test and '".[paddle,models,test]"' in test and ".demo" not in test.split("touch")[0]
    )


def test_the_demo_takes_an_environment_that_has_everything(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for made in ("bin/python", ".build-tools", ".installed"):
        (tmp_path / made).touch()
    steps = plan("demo", tmp_path)
    assert "pip" not in steps and "specdec-hal generate" in steps


@pytest.mark.slow
@pytest.mark.parametrize("command", NEXT)
def test_what_comes_next_works_as_printed(command: str) -> None:
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    assert len(NEXT) == 3
    line = f"{Path(sys.executable).parent}/{command}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and done.stdout, done.stderr
    assert done.stderr == ""
