"""Log-probabilities of the reference against float64, over a vocabulary of several chunks."""

from __future__ import annotations

import numpy as np

from specdec_hal.ops.inputs.generate import generate
from tests.support.running import run


def test_logprobs_of_a_large_vocabulary():
    rng = np.random.default_rng(5)
    inputs = generate("token_logprobs", 3, V=50_000, R_cap=4, A_cap=4, B=1, M=1, N=5, dtype="float32")
    inputs["logits"] = rng.normal(scale=3, size=(4, 50_000)).astype(np.float32)
    inputs["rows"], inputs["token_ids"] = np.arange(4, dtype=np.int32), np.arange(4) * 1000
    inputs["cu_batch_token_offset"] = np.array([0, 4], np.int32)
    x = inputs["logits"].astype(np.float64)
    exact_logprobs = x - x.max(1, keepdims=True) - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True))
    actual = run("token_logprobs", inputs)
    wanted = np.take_along_axis(exact_logprobs, actual["ids"], 1)
    np.testing.assert_allclose(actual["logprobs"], wanted, rtol=1e-6)
    np.testing.assert_array_equal(actual["ranks"], (x >= x[np.arange(4), inputs["token_ids"]][:, None]).sum(1))
