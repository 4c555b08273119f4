from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from specdec_hal.tensors.native import load_library


class Native:
    """The C++ primitives, called like the NumPy ones: broadcast the inputs, allocate the result, call."""

    SIGNATURES: ClassVar[dict[str, tuple[str, ...]]] = {
        "softmax_t": ("f4", "f4", "f4", "f4"), "exp2_mass": ("f4", "u8"), "exp2_mass_at": ("f4", "u8"),
        "prob_mass": ("f4", "u8"), "fraction_mass": ("f4", "u8"), "mass_threshold": ("f4", "u8", "u8"),
        "mass_ratio": ("u8", "u8", "f4"), "mass_ratio_by_reciprocal": ("u8", "u8", "f4"), "mulhi64": ("u8", "u8", "u8"),
        "accept_test": ("u4", "u8", "u8", "?"), "log2_q32": ("u8", "i8"), "ln_ratio": ("u8", "f4"),
        "exp_f32": ("f4", "f4"), "bf16_to_f32": ("u2", "f4"), "f16_to_f32": ("u2", "f4"),
    }  # fmt: skip

    def __init__(self, library: Any) -> None:
        self.library = library

    def map(self, name: str, *inputs: Any) -> np.ndarray:
        """out[i] = name(inputs[i]...)."""
        *types, result = self.SIGNATURES[name]
        columns = np.broadcast_arrays(*(np.asarray(x, t) for x, t in zip(inputs, types, strict=True)))
        out = np.empty(columns[0].shape, result)
        self.library[name](*(np.ascontiguousarray(c).reshape(-1) for c in columns), out.reshape(-1))
        return out

    def draw(self, u64: Any, masses: Any) -> np.ndarray:
        m = np.atleast_2d(np.asarray(masses, np.uint64))
        out = np.empty(len(m), np.int64)
        self.library["draw"](np.broadcast_to(np.asarray(u64, np.uint64), len(m)).copy(), m, out)
        return out

    def philox4x32_10(self, counter: Any, key: Any) -> np.ndarray:
        c, k = np.asarray(counter, np.uint32), np.asarray(key, np.uint32)
        out = np.empty(c.shape, np.uint32)
        self.library["philox4x32_10"](c, k, out)
        return out

    def philox_words(self, seed: Any, position: Any, purpose: int, index: Any) -> np.ndarray:
        s, p, i = np.asarray(seed, np.int64), np.asarray(position, np.int64), np.asarray(index, np.uint32)
        out = np.empty((len(s), 4), np.uint32)
        self.library["philox_words"](s, p, purpose, i, out)
        return out


@pytest.fixture(scope="session")
def native() -> Native:
    return Native(load_library("specdec_common"))
