"""Seeds, the default method and closing on a GPU: what is reported repeats the tokens, no memory stays allocated."""

from __future__ import annotations

from pathlib import Path

import pytest

import specdec_hal as sd

pytestmark = pytest.mark.gpu
FOLDER = Path(__file__).parents[2] / "models/tiny-py-lm"
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n"


def test_a_closed_engine_leaves_no_memory_behind() -> None:
    """The first one leaves what libraries keep for the life of the process."""
    import torch

    left = []
    for _ in range(3):
        with sd.LLM(FOLDER, framework="transformers", dtype="float32", backend={"name": "cuda"}) as llm:
            llm.generate([PROMPT] * 3, sd.SamplingParams(max_new_tokens=24), progress=False)
            assert llm.runner.summary()["graphs"] > 0
            held = torch.cuda.memory_allocated()
        left.append(torch.cuda.memory_allocated())
    assert held - left[0] > 1 << 24, "weights and caches"
    assert max(left[1:]) - left[0] < 1 << 20, left
