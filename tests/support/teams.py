"""Settings and requests of engines with several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from specdec_hal.runner import Request, SamplingParams


def settings(path: Path, ranks: int, framework: str = "transformers", **speculative: Any) -> dict[str, Any]:
    return {
        "backend": {"name": "reference"},
        "model": {"path": str(path), "framework": framework},
        "engine": {"tensor_parallel": ranks, "digest_interval": 4},
        "runner": {"max_num_seqs": 3, "max_model_len": 200},
        "speculative": speculative or {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False},
    }


def requests() -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        Request(f"r{i}", rng.integers(1, 4096, 5 + 20 * i).tolist(), SamplingParams(
            max_new_tokens=25, temperature=0.9 * (i % 2), seed=i, repetition_penalty=1.2 if i == 3 else 1.0
        ))
        for i in range(5)
    ]  # fmt: skip


def tokens_of(runner: Any) -> dict[str, tuple[int, ...]]:
    for request in requests():
        runner.add_request(request)
    return {name: output.token_ids for name, output in runner.run().items()}
