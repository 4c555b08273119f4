"""Requests decoded through the simulated XPU get the tokens that the reference gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.ops import OPS
from specdec_hal.plugin.backend import Backend
from specdec_hal.runner import Request, SamplingParams, build_runner
from tests.support.history_model import HistoryModel, LetterTokenizer

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.9, "top_p": 0.9, "top_k": 20, "min_p": 0.01},
    "penalised": {"temperature": 0.7, "repetition_penalty": 1.2, "frequency_penalty": 0.2, "min_new_tokens": 5},
}


def decode(backend: Backend, strategy: str, sampling: dict[str, Any], **runner: Any) -> dict[str, list[int]]:
    speculative = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False, "verify_strategy": strategy}
    config = parse({"speculative": speculative, "runner": {"max_num_seqs": 3, **runner}})
    model_runner = build_runner(config, backend, HistoryModel(), LetterTokenizer())  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    for i in range(7):
        prompt = rng.integers(0, 6, int(rng.integers(1, 20))).tolist()
        params = SamplingParams(max_new_tokens=24, seed=i, **sampling)
        model_runner.add_request(Request(str(i), prompt, params))
    return {name: list(output.token_ids) for name, output in model_runner.run().items()}


@pytest.mark.parametrize("chunk", [256, 5])
@pytest.mark.parametrize("strategy", ["target_match", "topp", "rejection"])
@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
def test_the_same_tokens_as_the_reference(strategy, sampling, chunk):
    backend = sd.get_backend("xpu_sim", options={"seed": 4, "dma": "deferred"})
    missing = [op for op in OPS if backend.capability(op) is None]
    assert not missing
    expected = decode(ReferenceBackend(), strategy, sampling, prefill_chunk=chunk)
    actual = decode(backend, strategy, sampling, prefill_chunk=chunk)
    assert actual == expected
    assert not backend.fallback_calls and sum(map(len, actual.values())) > 50
