"""`select_draft_path` draws what `sample_target` draws from rows with the candidates' scores."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.backends.reference.primitives import dot_sum
from specdec_hal.ops.inputs.generate import generate


@pytest.mark.parametrize("seed", range(40))
def test_a_path_is_a_chain_of_samples(seed: int) -> None:
    backend, (v, candidates) = ReferenceBackend(), (40, 8)
    given = generate("select_draft_path", seed, states=("decode",), S=6, L=40, V=v, D=9, C_draft=candidates,
                     dtype="float32", probs=True)  # fmt: skip
    rng, rows = np.random.default_rng(seed), len(given["position"])
    given["path_logits"] = rng.normal(size=(rows, candidates)).astype(np.float32)  # without ties
    given["path_ids"] = np.argsort(rng.random((rows, v)), 1)[:, :candidates].copy()
    given["anchor_tokens"] = rng.integers(0, v, len(given["anchor_tokens"]))
    for name in ("path_hidden", "predecessor_codes", "successor_codes"):
        given[name] = rng.normal(size=given[name].shape).astype(np.float32)
    backend.select_draft_path(**given)
    tokens, offsets, drawn = given["path_tokens"], given["cu_seqlens_q_output"], 0
    for b, anchor in enumerate(given["anchor_tokens"]):
        previous = anchor
        for r in range(offsets[b], offsets[b + 1]):
            ids, row = given["path_ids"][r], np.full((1, v), -np.inf, np.float32)
            products = (given["predecessor_codes"][previous] * given["path_hidden"][r]) * given["successor_codes"][ids]
            row[0, ids] = given["path_logits"][r] + dot_sum(products)
            one = {
                name: given[name][r : r + 1].copy() for name in given if name.startswith("row_") or name == "position"
            }
            one["row_top_k"][0] = min(one["row_top_k"][0], candidates) if one["row_top_k"][0] > 0 else candidates
            token, probs = np.zeros(1, np.int64), np.zeros((1, v), np.float32)
            backend.sample_target(row, target_tokens=token, purpose=given["purpose"], **one)
            del one["row_seed"]
            backend.processed_probs(row, probs=probs, **one)
            assert tokens[r] == token[0] >= 0
            assert (given["probs"][r] == probs[0]).all()
            previous, drawn = token[0], drawn + 1
    assert drawn == (tokens >= 0).sum()
