"""tools/train_drafter.py: what is refused before the target is loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import ROOT, script

pytestmark = pytest.mark.torch


class Loaded(Exception):
    """The target would be loaded now."""


@pytest.mark.parametrize(
    ("files", "lines", "message"),
    [
        (0, 0, r"--text .*: expected a window of 32 tokens .*, got 0 files .* with 0 and 0 tokens; give a folder"),
        (12, 90, r"got 12 files .* with \d+ and 0 tokens"),
        (13, 1, r"got 13 files .* with \d+ and \d tokens"),
        (13, 90, None),
    ],
)
def test_too_little_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, lines: int, message: str | None
) -> None:
    tool = script("tools/train_drafter.py")

    def load(*args: Any, **options: Any) -> Any:
        raise Loaded

    monkeypatch.setattr(tool.AutoModelForCausalLM, "from_pretrained", load)
    (tmp_path / "text").mkdir()
    for i in range(files):
        (tmp_path / f"text/{i}.py").write_text("x = 1\n" * lines)
    target = str(ROOT / "models/tiny-py-lm")
    options = ["--target", target, "--text", str(tmp_path / "text"), "--out", str(tmp_path / "out"), "--window", "32"]
    monkeypatch.setattr(sys, "argv", ["train_drafter.py", *options])
    expected: Any = pytest.raises(Loaded) if message is None else pytest.raises(SystemExit, match=message)
    with expected:
        tool.Trainer(tool.arguments())
    assert not (tmp_path / "out").exists()
