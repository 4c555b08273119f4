"""The example runner, on the layer alone, decodes as this project's own runner does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("backend", "tokens"), [("cpu", 16), pytest.param("reference", 48, marks=pytest.mark.slow)])
def test_the_tokens_are_ours(backend: str, tokens: int, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import fastdeploy_runner

    assert fastdeploy_runner.main(backend, tokens)
    lines = [line for line in capsys.readouterr().out.splitlines() if "the tokens of our runner" in line]
    steps = {line.partition(":")[0]: int(line.split(" steps")[0].split()[-1]) for line in lines}
    assert steps.keys() == {"TOPP", "GREEDY", "TARGET_MATCH", "NAIVE"}
    assert steps["GREEDY"] == steps["TARGET_MATCH"] < steps["NAIVE"], "drafts are accepted"
    assert not [name for name in sys.modules if name.startswith("fastdeploy.")]
