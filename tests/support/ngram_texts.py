"""Texts for n-gram look-up, and the index of their requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec_hal.ops import MatchPolicy
from specdec_hal_conformance.building import build

HISTORY = ("token_ids_all", "prompt_lens", "step_idx", "seq_lens_encoder", "seq_lens_decoder")

TEXTS = {
    "two letters": lambda rng, n: rng.integers(0, 2, n),
    "all equal": lambda rng, n: np.full(n, 7),
    "periodic": lambda rng, n: np.resize(rng.integers(0, 9, int(rng.integers(1, 6))), n),
    "twice": lambda rng, n: np.resize(rng.integers(0, 1000, (n + 1) // 2), n),
    "wide ids": lambda rng, n: rng.integers(0, 3, n) * (1 << 40) - 5,
    "all different": lambda rng, n: rng.permutation(n),
}


def scene(m: int, length: int, s: int, sizes: dict[str, int], **state: Any) -> dict[str, Any]:
    """Slots for look-ups without a limit."""
    return build(
        "ngram_match", {"M": m, "L": length, "S": s, "B": m}, draft_token_num=[s - 1] * m, **sizes, **state,
        token_budget=10**9, match_policy=MatchPolicy.LATEST,
    )  # fmt: skip


def come_grow_and_leave(rng: np.random.Generator, text: Any, state: dict[str, Any]) -> np.ndarray:
    """A step of a scene's requests: an idle one, or one with accepted tokens. Gives the slots of new requests."""
    (m, length), s = state["token_ids_all"].shape, state["draft_tokens"].shape[1]
    leaving = (state["prompt_lens"] + state["step_idx"] >= length) | (rng.random(m) < 0.1)
    leaving |= state["seq_lens_decoder"] == 0
    for b in range(m):
        if leaving[b]:
            state["token_ids_all"][b] = text(rng, length)
            state["prompt_lens"][b] = rng.integers(1, length)
            state["step_idx"][b] = 1
        else:
            state["step_idx"][b] += rng.integers(0, s + 1)
        state["seq_lens_decoder"][b] = min(state["prompt_lens"][b] + state["step_idx"][b] - 1, length)
    state["draft_tokens"][:] = text(rng, m * s).reshape(m, s)
    state["seq_lens_this_time"][:] = rng.integers(1, s + 1, m)
    return leaving


@dataclass(frozen=True)
class Indexing:
    """The ops of an index on a backend. `run`: an op's outputs."""

    backend: Any
    run: Callable[[str, dict[str, Any]], dict[str, np.ndarray]]
    sizes: dict[str, int]

    def fresh(self, m: int, length: int) -> np.ndarray:
        layout = self.backend.workspace("ngram_match", M=m, L=length, **self.sizes)["index"]
        return self.reset(np.full(layout.shape, 0xA5, layout.dtype), np.ones(m, np.bool_))

    def reset(self, index: np.ndarray, slots: np.ndarray) -> np.ndarray:
        return self.run("ngram_index_reset", {"index": index, "reset_slots": slots})["index"]

    def updated(self, index: np.ndarray, state: dict[str, Any]) -> np.ndarray:
        call = {"index": index, **{name: state[name] for name in HISTORY}, **self.sizes}
        return self.run("ngram_index_update", call)["index"]
