"""Section 12 of the contract: convolutions and recurrences whose state is named by position."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.floats import from_f32, to_f32
from specdec_hal.backends.reference.primitives import dot_sum, exp_f32
from specdec_hal.ops.enums import Activation, Storage

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

_EPSILON = np.float32(1e-6)
_INT32_MAX = 2**31 - 1


def causal_conv1d(
    conv_x: NDArray[Any],
    conv_weight: NDArray[Any],
    conv_bias: NDArray[Any] | None,
    cu_seqlens_q: I32,
    seq_lens_decoder: I32,
    conv_ring: NDArray[Any],
    conv_out: NDArray[Any],
    activation: Activation,
) -> None:
    """Convolve each slot's rows with the inputs of earlier positions."""
    weight, taps, ring = to_f32(conv_weight), conv_weight.shape[1], conv_ring.shape[1]
    conv_out[:] = 0
    for b, first, stop, start in _slots(cu_seqlens_q, seq_lens_decoder, len(conv_x)):

        def at(j: int, b: int = b, first: int = first, start: int = start) -> F32:
            if j < 0:
                return np.zeros(len(weight), np.float32)
            return to_f32(conv_x[first + j - start] if j >= start else conv_ring[b, j % ring])

        for j in range(start, start + stop - first):
            total = np.zeros(len(weight), np.float32) if conv_bias is None else to_f32(conv_bias).copy()
            with np.errstate(all="ignore"):
                for i in range(taps):
                    total = total + weight[:, i] * at(j - taps + 1 + i)
                if activation is Activation.SILU:
                    total = total / (np.float32(1) + exp_f32(-total))
            conv_out[first + j - start] = from_f32(total, conv_out.dtype)
        for row in range(first, stop):
            conv_ring[b, (start + row - first) % ring] = conv_x[row]


def gated_delta_rule(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    decay: F32,
    beta: F32,
    cu_seqlens_q: I32,
    seq_lens_decoder: I32,
    states: F32 | None,
    core_out: NDArray[Any],
    checkpoint_lens: I32 | None,
    checkpoint: F32 | None,
    replay_k: F32 | None,
    replay_u: F32 | None,
    replay_decay: F32 | None,
    qk_l2norm: bool,
    decay_per_channel: bool,
    storage: Storage,
) -> None:
    """Each token decays the state, corrects what it holds under the token's key, and reads it by its query."""
    kept = _kept(states, checkpoint_lens, checkpoint, replay_k, replay_u, replay_decay)
    scale = np.float32(1) / np.sqrt(np.float32(q.shape[2]))
    core_out[:] = 0
    for b, first, stop, start in _slots(cu_seqlens_q, seq_lens_decoder, len(core_out)):
        state = kept.before(b, start, stop - first)
        for row in range(first, stop):
            with np.errstate(all="ignore"):
                query, keys = to_f32(q[row]), to_f32(k[row])
                if qk_l2norm:
                    query, keys = _l2norm(query), _l2norm(keys)
                query, key = (_of_value_heads(x, v.shape[1]) for x in (query, keys))
                query = query * scale
                state = _decayed(state, decay[row])
                held = _dot(state, key)
                change = beta[row][:, None] * (to_f32(v[row]) - held)
                state = _updated(state, key, change)
                core_out[row] = from_f32(_dot(state, query), core_out.dtype)
            kept.after(b, start + row - first, state, keys, change, decay[row])


def mamba2_step(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    decay: F32,
    dt: F32,
    skip: F32 | None,
    cu_seqlens_q: I32,
    seq_lens_decoder: I32,
    states: F32 | None,
    core_out: NDArray[Any],
    checkpoint_lens: I32 | None,
    checkpoint: F32 | None,
    replay_k: F32 | None,
    replay_u: F32 | None,
    replay_decay: F32 | None,
    storage: Storage,
) -> None:
    """Each token decays the state, adds its value under its key, and reads the state by its query."""
    kept = _kept(states, checkpoint_lens, checkpoint, replay_k, replay_u, replay_decay)
    core_out[:] = 0
    for b, first, stop, start in _slots(cu_seqlens_q, seq_lens_decoder, len(core_out)):
        state = kept.before(b, start, stop - first)
        for row in range(first, stop):
            with np.errstate(all="ignore"):
                keys = to_f32(k[row])
                query, key = (_of_value_heads(x, v.shape[1]) for x in (to_f32(q[row]), keys))
                value = to_f32(v[row])
                change = dt[row][:, None] * value
                state = _updated(_decayed(state, decay[row]), key, change)
                out = _dot(state, query)
                if skip is not None:
                    out = out + skip[:, None] * value
                core_out[row] = from_f32(out, core_out.dtype)
            kept.after(b, start + row - first, state, keys, change, decay[row])


def advance_checkpoints(
    cu_seqlens_q: I32, seq_lens_decoder: I32, checkpoint_lens: I32, ring: int, num_rows: int
) -> None:
    """Move the positions of checkpoints."""
    for b, first, stop, start in _slots(cu_seqlens_q, seq_lens_decoder, num_rows):
        _, moved = _checkpoint_moves(int(checkpoint_lens[b]), start, stop - first, ring)
        checkpoint_lens[b] = min(moved, _INT32_MAX)


class _States:
    """A state for each position of a ring."""

    def __init__(self, states: F32) -> None:
        self.states = states

    def before(self, b: int, start: int, count: int) -> F32:
        """The state before position `start` of slot b."""
        states = self.states[b]
        return states[(start - 1) % len(states)] if start > 0 else np.zeros_like(states[0])

    def after(self, b: int, j: int, state: F32, keys: F32, change: F32, decay: F32) -> None:
        """Keep the state after position j."""
        self.states[b, j % self.states.shape[1]] = state


class _Replay:
    """A checkpoint, and the keys, updates and decays of later positions."""

    def __init__(self, lens: I32, checkpoint: F32, keys: F32, changes: F32, decays: F32) -> None:
        self.lens, self.checkpoint, self.rings = lens, checkpoint, (keys, changes, decays)
        self.at = self.to = 0  # the position of the slot's checkpoint, and where it moves

    def before(self, b: int, start: int, count: int) -> F32:
        """The state before position `start` of slot b; moves the checkpoint there if the step needs its entries."""
        ring = self.rings[0].shape[1]
        self.at, self.to = _checkpoint_moves(int(self.lens[b]), start, count, ring)
        state: F32 = self.checkpoint[b].copy() if self.at > 0 else np.zeros_like(self.checkpoint[b])
        for j in range(self.at, start):
            keys, change, decay = (x[b, j % ring] for x in self.rings)
            key = _of_value_heads(keys, len(change))
            with np.errstate(all="ignore"):
                state = _updated(_decayed(state, decay), key, change)
        if self.to == start > self.at:
            self.checkpoint[b] = state
        return state

    def after(self, b: int, j: int, state: F32, keys: F32, change: F32, decay: F32) -> None:
        """Keep what makes the state after position j."""
        if self.to <= j:
            for ring, value in zip(self.rings, (keys, change, decay), strict=True):
                ring[b, j % ring.shape[1]] = value
        elif self.to == j + 1:
            self.checkpoint[b] = state


def _kept(states: F32 | None, *replayed: Any) -> _States | _Replay:
    return _Replay(*replayed) if states is None else _States(states)


def _checkpoint_moves(known: int, start: int, count: int, ring: int) -> tuple[int, int]:
    """Position of a slot's checkpoint before and after a step of `count` rows."""
    half = ring // 2
    at = min(max(known, start - half, 0), start)
    if count > half:
        return at, start + count
    return at, start if start + count - at > half else at


def _decayed(state: F32, decay: F32) -> F32:
    """[H_v, D_k, D_v]; decay [H_v] or [H_v, D_k]."""
    return decay.reshape(len(decay), -1, 1) * state


def _updated(state: F32, key: F32, change: F32) -> F32:
    return state + key[:, :, None] * change[:, None]


def _slots(cu_seqlens_q: I32, seq_lens_decoder: I32, rows: int) -> Iterator[tuple[int, int, int, int]]:
    """(slot, first row, row after the last, position of the first) of slots with rows."""
    ends = np.maximum.accumulate(cu_seqlens_q.clip(0, rows)).tolist()
    for b, (first, stop) in enumerate(pairwise(ends)):
        if first < stop:
            yield b, first, stop, max(int(seq_lens_decoder[b]), 0)


def _of_value_heads(x: F32, heads: int) -> F32:
    """[H_v, D_k] of keys or queries [H_k, D_k]."""
    shared: F32 = x[np.arange(heads) * len(x) // heads]
    return shared


def _l2norm(x: F32) -> F32:
    """Rows [H, D_k] divided by their length."""
    factor: F32 = np.float32(1) / np.sqrt(_dot(x[:, :, None], x) + _EPSILON)
    return x * factor


def _dot(matrix: F32, vector: F32) -> F32:
    """[H, D_v]: the sum over D_k of matrix [H, D_k, D_v] times vector [H, D_k], in the contract's order."""
    return dot_sum(np.moveaxis(matrix * vector[:, :, None], 1, -1))
