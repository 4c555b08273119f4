"""Import paths and commands of before 0.2, for one release."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_hal.cli import main

OLD = {
    "specdec_hal.conformance": "specdec_hal_conformance",
    "specdec_hal.conformance.guarded": "specdec_hal_conformance.guarded",
    "specdec_hal.compat.fastdeploy": "specdec_hal_fastdeploy",
    "specdec_hal.compat.fastdeploy.gpu": "specdec_hal_fastdeploy.gpu",
    "specdec_hal.runner.parsers": "specdec_hal.output.parsers",
    "specdec_hal.runner.request": "specdec_hal.request",
    "specdec_hal.xpu.cc": "specdec_hal_xpu.cc",
    "specdec_hal.backends.xpu_sim.options": "specdec_hal_xpu.options",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("old", "new"), OLD.items())
def test_an_old_path_is_a_name_of_the_same_module(old: str, new: str) -> None:
    pytest.importorskip(new.partition(".")[0], reason=f"{new} is a part that is not in this tree")
    module = importlib.import_module(new)
    assert importlib.import_module(old) is module
    assert module.__name__ == new and module.__spec__ is not None and module.__spec__.name == new


def test_an_old_path_warns_once_with_the_new_one() -> None:
    pytest.importorskip("specdec_hal_conformance", reason="the conformance suite is a part that is not in this tree")
    code = "import specdec_hal.conformance, specdec_hal.conformance.report"
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning:__main__", "-c", code],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stderr.count("specdec_hal.conformance is now specdec_hal_conformance") == 1


def test_commands_with_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("specdec_hal_xpu", reason="the emulator is a part that is not in this tree")
    assert main(["xpu-coverage", "--help"]) == 0
    assert "usage: specdec-hal xpu coverage" in capsys.readouterr().out
