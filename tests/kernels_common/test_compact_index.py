"""The index that devices fill in parallel: whatever the order of insertions, look-ups find what a search finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.backends.reference.ngram import continuation, longest_query
from specdec_hal.ops import MatchPolicy
from specdec_hal.tensors.native import load_library

LONGEST = 1 << 20  # of a row; leaves an entry no bits of the hash


class Index:
    def __init__(self, row_width: int, min_size: int, max_size: int) -> None:
        self.native, self.sizes = load_library("specdec_common"), (row_width, min_size, max_size)
        self.entries = np.zeros(self.native["compact_entries"](*self.sizes), np.uint64)

    def enter(self, text: np.ndarray, places: Any, prompt_len: int) -> int:
        order = np.ascontiguousarray(places, np.int64)
        return int(self.native["compact_enter"](self.entries, text, order, prompt_len, *self.sizes))

    def search(self, text: np.ndarray, prompt_len: int, policy: MatchPolicy) -> tuple[int, int]:
        found = np.zeros(2, np.int64)
        self.native["compact_search"](self.entries, text, found, prompt_len, *self.sizes, int(policy))
        return int(found[0]), int(found[1])


def searched(text: np.ndarray, prompt_len: int, sizes: range, policy: MatchPolicy) -> tuple[int, int]:
    """(size, place) by reading the text; (0, 0) for none."""
    for n in sizes:
        if n <= longest_query(len(text), prompt_len, policy):
            match = continuation(text, prompt_len, text[len(text) - n :], policy, None)
            if match is not None:
                return n, match[0]
    return 0, 0


TEXTS = {
    "two letters": lambda rng, n: rng.integers(0, 2, n),
    "all equal": lambda rng, n: np.full(n, 7),
    "periodic": lambda rng, n: np.resize(rng.integers(0, 9, int(rng.integers(1, 6))), n),
    "twice": lambda rng, n: np.resize(rng.integers(0, 1000, (n + 1) // 2), n),
    "wide ids": lambda rng, n: rng.integers(0, 3, n) * (1 << 40) - 5,
    "all different": lambda rng, n: rng.permutation(n),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.tuples(st.integers(1, 16), st.integers(1, 16)), wide=st.booleans())
def test_finds_what_a_search_finds(text, seed, sizes, wide):
    rng = np.random.default_rng(seed)
    length = int(rng.integers(2, 160))
    tokens = np.asarray(text(rng, length), np.int64)
    smallest, largest = min(sizes), max(sizes)
    index = Index(LONGEST if wide else length, smallest, largest)
    prompt_len, seen = int(rng.integers(0, length)), 1
    end = prompt_len + 1
    while end <= length:
        places = rng.permutation(np.arange(seen, end))
        assert index.enter(tokens[:end], places, prompt_len) == len(places)
        for policy in MatchPolicy:
            expected = searched(tokens[:end], prompt_len, range(largest, smallest - 1, -1), policy)
            assert index.search(tokens[:end], prompt_len, policy) == expected
        seen, end = max(end, 1), end + int(rng.integers(1, 9))
    assert np.count_nonzero(index.entries) <= 0.95 * len(index.entries) or length < 32


def buckets_of_single_tokens(tokens: np.ndarray, buckets: int) -> np.ndarray:
    """Where the search for a 1-gram starts: the arithmetic of `CompactHash` and `CompactKey`, for tokens below 2^32."""
    state = (np.uint32(0x243F6A88) ^ tokens.astype(np.uint32)) * np.uint32(0x9E3779B1)
    state ^= state >> np.uint32(15)
    value = (state + np.uint32(1)) * np.uint32(0x85EBCA77)
    value = (value ^ (value >> np.uint32(13))) * np.uint32(0xC2B2AE3D)
    return (value.astype(np.uint64) * np.uint64(buckets)) >> np.uint64(32)


def test_colliding_tokens_spoil_the_index_and_say_so():
    row_width = 2400
    index = Index(row_width, 1, 1)
    buckets = len(index.entries) // 8
    tokens = np.arange(1_300_000)
    colliding = tokens[buckets_of_single_tokens(tokens, buckets) == 7][:1100]
    assert len(colliding) == 1100
    text = np.append(colliding, colliding[3])
    assert index.enter(text, np.arange(1, 501), 1) == 500
    assert index.search(np.append(colliding[:500], colliding[3]), 1, MatchPolicy.LATEST) == (1, 4)
    assert index.enter(text, np.arange(501, len(text)), 1) == 1024 - 500  # 128 buckets of 8 are full
