"""N-gram look-up on a GPU over long texts, by search and by an index kept over many steps, against the reference."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from specdec_hal.ops import MatchPolicy
from tests.support.bits import assert_same_bits
from tests.support.gpu import run_on_gpu
from tests.support.ngram_texts import TEXTS, Indexing, buckets_of_single_tokens, come_grow_and_leave, scene
from tests.support.running import run

pytestmark = pytest.mark.gpu

MATCHERS = ("ngram_match", "hybrid_mtp_ngram")


def assert_found(cuda: Any, state: dict[str, Any], index: np.ndarray | None, context: object) -> np.ndarray | None:
    """Both ops and policies, by search and with the index. Gives back the index, which the look-ups keep up to date."""
    kept = index
    for op in MATCHERS:
        for policy, cycles in product(MatchPolicy, (False, True)):
            call = {**state, "match_policy": policy, "continue_cycles": cycles}
            expected = run(op, call)
            assert_same_bits(run_on_gpu(op, call, cuda), expected, (op, policy, cycles, context))
            if index is not None:
                actual = run_on_gpu(op, {**call, "index": index}, cuda)
                kept = actual.pop("index")
                assert_same_bits(actual, expected, (op, policy, cycles, "index", context))
    return kept


def indexing(cuda: Any, sizes: dict[str, int]) -> Indexing:
    return Indexing(cuda, lambda op, call: run_on_gpu(op, call, cuda), sizes)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("m, length, steps", [(5, 48, 24), (40, 300, 8), (3, 9000, 4), (2, 70_001, 2)])
def test_requests_come_grow_and_leave(text, m, length, steps, cuda):
    """The index is kept by `ngram_index_update` in one step, and in the next by the look-up alone."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        s, largest = int(rng.integers(2, 12)), int(rng.integers(1, 7))
        sizes = {"max_ngram_size": largest, "min_ngram_size": int(rng.integers(1, largest + 1))}
        state, indexed = scene(m, length, s, sizes), indexing(cuda, sizes)
        index = indexed.fresh(m, length)
        for step in range(steps):
            index = indexed.reset(index, come_grow_and_leave(rng, text, state))
            if step % 2 == 0:
                index = indexed.updated(index, state)
            index = assert_found(cuda, state, index, (seed, step))


def test_a_history_that_shrank_is_indexed_again(cuda):
    """The contract asks for a reset; without one, results are still right."""
    rng, sizes = np.random.default_rng(0), {"max_ngram_size": 3, "min_ngram_size": 1}
    state, indexed = scene(4, 500, 6, sizes), indexing(cuda, sizes)
    index = indexed.fresh(4, 500)
    state["token_ids_all"][:] = rng.integers(0, 4, (4, 500))
    state["seq_lens_decoder"][:] = 1
    for prompt, step in ((100, 300), (100, 40), (90, 50), (90, 390)):
        state["prompt_lens"][:], state["step_idx"][:] = prompt, step
        assert_found(cuda, state, index, "behind")  # searched: the index is of something else
        index = assert_found(cuda, state, indexed.updated(index, state), "rebuilt")


def test_tokens_made_to_collide(cuda):
    """An index with more of them than its look-ups go through is not used."""
    sizes = {"max_ngram_size": 1, "min_ngram_size": 1}
    row_width, buckets = 2400, 600
    tokens = np.arange(1_300_000)
    colliding = tokens[buckets_of_single_tokens(tokens, buckets) == 7][:1100]
    state, indexed = scene(2, row_width, 6, sizes), indexing(cuda, sizes)
    index = indexed.fresh(2, row_width)
    assert index.shape[1] == 64 * (buckets + 1)
    state["token_ids_all"][:, :1100], state["token_ids_all"][:, 1100] = colliding, colliding[1060]
    state["prompt_lens"][:], state["seq_lens_decoder"][:] = 400, 1
    for step in (690, 701):
        state["step_idx"][:] = step
        index = assert_found(cuda, state, indexed.updated(index, state), step)


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
    assert_found(cuda, state, None, length)
