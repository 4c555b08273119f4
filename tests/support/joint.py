"""Joint distributions of two tokens of a target."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_hal.backends.reference.backend import ReferenceBackend

TARGET = np.log(np.array([[6, 5, 3, 2], [1, 8, 4, 3], [7, 1, 1, 7], [3, 3, 9, 1]]) / 16)


FILTERS = {"temperature": 0.7, "top_p": 0.9}


PROMPT = [0, 1, 2, 3, 0, 2, 1, 3, 3, 0]


def exact(rows: Any) -> Any:
    """What `sample_target` draws from, in float64."""
    size = len(rows)
    probs = np.zeros((size, size), np.float32)
    f32 = lambda value: np.full(size, value, np.float32)  # noqa: E731
    ReferenceBackend().processed_probs(
        rows.astype(np.float32), f32(0.7), f32(0.9), np.zeros(size, np.int32), f32(0), np.zeros(size, np.int64), probs
    )
    return probs.astype(np.float64) / probs.sum(1, dtype=np.float64, keepdims=True)


def joint() -> Any:
    step = exact(TARGET)
    return step[PROMPT[-1]][:, None, None] * step[:, :, None] * step[None]
