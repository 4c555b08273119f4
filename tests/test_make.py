"""The steps of `make` in a fresh clone, and its printed next commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import cache_from_source
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


def test_a_release_installs_its_tools_itself(tmp_path: Path) -> None:
    steps = plan("release", tmp_path / "none")
    assert "bin/python tools/release.py" in steps and "pip install" not in steps


@pytest.mark.parametrize("target", ["demo", "setup"])
def test_modules_are_compiled_once(target: str, tmp_path: Path) -> None:
    """pip compiles those of packages that it copies, and an editable one stays where it is."""
    steps = plan(target, tmp_path / "none")
    command = re.search(rf"{tmp_path}/none/bin/python (-m compileall .*? specdec_hal backends)", steps)
    assert command is not None and steps.index("--editable") < command.start()
    for name in ("specdec_hal", "backends"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, *command[1].split()], cwd=tmp_path, check=True)
    missing = [path for path in tmp_path.rglob("*.py") if not Path(cache_from_source(path)).exists()]
    assert not missing


@pytest.mark.slow
@pytest.mark.parametrize("command", NEXT)
def test_what_comes_next_works_as_printed(command: str) -> None:
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    assert len(NEXT) == 3
    line = f"{Path(sys.executable).parent}/{command}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and done.stdout, done.stderr
    assert done.stderr == ""
