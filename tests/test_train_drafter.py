"""tools/train_drafter.py: its budget, resumed trainings, pictures, and what is refused before the target is loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from specdec_hal.cli import main
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


SMALL = (
    "--target", str(ROOT / "models/tiny-py-lm"), "--text", str(ROOT / "docs/learn"), "--window", "16", "--batch", "2",
    "--pool", "2", "--draft-vocab", "256", "--every", "3", "--depth", "1", "--block", "4", "--anchors", "4",
)  # fmt: skip


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = script("tools/train_drafter.py")
    monkeypatch.setattr(module, "HELD", 2)
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    return module


def trainer(tool: Any, monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["train_drafter.py", *SMALL, "--out", str(out), *options])
    return tool.Trainer(tool.arguments())


def equal(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other)


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_a_resumed_training_equals_an_uninterrupted_one(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    import torch

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trainer(tool, monkeypatch, whole, "--kind", kind, "--max-steps", "4").run()
    stopped = trainer(tool, monkeypatch, parts, "--kind", kind, "--max-steps", "4")
    step = stopped.train_batch

    def interrupted() -> Any:
        loss = step()
        if stopped.step == 2:
            stopped.budget.stop()
        return loss

    stopped.train_batch = interrupted
    with pytest.raises(SystemExit, match="stopped after step 2; continue with --resume"):
        stopped.run()
    resumed = trainer(tool, monkeypatch, parts, "--kind", kind, "--resume")
    assert resumed.step == 2 and resumed.args.max_steps == 4
    resumed.run()
    first, second = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (whole, parts))
    for key in ("head", "optimizer", "step", "sum", "random", "text", "written"):
        assert equal(first[key], second[key]), key
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()
    last = [json.loads((folder / "training.json").read_text())["history"][-1] for folder in (whole, parts)]
    assert {**last[0], "seconds": 0} == {**last[1], "seconds": 0}


def test_the_minutes_end_everything(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only the target's passes move: one second for a token, five for a window."""
    clock = [0.0]

    def passed(model: Any, inputs: Any, output: Any) -> None:
        clock[0] += 5 if output.logits.shape[1] == 16 else 1

    monkeypatch.setattr(tool.time, "monotonic", lambda: clock[0])
    made = trainer(tool, monkeypatch, tmp_path, "--minutes", "4", "--pool", "4096", "--tokens", "20000")
    made.target.register_forward_hook(passed)
    made.run()
    assert (len(made.own), len(made.share)) == (16, 80)  # 14 s for 16: of 36, and until 96
    assert made.step > 10
    assert 220 < clock[0] <= 240
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["history"][-1]["step"] == made.step
    made.args.resume = True
    with pytest.raises(SystemExit, match=r"expected time for a step, got none in 2\d\d s; give more --minutes"):
        later = tool.Trainer(made.args)
        clock[0] += 10
        later.run()


def test_a_target_too_slow_to_write(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    clock = [0.0]
    monkeypatch.setattr(tool.time, "monotonic", lambda: clock[0])
    made = trainer(tool, monkeypatch, tmp_path, "--minutes", "10", "--tokens", "20000")
    made.target.register_forward_hook(lambda *_: clock.__setitem__(0, clock[0] + 60))
    made.run()
    assert "the target wrote no window in its share of the time" in capsys.readouterr().out
    assert len(made.own) == len(made.share) == 0 and made.step >= 1
    assert "agreement_generated" not in made.history[-1]
    assert clock[0] <= 600 + 2 * 60  # the last evaluation has two batches


def test_the_curves_are_a_picture(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "BUCKET", 1)
    trainer(tool, monkeypatch, tmp_path, "--max-steps", "3").run()
    texts = [text.text for text in ET.parse(tmp_path / "loss.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == f"{tmp_path.name}: eagle3 for tiny-py-lm"
    panels = {"Loss", "On held-out text", "On the target's own text"}
    assert panels | {"draft position 0", "draft position 3"} <= set(texts)
    assert len(json.loads((tmp_path / "training.json").read_text())["losses"]) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-steps", "2"), r"--resume: expected .*checkpoint\.pt, found none; start without --resume"),
        (("--max-steps", "0"), "--max-steps: expected a number above 0, got 0"),
        (("--minutes", "-1"), "--minutes: expected a number above 0, got -1.0"),
        (
            ("--kind", "dflash", "--anchors", "13"),
            "--anchors: expected at most --window - --block = 12 blocks",
        ),
    ],
)
def test_arguments(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as refused:
        trainer(tool, monkeypatch, tmp_path, *options, "--resume")
    assert re.search(message, f"{refused.value}\n{capsys.readouterr().err}")


def test_a_checkpoint_of_another_training(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(tool, monkeypatch, tmp_path, "--max-steps", "1").run()
    with pytest.raises(SystemExit, match=r"--resume: expected --batch 2 as in .*checkpoint\.pt, got 3"):
        trainer(tool, monkeypatch, tmp_path, "--max-steps", "2", "--resume", "--batch", "3")


PAGE = ROOT / "docs" / "use" / "train_a_drafter.md"
MARK = "<!-- tested by tests/test_train_drafter.py, with a smaller budget -->"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands in order, in this process and with a budget of some steps: what they print and write is there."""
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    tool = script("tools/train_drafter.py")
    monkeypatch.setattr(tool.signal, "signal", lambda *_: None)
    monkeypatch.chdir(ROOT)
    blocks = re.findall(rf"{MARK}\n```\n(.*?)```\n", PAGE.read_text(), re.S)
    assert len(blocks) == len(re.findall("^```$", PAGE.read_text(), re.M)) // 2 == 4
    small = "--window 32 --batch 2 --pool 2 --tokens 20000 --draft-vocab 256 --max-steps {steps}"
    budgets = {
        "--minutes 60": small.format(steps=2), "--minutes 90": small.format(steps=3),
        "--max-new-tokens 48": "--max-new-tokens 4 --repeat 1", "build/my-eagle3": str(tmp_path / "my-eagle3"),
        "--sweep 1,3,5": "--sweep 5", "--plot ": f"--plot {tmp_path}/my-eagle3/",
    }  # fmt: skip
    printed = []
    for block in blocks:
        for given, budget in budgets.items():
            block = block.replace(given, budget)
        # The shell puts the library's folder in.
        shown = "".join(f'{name}() {{ printf "%s\\n" {name} "$@"; }}\n' for name in ("train", "specdec-hal"))
        line = shown + block.replace("python tools/train_drafter.py", "train").replace(
            "$(python", f"$({sys.executable}"
        )
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
        command, *words = done.stdout.splitlines()
        if command == "train":
            monkeypatch.setattr(sys, "argv", ["train_drafter.py", *words])
            tool.Trainer(tool.arguments()).run()
        else:
            assert main(words) == 0
        printed.append(capsys.readouterr().out)
    assert "start from the MTP module" in printed[0] and '{"step": 2, ' in printed[0]
    assert "resumed after step 2 and " in printed[1] and '{"step": 3, ' in printed[1]
    assert "eagle3 K=5" in printed[3] and "identical tokens" in printed[3]
    wanted = {"config.json", "model.safetensors", "training.json", "loss.svg", "checkpoint.pt", "acceptance.svg"}
    assert {file.name for file in (tmp_path / "my-eagle3").iterdir()} == wanted
