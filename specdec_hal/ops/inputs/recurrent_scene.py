"""A :class:`~.phase_scene.PhaseScene` whose model has recurrent layers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from specdec_hal.ops.inputs.phase_scene import PhaseScene
from specdec_hal.ops.inputs.rows import to_logits
from specdec_hal.ops.inputs.scene import Array, pick


class RecurrentScene(PhaseScene):
    """What a step does not read of states and inputs is often NaN, as are those of requests at position 0."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        rng, size = self.rng("recurrent sizes"), self.size
        size.setdefault("Taps", pick(rng, 1, 2, 3, *[min(4, size.get("R", 4))] * 4) if size.get("R", 4) > 3 else 1)
        least = size["Taps"] + size["S"] - 1
        size.setdefault("R", max(pick(rng, least, least, least, least + 1, 2 * least, size["Taps"]), size["Taps"]))
        size.setdefault("H_k", int(rng.integers(1, min(size.get("H_v", 3), 3) + 1)))
        size.setdefault("H_v", size["H_k"] * pick(rng, 1, 1, 2, 3) + pick(rng, 0, 0, 0, 1))
        size.setdefault("D_k", pick(rng, 1, 2, 7, 8, 9, 16, 23))
        size.setdefault("D_v", pick(rng, 1, 2, 4, 5, 8, 16, 17))

    def _drawn(self, name: str, *shape: str) -> Array:
        return self.rng(name).normal(size=[self.size[symbol] for symbol in shape])

    def _of_model(self, name: str, *shape: str) -> Array:
        return to_logits(self._drawn(name, *shape), self.dtype)

    def _by_position(self, name: str, ring: Array, earlier: int) -> Array:
        """NaN in entries that are not of the `earlier` positions before the step's first one, in some slots."""
        rng, positions = self.rng(f"{name} unread"), self.seq_lens_decoder
        for b in np.flatnonzero(rng.random(len(ring)) < 0.7):
            first = int(positions[b])
            read = [j % ring.shape[1] for j in range(max(first - earlier, 0), max(first, 0))]
            ring[b, np.setdiff1d(np.arange(ring.shape[1]), read)] = np.nan
        return ring

    # Convolution

    @cached_property
    def conv_x(self) -> Array:
        """[T_cap, D]."""
        return self._of_model("conv_x", "T_cap", "D")

    @cached_property
    def conv_weight(self) -> Array:
        """[D, Taps]."""
        return self._of_model("conv_weight", "D", "Taps")

    @cached_property
    def conv_bias(self) -> Array:
        """[D]."""
        return self._of_model("conv_bias", "D")

    @cached_property
    def conv_ring(self) -> Array:
        """[M, R, D]."""
        ring = self._drawn("conv_ring", "M", "R", "D")
        return to_logits(self._by_position("conv_ring", ring, self.size["Taps"] - 1), self.dtype)

    # Recurrence

    @cached_property
    def q(self) -> Array:
        """[T_cap, H_k, D_k]."""
        return self._of_model("q", "T_cap", "H_k", "D_k")

    @cached_property
    def k(self) -> Array:
        """[T_cap, H_k, D_k]; some are 0."""
        keys = self._drawn("k", "T_cap", "H_k", "D_k")
        keys[self.rng("zero keys").random(keys.shape[:2]) < 0.1] = 0
        return to_logits(keys, self.dtype)

    @cached_property
    def v(self) -> Array:
        """[T_cap, H_v, D_v]."""
        return self._of_model("v", "T_cap", "H_v", "D_v")

    @cached_property
    def decay(self) -> Array:
        """[T_cap, H_v, D_k], or without the last axis: mostly near 1, some 0 or 1."""
        rng = self.rng("decay")
        decay = np.exp(-np.abs(self._drawn("decay exponents", "T_cap", "H_v", "D_k")) * rng.choice([0.01, 0.3, 3]))
        decay[rng.random(decay.shape) < 0.05] = rng.choice([0.0, 1.0])
        return np.array(decay, np.float32)

    @cached_property
    def beta(self) -> Array:
        """[T_cap, H_v]: in [0, 1]."""
        return self.rng("beta").random([self.size["T_cap"], self.size["H_v"]]).astype(np.float32)

    @cached_property
    def dt(self) -> Array:
        """[T_cap, H_v]: positive."""
        return np.exp(self._drawn("dt", "T_cap", "H_v")).astype(np.float32)

    @cached_property
    def skip(self) -> Array:
        """[H_v]."""
        return self._drawn("skip", "H_v").astype(np.float32)

    @cached_property
    def checkpoint_lens(self) -> Array:
        """[M]: the position of the step, or earlier."""
        rng, ring = self.rng("checkpoint_lens"), self.size["R"]
        distance = rng.choice([0, 0, 1, 2, ring // 2 - 1, ring // 2, ring], self.size["M"])
        return np.array((self.seq_lens_decoder.astype(np.int64) - distance).clip(0), np.int32)

    @cached_property
    def checkpoint(self) -> Array:
        """[M, H_v, D_k, D_v]: of NaN at position 0."""
        states = self._drawn("checkpoint", "M", "H_v", "D_k", "D_v")
        states[np.minimum(self.checkpoint_lens, self.seq_lens_decoder) <= 0] = np.nan
        states[self.seq_lens_decoder > self.size["R"] // 2] = 1.5  # it is read, wherever the checkpoint is
        return states.astype(np.float32)

    @cached_property
    def replay_k(self) -> Array:
        """[M, R, H_k, D_k]."""
        return self._drawn("replay_k", "M", "R", "H_k", "D_k").astype(np.float32)

    @cached_property
    def replay_u(self) -> Array:
        """[M, R, H_v, D_v]."""
        return self._drawn("replay_u", "M", "R", "H_v", "D_v").astype(np.float32)

    @cached_property
    def replay_decay(self) -> Array:
        """[M, R, H_v, D_k], or without the last axis: in [0, 1)."""
        return self.rng("replay_decay").random([self.size[s] for s in ("M", "R", "H_v", "D_k")]).astype(np.float32)

    @cached_property
    def ring(self) -> int:
        """As the sizes have it."""
        return self.size["R"]

    @cached_property
    def num_rows(self) -> int:
        """As the sizes have it."""
        return self.size["T_cap"]

    @cached_property
    def states_by_position(self) -> Array:
        """[M, R, H_v, D_k, D_v]: the operand `states` (those of the slots have that name)."""
        states = self._drawn("states", "M", "R", "H_v", "D_k", "D_v")
        return self._by_position("states", states, 1).astype(np.float32)
