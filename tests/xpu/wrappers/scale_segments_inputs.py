"""Inputs of scale_segments: a few segments of any length, also none."""

from __future__ import annotations

from typing import Any

import numpy as np


def arguments(rng: np.random.Generator) -> dict[str, Any]:
    lengths = rng.integers(0, 300, size=rng.integers(1, 9))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    x = rng.normal(size=offsets[-1]).astype(np.float32)
    return {
        "x": x, "offsets": offsets, "factors": rng.normal(size=len(lengths)).astype(np.float32), "y": np.zeros_like(x),
        "total": np.zeros(len(lengths), np.int64),
    }  # fmt: skip
