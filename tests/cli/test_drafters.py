"""The command `drafters`, with the head of the embedded model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from specdec_hal.cli import main
from specdec_hal.engine.runtime import Runtime
from specdec_hal.proposers import calibration
from tests.support.dflash import perfect as perfect_drafter
from tests.support.drafters import perfect
from tests.support.history_model import LetterTokenizer

ROOT = Path(__file__).parents[2]
HEAD = ROOT / "models/tiny-py-lm-eagle3"


@pytest.fixture(autouse=True)
def _one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "TEXTS", calibration.TEXTS[:1])
    monkeypatch.setattr(calibration, "STRIDE", 4)


def check(folder: Path, *options: str) -> int:
    return main(["drafters", "check", str(folder), "--config", str(ROOT / "configs/reference.yaml"), *options])


def test_the_committed_head_is_read_as_it_was_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(HEAD, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["taps"] == [2, 4, 8] and document["hint"] is None
    configured, *others = document["variants"]
    assert configured["changes"] == {} and len(others) == 7  # no taps after more layers than there are
    assert configured["agreement"][0] > 0.5


def test_a_head_that_says_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "head"
    shutil.copytree(HEAD, folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "norm_output": False}))
    assert check(folder) == 1
    shown = capsys.readouterr().out
    assert "taps 2, 4, 8: eagle_aux_hidden_state_layer_ids [2, 4, 8]" in shown
    assert shown.rstrip().endswith("better: set speculative.eagle3.norm_output=true")
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.torch
def test_an_assistant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no variants; agreement is that of its drafts in a greedy decode."""
    from tests.support import assistants

    monkeypatch.setattr(calibration, "TEXTS", ("olj", "jjmpdenpgho", "ngeginiehknmpfodkg"))
    monkeypatch.setattr(Runtime, "load_tokenizer", lambda runtime: LetterTokenizer())
    target, folder = assistants.write_target(tmp_path / "target"), assistants.write(tmp_path / "assistant")
    to_target = ("--set", f"model.path={target}", "--set", "model.framework=transformers")
    assert check(folder, *to_target, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (configured,) = document["variants"]
    first, second, third = configured["agreement"]
    assert 0 < first < 1 and first >= second >= third
    assert check(folder, *to_target) == 0
    shown = capsys.readouterr().out
    assert "taps none: an assistant of Gemma 4, which reads the target's last state" in shown
    assert re.search(rf"as configured +{first:.3f} +{second:.3f} +{third:.3f} ", shown)


@pytest.mark.torch
def test_a_block_drafter_whose_config_counts_layers_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drafts of the planted drafter are right with the taps 1, 2, 3 of its target alone."""
    monkeypatch.setattr(calibration, "TEXTS", ("bcd", "fghb"))
    monkeypatch.setattr(calibration, "LENGTH", 48)
    monkeypatch.setattr(Runtime, "load_tokenizer", lambda runtime: LetterTokenizer())
    target, head = perfect(tmp_path / "target", vocabulary=24)
    drafter = perfect_drafter(head, calibration.DEPTH)
    drafter.taps = (2, 3, 4)
    folder = drafter.write_zlab(tmp_path / "drafter", 4)
    to_target = ("--set", f"model.path={target}", "--set", "model.framework=transformers")
    assert check(folder, *to_target) == 1
    key = "speculative.dflash.layers=[1, 2, 3]"
    assert capsys.readouterr().out.rstrip().endswith(f"better: set {key}")
    assert check(folder, *to_target, "--set", key, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["variants"][0]["agreement"] == [1.0, 1.0, 1.0] and document["hint"] is None
    assert check(folder, *to_target, "--set", "speculative.dflash.layers=[3, 2, 1]") == 2
    assert "speculative.dflash.layers: expected 3 different numbers" in capsys.readouterr().err
