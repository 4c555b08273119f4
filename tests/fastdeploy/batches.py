"""Random batches in FastDeploy's terms, and the way to Paddle tensors and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

Array = NDArray[Any]


def tensor(array: Array) -> Any:
    """A Paddle tensor with the array's values in memory of its own."""
    return paddle.to_tensor(np.array(array, order="C"))  # a contiguous array of no dimension keeps none


def tensors(*arrays: Array | None) -> list[Any]:
    return [None if array is None else tensor(array) for array in arrays]


def values(tensor: Any) -> Array:
    array: Array = tensor.numpy()
    return array


def equal(given: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(values(given), np.asarray(wanted))


class Batch:
    """Slots of a step: prompts being fed, texts being continued, slots without a request."""

    def __init__(self, rng: np.random.Generator, *, slots: int | None = None, width: int | None = None) -> None:
        self.rng = rng
        n = self.slots = int(rng.integers(1, 9)) if slots is None else slots
        s = self.width = int(rng.integers(1, 7)) if width is None else width
        self.chunk, self.vocabulary = 12, int(rng.choice([3, 5, 40]))
        kind = rng.choice(["prefill", "decode", "decode", "idle"], n)
        prefill, decode = kind == "prefill", kind == "decode"
        self.enc = np.where(prefill, rng.integers(1, self.chunk + 1, n), 0).astype(np.int32)
        self.dec = np.where(decode, rng.integers(1, 30, n), prefill * rng.integers(0, 3, n)).astype(np.int32)
        self.slt = np.where(decode, rng.integers(1, s + 1, n), self.enc).astype(np.int32)
        self.stop = (kind == "idle") | (rng.random(n) < 0.1)
        self.paused = rng.random(n) < 0.1
        self.input_ids = rng.integers(0, self.vocabulary, (n, self.chunk))
        self.drafts = rng.integers(0, self.vocabulary, (n, s))
        self.ends = rng.integers(0, self.vocabulary, 2)
        self.rows_per_slot = [0 if t == 0 else 1 if e else int(t) for t, e in zip(self.slt, self.enc, strict=True)]
        self.cu_out = np.concatenate([[0], np.cumsum(self.rows_per_slot)]).astype(np.int32)
        self.cu_q = np.concatenate([[0], np.cumsum(self.slt)]).astype(np.int32)
        self.rows, self.tokens = int(self.cu_out[-1]), int(self.cu_q[-1])
        self.row_slots = np.repeat(np.arange(n, dtype=np.int32), self.rows_per_slot)
        self.prompt = rng.integers(1, 12, n)
        self.step = rng.integers(0, 12, n)
        self.limit = self.step + rng.integers(1, 12, n)
        self.text = rng.integers(0, self.vocabulary, (n, 64))

    def targets(self) -> Array:
        """A token per row, which often is the draft that the row verifies."""
        tokens = self.rng.integers(0, self.vocabulary, max(self.rows, 1))
        for r, b in enumerate(self.row_slots):
            i = r - self.cu_out[b]
            if i + 1 < self.width and self.rng.random() < 0.7:
                tokens[r] = self.drafts[b, i + 1]
        return tokens
