"""Calibration: a head that is read otherwise than it was trained is refused with the key to set; others are not."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.errors import ConfigError
from specdec_hal.models import load_model
from specdec_hal.proposers import eagle3
from specdec_hal.runner import ModelRunner, build_runner
from tests.models.test_eagle3 import make_head
from tests.support.drafters import perfect


@pytest.fixture(autouse=True)
def _short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eagle3, "TEXTS", ("one", "two"))


def make_runner(target: Path, head: Path, **settings: Any) -> ModelRunner:
    speculative = {"method": "auto", "path": str(head), "calibrate": True, "eagle3": settings}
    return build_runner(parse({"speculative": speculative}), ReferenceBackend(), load_model(target))


@pytest.mark.parametrize(
    ("taps", "wrong", "hint"),
    [
        ((2, 3, 4), {}, "layers=[1, 2, 3]"),
        ((1, 2, 4), {"norm_output": True}, "norm_output=false"),
        ((1, 2, 4), {"norm_before_residual": True}, "norm_before_residual=false"),
    ],
)
def test_the_key_to_set_is_named(tmp_path: Path, taps: tuple[int, ...], wrong: dict[str, Any], hint: str) -> None:
    target, head = perfect(tmp_path / "target")
    head.taps = taps
    folder = head.write_speculators(tmp_path / "head", **wrong)
    with pytest.raises(ConfigError, match=r"calibrate: the head agrees .* set ") as caught:
        make_runner(target, folder)
    assert str(caught.value).endswith(f"set speculative.eagle3.{hint}")
    name, value = hint.split("=")
    runner = make_runner(target, folder, **{name: json.loads(value)})
    assert runner.config.speculative.method == "eagle3"


def test_a_right_head_passes_and_the_log_says_how_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target, head = perfect(tmp_path / "target")
    with caplog.at_level(logging.INFO, "specdec_hal"):
        make_runner(target, head.write_speculators(tmp_path / "head"))
    lines = [record.message for record in caplog.records if "calibrate: agreement" in record.message]
    assert len(lines) == 4 and "1.000, 1.000, 1.000 as configured" in lines[0]  # the taps leave no room
    assert all("1.000, 1.000, 1.000" not in line for line in lines[1:])


def test_an_untrained_head_is_left_alone(tmp_path: Path) -> None:
    """No variant of it is better beyond chance."""
    target, _ = perfect(tmp_path / "target", 131 - 4)
    random = make_head(vocab_size=127, hidden_size=131, draft_vocab_size=60)
    random.taps = (1, 2, 3)
    make_runner(target, random.write_speculators(tmp_path / "head"))


def test_other_methods_have_no_calibration() -> None:
    with pytest.raises(ConfigError, match="expected false with the method 'ngram'"):
        parse({"speculative": {"method": "ngram", "calibrate": True}})
