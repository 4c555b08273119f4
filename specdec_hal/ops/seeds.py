"""Seeds of requests: fresh ones, and several derived from one."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

SEEDS = 1 << 63
"""Seeds are 64-bit integers: in [-SEEDS, SEEDS)."""
_BITS = 52
"""Bits of a fresh seed. JavaScript and other JSON readers with doubles hold such seeds, and those derived from them,
exactly, so that clients can send reported seeds again.
"""


def fresh(count: int) -> NDArray[np.int64]:
    """Seeds from the operating system's entropy, int64 [count], each in [0, 2^52)."""
    return np.frombuffer(os.urandom(8 * count), np.int64) & ((1 << _BITS) - 1)


def derived(seed: int, index: int) -> int:
    """`seed` + `index`, wrapped to 64 bits: the seed of choice number `index` of a request (vLLM's rule), or of row
    number `index` of a batch; both count from 0."""
    return (seed + index + SEEDS) % (2 * SEEDS) - SEEDS
