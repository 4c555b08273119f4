"""Calibration: a drafter that is read otherwise than it was trained is refused with the key to set; others are not."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specdec_hal.config import parse
from specdec_hal.errors import CheckpointError, ConfigError
from specdec_hal.proposers import calibration
from specdec_hal.runner import ModelRunner
from tests.proposers import test_eagle3
from tests.support import dflash
from tests.support.drafters import perfect
from tests.support.eagle3 import make_head

MARKOV = {"markov_rank": 6, "markov_head_type": "rnn", "enable_confidence_head": True}


@pytest.fixture(autouse=True)
def _short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "TEXTS", ("one", "two"))
    monkeypatch.setattr(calibration, "LENGTH", 48)


def make_runner(target: Path, drafter: Path, framework: str = "auto", **speculative: Any) -> ModelRunner:
    keys = {"method": "auto", "path": str(drafter), "calibrate": True, **speculative}
    return test_eagle3.make_runner(target, keys, framework, max_num_seqs=4)


@pytest.mark.parametrize(
    ("method", "framework", "taps", "wrong", "hint"),
    [
        ("eagle3", "auto", (2, 3, 4), {}, "layers=[1, 2, 3]"),
        ("eagle3", "auto", (1, 2, 4), {"norm_output": True}, "norm_output=false"),
        ("eagle3", "auto", (1, 2, 4), {"norm_before_residual": True}, "norm_before_residual=false"),
        pytest.param("dflash", "transformers", (2, 3, 4), {}, "layers=[1, 2, 3]", marks=pytest.mark.torch),
        pytest.param("dflash", "device", (2, 3, 4), {}, "layers=[1, 2, 3]", marks=pytest.mark.torch),
    ],
)
def test_the_key_to_set_is_named(
    tmp_path: Path, method: str, framework: str, taps: tuple[int, ...], wrong: dict[str, Any], hint: str
) -> None:
    """With it the drafter passes, and the runner's cache is whole after it: all drafts are right."""
    target, head = perfect(tmp_path / "target")
    drafter: Any = head if method == "eagle3" else dflash.perfect(head, 4)
    drafter.taps = taps
    folder = drafter.write_speculators(tmp_path / "drafter", **wrong)
    with pytest.raises(ConfigError, match=r"calibrate: the drafter agrees .* set ") as caught:
        make_runner(target, folder, framework)
    assert str(caught.value).endswith(f"set speculative.{method}.{hint}")
    name, value = hint.split("=")
    runner = make_runner(target, folder, framework, **{method: {name: json.loads(value)}})
    outputs = test_eagle3.decode(runner)
    assert sum(output.drafted for output in outputs) == sum(output.accepted for output in outputs) > 20


def test_a_right_head_passes_and_the_log_says_how_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target, head = perfect(tmp_path / "target")
    with caplog.at_level(logging.INFO, "specdec_hal"):
        make_runner(target, head.write_speculators(tmp_path / "head"))
    lines = [record.message for record in caplog.records if "calibrate: agreement" in record.message]
    assert len(lines) == 4 and "1.000, 1.000, 1.000 as configured" in lines[0]  # the taps leave no room
    assert all("1.000, 1.000, 1.000" not in line for line in lines[1:])


@pytest.mark.parametrize("kind", ["eagle3", *(pytest.param(k, marks=pytest.mark.torch) for k in ("peagle", "dspark"))])
def test_an_untrained_drafter_is_left_alone(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variant of it is better beyond chance."""
    monkeypatch.setattr(calibration, "LENGTH", 24)
    target, _ = perfect(tmp_path / "target", 131 - 4)
    keys: dict[str, Any] = {}
    if kind == "dspark":
        made: Any = dflash.Drafter(127, 131, (1, 2, 3), markov=MARKOV).randomize(4)
    else:
        made = make_head(vocab_size=127, hidden_size=131, draft_vocab_size=60)
        made.taps = (1, 2, 3)
    if kind == "peagle":
        keys = {"speculators_model_type": "peagle", "mask_token_id": 3}
        made.tensors["mask_hidden"] = np.random.default_rng(2).standard_normal((1, 1, made.features))
    make_runner(target, made.write_speculators(tmp_path / "drafter", **keys))


def test_heads_whose_norm_output_has_its_old_meaning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without the norm before the head, as `norm_output: false` meant in SpecForge: a warning, and the key to set."""
    target, head = perfect(tmp_path / "target")
    head.tensors["norm.weight"] = np.random.default_rng(3).standard_normal(head.hidden_size)
    folder = head.write_original(tmp_path / "head", norm_output=False)
    with pytest.raises(ConfigError, match=r"set speculative\.eagle3\.norm_before_head=false$"):
        make_runner(target, folder)
    test_eagle3.make_runner(target, {"method": "auto", "path": str(folder)})
    assert "norm_output false is taken to say" in caplog.text and "norm_before_head=false" in caplog.text
    caplog.clear()
    runner = make_runner(target, folder, eagle3={"norm_before_head": False})
    outputs = test_eagle3.decode(runner)
    assert sum(output.drafted for output in outputs) == sum(output.accepted for output in outputs) > 20
    assert "is taken to say" not in caplog.text


@pytest.mark.torch
def test_a_mask_token_that_no_file_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The best one of the special tokens is taken with a warning; with a setting none is tried.

    The target says 7, whatever it reads. The head's rows add the embedding of their token to the state, from which
    tokens 2 and 3 make another one.
    """
    pytest.importorskip("torch")
    target, head = perfect(tmp_path / "target")
    weights = load_file(target / "model.safetensors")
    weights["lm_head.weight"] = np.zeros_like(weights["lm_head.weight"])
    weights["lm_head.weight"][7, 0] = 1.0
    save_file(weights, target / "model.safetensors")
    own, w = head.head_dim, head.tensors
    w["layers.0.self_attn.o_proj.weight"][:, own:] = 0  # of the row before
    w["fc.weight"][1:] = 0  # all but the constant
    w["mask_hidden"] = np.tile(np.eye(head.hidden_size)[0], 3).reshape(1, 1, -1)
    w["lm_head.weight"][:] = 0
    w["lm_head.weight"][7, 0], w["lm_head.weight"][0, [3, 4]] = 1.0, 9.0
    folder = head.write_original(
        tmp_path / "head", architectures=["PEagleDraftModel"], pad_token_id=2, eos_token_id=3, bos_token_id=5
    )
    keys = {"method": "auto", "path": str(folder), "adaptive": False}
    outputs = test_eagle3.decode(test_eagle3.make_runner(target, keys))
    assert "does not name its mask token: 5 is taken" in caplog.text
    assert all(output.drafted == output.accepted > 10 for output in outputs)
    caplog.clear()
    with pytest.raises(ConfigError, match=r"set speculative\.eagle3\.mask_token_id=5$"):
        make_runner(target, folder)
    outputs = test_eagle3.decode(test_eagle3.make_runner(target, {**keys, "eagle3": {"mask_token_id": 2}}))
    assert "mask token" not in caplog.text and sum(output.accepted for output in outputs) > 0
    assert all(output.drafted > 2 * output.accepted for output in outputs)
    with pytest.raises(
        ConfigError, match=r"mask_token_id: expected a token id in 0\.\.11, and a parallel head, got 12"
    ):
        test_eagle3.make_runner(target, {**keys, "eagle3": {"mask_token_id": 12}})


def test_taps_that_replace_impossible_ones(tmp_path: Path) -> None:
    """Ids beyond the target's layers are not checked where the configuration has others."""
    target, head = perfect(tmp_path / "target")
    head.taps = (2, 3, 9)
    folder = head.write_speculators(tmp_path / "head")
    with pytest.raises(CheckpointError, match="residuals after 1 to 4 layers"):
        make_runner(target, folder)
    outputs = test_eagle3.decode(make_runner(target, folder, eagle3={"layers": [1, 2, 4]}))
    assert sum(output.drafted for output in outputs) == sum(output.accepted for output in outputs) > 20


def test_other_methods_have_no_calibration() -> None:
    with pytest.raises(ConfigError, match="expected false with the method 'ngram'"):
        parse({"speculative": {"method": "ngram", "calibrate": True}})
