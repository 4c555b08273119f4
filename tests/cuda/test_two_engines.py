"""Two engines that capture steps on one GPU, and a drafter, each on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.runner import Request, SamplingParams
from tests.support.graphs import ROUNDS, together

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def engine(seed: int) -> tuple[Callable[[], Any], Callable[[], None]]:
    """A runner's outputs alone, and again by new runners, whose steps are captured again."""
    runtime = sd.load(ROOT / "configs/cuda.yaml", ["model.framework=transformers", "runner.max_num_seqs=2"])
    model, tokenizer = runtime.load_model(), runtime.load_tokenizer()
    prompt = np.random.default_rng(seed).integers(1, 4096, 12).tolist() * 2
    params = SamplingParams(max_new_tokens=12, min_new_tokens=12, temperature=0.8, seed=seed)

    def decode() -> tuple[int, ...]:
        runner = runtime.runner(model=model, tokenizer=tokenizer)
        runner.add_request(Request("a", prompt, params))
        output = runner.run()["a"]
        summary = runner.summary()
        assert output.error == "" and len(output.token_ids) == 12
        assert summary["graphs"] > 0, "something was captured"
        assert summary["failed_steps"] == summary["graph_failures"] == summary["failed_proposals"] == 0, summary
        return output.token_ids

    def rounds() -> None:
        for turn in range(ROUNDS):
            assert decode() == alone, turn

    alone = decode()
    return decode, rounds


def drafter() -> None:
    """Allocates, copies and waits on the default stream while others capture."""
    import torch

    backend = sd.get_backend("cuda")
    for turn in range(ROUNDS):
        if turn % 10 == 0:
            proposer = sd.Drafter(method="ngram", backend=backend, num_speculative_tokens=3)
        history = [7, 8, 9, 10] * (turn * 5 + 2) + [7, 8]
        assert proposer.propose([history], request_ids=["a"] if turn % 2 else None) == [[9, 10, 7]]
        grown = torch.full(((1 << 18) * (turn + 1),), turn, device="cuda:0")  # more than the allocator has kept
        torch.cuda.current_stream().synchronize()
        assert int(grown[-1]) == turn


def test_two_runners_that_capture_and_a_drafter() -> None:
    (first_alone, first), (second_alone, second) = engine(1), engine(2)
    together(first, second, drafter)
    first_alone(), second_alone()
