"""Texts for n-gram look-up, and tokens whose entries of an index collide."""

from __future__ import annotations

import numpy as np

TEXTS = {
    "two letters": lambda rng, n: rng.integers(0, 2, n),
    "all equal": lambda rng, n: np.full(n, 7),
    "periodic": lambda rng, n: np.resize(rng.integers(0, 9, int(rng.integers(1, 6))), n),
    "twice": lambda rng, n: np.resize(rng.integers(0, 1000, (n + 1) // 2), n),
    "wide ids": lambda rng, n: rng.integers(0, 3, n) * (1 << 40) - 5,
    "all different": lambda rng, n: rng.permutation(n),
}


def buckets_of_single_tokens(tokens: np.ndarray, buckets: int) -> np.ndarray:
    """Where the search for a 1-gram starts: the arithmetic of `CompactHash` and `CompactKey`, for tokens below 2^32."""
    state = (np.uint32(0x243F6A88) ^ tokens.astype(np.uint32)) * np.uint32(0x9E3779B1)
    state ^= state >> np.uint32(15)
    value = (state + np.uint32(1)) * np.uint32(0x85EBCA77)
    value = (value ^ (value >> np.uint32(13))) * np.uint32(0xC2B2AE3D)
    return (value.astype(np.uint64) * np.uint64(buckets)) >> np.uint64(32)
