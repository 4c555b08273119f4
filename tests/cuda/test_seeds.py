"""Seeds, the default method and closing on a GPU: what is reported repeats the tokens, no memory stays allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_hal as sd

pytestmark = pytest.mark.gpu
FOLDER = Path(__file__).parents[2] / "models/tiny-py-lm"
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n"


def test_rows_without_seeds_draw_their_own() -> None:
    import torch

    logits = torch.zeros((8, 3, 50), device="cuda:0")
    how: dict[str, Any] = {"temperature": 1.0, "positions": [3] * 8}
    drawn = sd.sample(logits[:, 0], **how)
    assert drawn.seeds.device == logits.device and drawn.seeds.dtype == torch.int64
    assert len(set(drawn.seeds.tolist())) == 8 and len(set(drawn.token_ids.tolist())) > 2
    again = sd.sample(logits[:, 0], **how, seeds=drawn.seeds)
    assert again.seeds is drawn.seeds and torch.equal(again.token_ids, drawn.token_ids)
    on_host = sd.sample(np.zeros((8, 50), np.float32), **how, seeds=drawn.seeds.cpu().numpy(), backend="reference")
    assert on_host.token_ids.tolist() == drawn.token_ids.tolist()
    judged = sd.verify(logits, [[7, 8]] * 8, **how)
    assert torch.equal(sd.verify(logits, [[7, 8]] * 8, **how, seeds=judged.seeds).token_ids, judged.token_ids)
    assert sd.sample(logits[:, 0]).seeds is None


def test_a_closed_engine_leaves_no_memory_behind() -> None:
    """The first one leaves what libraries keep for the life of the process."""
    import torch

    left = []
    for _ in range(3):
        with sd.LLM(FOLDER, framework="torch", dtype="float32", backend={"name": "cuda"}) as llm:
            llm.generate([PROMPT] * 3, sd.SamplingParams(max_new_tokens=24), progress=False)
            assert llm.runner.summary()["graphs"] > 0
            held = torch.cuda.memory_allocated()
        left.append(torch.cuda.memory_allocated())
    assert held - left[0] > 1 << 24, "weights and caches"
    assert max(left[1:]) - left[0] < 1 << 20, left


def test_the_default_method() -> None:
    settings: dict[str, Any] = {"framework": "torch", "dtype": "float32", "backend": {"name": "cuda"}}
    params = sd.SamplingParams(max_new_tokens=48, temperature=0.8, n=2)
    with sd.LLM(FOLDER, max_num_seqs=4, **settings) as llm:
        outputs = llm.generate([PROMPT] * 2, params, progress=False)
        speculative, summary = llm.runner.config.speculative, llm.runner.summary()
        assert (speculative.method, speculative.adaptive) == ("mtp", True)
        assert summary["graphs"] > 0 and summary["num_drafts"] > 0
        assert summary["failed_steps"] == summary["failed_proposals"] == summary["graph_failures"] == 0
    seeds = [output.seed for output in outputs]
    assert len(set(seeds)) == 4 and seeds[1] == seeds[0] + 1 and seeds[3] == seeds[2] + 1  # type: ignore[operator]
    assert len({output.token_ids for output in outputs}) == 4
    with sd.LLM(FOLDER, speculative={"method": "naive"}, **settings) as plain:
        for output in outputs:
            (alone,) = plain.generate(PROMPT, params.model_copy(update={"n": 1, "seed": output.seed}), progress=False)
            assert alone.token_ids == output.token_ids
