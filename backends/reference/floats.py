"""Logits come as float32, float16 or bfloat16 (held as uint16); arithmetic is float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.primitives import bf16_to_f32

F32 = NDArray[np.float32]


def to_f32(values: NDArray[Any]) -> F32:
    """Widen exactly."""
    if values.dtype == np.uint16:
        return bf16_to_f32(values)
    return values.astype(np.float32, copy=False)


def from_f32(values: F32, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Round to nearest even; a NaN stays a (quiet) NaN."""
    if dtype != np.uint16:
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)
