"""N-gram look-up on a GPU over long texts, against the reference."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from specdec_hal.ops import MatchPolicy
from tests.support.bits import assert_same_bits
from tests.support.gpu import run_on_gpu
from tests.support.ngram_texts import TEXTS, come_grow_and_leave, scene
from tests.support.running import run

pytestmark = pytest.mark.gpu

MATCHERS = ("ngram_match", "hybrid_mtp_ngram")


def assert_found(cuda: Any, state: dict[str, Any], context: object) -> None:
    """Both ops and policies."""
    for op, policy, cycles in product(MATCHERS, MatchPolicy, (False, True)):
        call = {**state, "match_policy": policy, "continue_cycles": cycles}
        assert_same_bits(run_on_gpu(op, call, cuda), run(op, call), (op, policy, cycles, context))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("m, length, steps", [(5, 48, 24), (40, 300, 8), (3, 9000, 4), (2, 70_001, 2)])
def test_requests_come_grow_and_leave(text, m, length, steps, cuda):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        s, largest = int(rng.integers(2, 12)), int(rng.integers(1, 7))
        sizes = {"max_ngram_size": largest, "min_ngram_size": int(rng.integers(1, largest + 1))}
        state = scene(m, length, s, sizes)
        for step in range(steps):
            come_grow_and_leave(rng, text, state)
            assert_found(cuda, state, (seed, step))


@pytest.mark.parametrize("length", [511, 1024, 2047, 2048, 4095, 8191, 32_767, 70_001, 200_003])
def test_where_blocks_share_a_row(length, cuda):
    """A match at every kind of place, and none, in rows that take one block or many."""
    rng, sizes = np.random.default_rng(length), {"max_ngram_size": 3, "min_ngram_size": 2}
    columns = np.unique(
        np.concatenate([np.arange(3, 9), 2 ** np.arange(4, 18), length // 2 + np.arange(2), [length - 40]])
    )
    columns = columns[columns < length - 30]
    m = len(columns) + 1
    state = scene(m, length, 9, sizes)
    state["token_ids_all"][:] = rng.permutation(m * length).reshape(m, length)
    state["prompt_lens"][:], state["seq_lens_decoder"][:] = length - 20, 1
    state["step_idx"][:] = 15
    for b, column in enumerate(columns):
        state["token_ids_all"][b, column - 3 : column] = state["token_ids_all"][b, length - 8 : length - 5]
    assert_found(cuda, state, length)
