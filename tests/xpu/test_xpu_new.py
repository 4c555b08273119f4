"""The command xpu new: what it writes runs as it is."""

from __future__ import annotations

import json
import shlex

import pytest

from specdec_hal.cli import main


def test_what_is_written_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["xpu", "new", "gate_up"]) == 0
    command = shlex.split(capsys.readouterr().out)
    assert {path.name for path in tmp_path.iterdir()} == {"gate_up.xpu", "gate_up.cpp", "gate_up_inputs.py"}
    how = ["--cases", "2", "--seeds", "1", "--mode", "strict", "--profile", "portable"]
    assert main([*command[1:], *how]) == 0
    assert capsys.readouterr().out == "plugin::gate_up: 6 runs, none failed\n"
    assert main(["xpu", "new", "gate_up"]) == 2
    assert "expected a new file, got gate_up.xpu, which exists" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["two words", "3d", "a-b", ""])
def test_a_name_that_is_none(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    assert main(["xpu", "new", name]) == 2
    assert "expected a name in C++" in capsys.readouterr().err and list(tmp_path.iterdir()) == []
    assert main(["xpu", "new", "scale", "--folder", "gone"]) == 2


def test_json(tmp_path, capsys):
    assert main(["xpu", "new", "scale", "--folder", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"] == [str(tmp_path / name) for name in ("scale.xpu", "scale.cpp", "scale_inputs.py")]
