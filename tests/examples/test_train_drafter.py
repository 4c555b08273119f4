"""examples/train_drafter.py: budget, resumed trainings, drafts, pictures, and what is refused before all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.cli import main
from specdec_hal.models import load_model
from specdec_hal.models.checkpoint import read_config
from specdec_hal.models.dflash import dflash_shapes, read_dflash
from specdec_hal.models.drafter import Blocks, read_drafter_weights, read_eagle3, read_eagle3_weights, target_of
from specdec_hal.plugin.model import ForwardBatch, Segment
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
    tool = script("examples/train_drafter.py")

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
    module = script("examples/train_drafter.py")
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


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "dflash2"])
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


@pytest.mark.parametrize("from_anchor", [False, True])
def test_drafts_of_dflash_2(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_anchor: bool) -> None:
    """The loss falls, and what the folder drafts after tokens of a text is what the trained modules draft."""
    import torch

    from specdec_hal.models.draft_pass import BlockPass

    options = ["--kind", "dflash2", "--max-steps", "12", "--rank", "8", "--ffn", "64", "--generated", "0"]
    made = trainer(tool, monkeypatch, tmp_path, *options, *["--from-anchor"] * from_anchor)
    head, text = made.head, made.held[:1]
    before = made.loss(text).item()
    made.run()
    assert made.loss(text).item() < 0.8 * before
    with torch.no_grad():
        for layer in head.layers:  # so few steps leave these near their first values
            for name in ("attention_conv", "mlp_conv"):
                layer[name].kernel_projection.weight.normal_(std=0.1)
        head.candidate_selector.successor_codebook.normal_()
        made.save()
        head.load_state_dict({name: value.half() for name, value in head.state_dict().items()})
        taps, _ = made.features(text)
        wanted = [*head.compared(made.target.get_input_embeddings(), text, taps, False)]

    model = load_model(ROOT / "models/tiny-py-lm", "transformers")
    model.allocate(1, 64)
    config = read_dflash(tmp_path, target_of(model, "dflash"))
    weights = read_drafter_weights(tmp_path, dflash_shapes(config), config)
    drafts, tokens = 3 + from_anchor, text[0].numpy()
    block = BlockPass(model, config, weights, Blocks(1, 64), drafts)
    rows = block.fuse({tap: value[0].numpy() for tap, value in zip(config.taps, taps, strict=True)})
    assert len(wanted) == config.drafts == drafts
    for i, at in enumerate(wanted[0][1][0].tolist()):
        if at == 0:  # the first token of a text is not fed
            continue
        ids = np.array([tokens[at], *[config.mask_token_id] * 3])
        fed = ForwardBatch(tokens[1 : at + 1], [Segment(0, 0, at, 0)])
        source = np.array([at - 1, -1, -1, -1], np.int32)
        given = block.forward_block(fed, rows[:at], ForwardBatch(ids, [Segment(0, 0, 4, at)]), source)
        for number, (logits, _, _) in enumerate(wanted):
            if number:
                previous = ForwardBatch(tokens[at + number : at + number + 1], [Segment(0, 0, 1, at + number)])
                given = block.forward_further(number, previous)
            ours = block.host_draft_logits(number, [0], given[-1:]).numpy()[0]
            assert np.isfinite(ours).sum() == 16
            np.testing.assert_allclose(ours, logits[0, i].numpy(), atol=5e-3)


def test_windows_are_what_the_target_writes(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the library's own generator: greedy, and another batch that is sampled."""
    import torch

    made = trainer(tool, monkeypatch, tmp_path, "--max-steps", "1", "--kept", "5", "--write-batch", "3")
    starts = made.held[:6, :5]
    with tool.Progress() as progress:
        windows = made.continued(starts, 1.0, progress)
    wanted = made.target.generate(starts, attention_mask=torch.ones_like(starts), max_new_tokens=11, do_sample=False)
    assert windows.shape == wanted.shape == (6, 16)
    assert torch.equal(windows[:3], wanted[:3]) and torch.equal(windows[3:, :5], starts[3:])
    assert not torch.equal(windows[3:], wanted[3:])


def test_a_head_of_its_own_size(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--max-steps", "1", "--heads", "2", "1", "--ffn", "64", "--layers", "3", "6", "--no-lm-head", "--random"]
    trainer(tool, monkeypatch, tmp_path, *options, "--generated", "0").run()
    config = read_eagle3(tmp_path, read_config(ROOT / "models/tiny-py-lm"))
    weights = read_eagle3_weights(tmp_path, config)
    assert config.taps == (3, 6) and weights.head is None and weights.draft_ids is not None
    assert (config.num_attention_heads, config.num_key_value_heads, config.intermediate_size) == (2, 1, 64)
    assert weights.layers[0].qkv.shape == (512, 4 * 64)


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
MARK = "<!-- tested by tests/examples/test_train_drafter.py, with a smaller budget -->"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands in order, in this process and with a budget of some steps: what they print and write is there."""
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    tool = script("examples/train_drafter.py")
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
        line = shown + block.replace("python examples/train_drafter.py", "train").replace(
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
