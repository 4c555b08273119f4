"""Section 12 of the contract: convolutions and recurrences whose state is named by position."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.floats import from_f32, to_f32
from specdec_hal.backends.reference.primitives import exp_f32
from specdec_hal.ops.enums import Activation

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

_PARTIALS = 8
_EPSILON = np.float32(1e-6)


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
    states: F32,
    core_out: NDArray[Any],
    qk_l2norm: bool,
    decay_per_channel: bool,
) -> None:
    """Each token decays the state, corrects what it holds under the token's key, and reads it by its query."""
    scale = np.float32(1) / np.sqrt(np.float32(q.shape[2]))
    for b, row, before, after in _tokens(cu_seqlens_q, seq_lens_decoder, states, core_out):
        with np.errstate(all="ignore"):
            query, key = (_of_value_heads(to_f32(x[row]), v.shape[1]) for x in (q, k))
            if qk_l2norm:
                query, key = _l2norm(query), _l2norm(key)
            query = query * scale
            rate = decay[row] if decay_per_channel else decay[row][:, None]
            state = rate[:, :, None] * before
            held = _dot(state, key)
            change = beta[row][:, None] * (to_f32(v[row]) - held)
            state = state + key[:, :, None] * change[:, None]
            core_out[row] = from_f32(_dot(state, query), core_out.dtype)
        states[b, after] = state


def mamba2_step(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    decay: F32,
    dt: F32,
    skip: F32 | None,
    cu_seqlens_q: I32,
    seq_lens_decoder: I32,
    states: F32,
    core_out: NDArray[Any],
) -> None:
    """Each token decays the state, adds its value under its key, and reads the state by its query."""
    for b, row, before, after in _tokens(cu_seqlens_q, seq_lens_decoder, states, core_out):
        with np.errstate(all="ignore"):
            query, key = (_of_value_heads(to_f32(x[row]), v.shape[1]) for x in (q, k))
            value = to_f32(v[row])
            state = decay[row][:, None, None] * before
            state = state + key[:, :, None] * (dt[row][:, None] * value)[:, None]
            out = _dot(state, query)
            if skip is not None:
                out = out + skip[:, None] * value
            core_out[row] = from_f32(out, core_out.dtype)
        states[b, after] = state


def _slots(cu_seqlens_q: I32, seq_lens_decoder: I32, rows: int) -> Iterator[tuple[int, int, int, int]]:
    """(slot, first row, row after the last, position of the first) of slots with rows."""
    ends = np.maximum.accumulate(cu_seqlens_q.clip(0, rows)).tolist()
    for b, (first, stop) in enumerate(pairwise(ends)):
        if first < stop:
            yield b, first, stop, max(int(seq_lens_decoder[b]), 0)


def _tokens(
    cu_seqlens_q: I32, seq_lens_decoder: I32, states: F32, core_out: NDArray[Any]
) -> Iterator[tuple[int, int, F32, int]]:
    """(slot, row, state before the token [H_v, D_k, D_v], entry of the state after it) of every token, in order."""
    ring = states.shape[1]
    core_out[:] = 0
    for b, first, stop, start in _slots(cu_seqlens_q, seq_lens_decoder, len(core_out)):
        for row in range(first, stop):
            j = start + row - first
            yield b, row, states[b, (j - 1) % ring] if j > 0 else np.zeros_like(states[b, 0]), j % ring


def _of_value_heads(x: F32, heads: int) -> F32:
    """[H_v, D_k] of keys or queries [H_k, D_k]."""
    return x[np.arange(heads) * len(x) // heads]


def _l2norm(x: F32) -> F32:
    """Rows [H, D_k] divided by their length."""
    return x * (np.float32(1) / np.sqrt(_dot(x[:, :, None], x) + _EPSILON))


def _dot(matrix: F32, vector: F32) -> F32:
    """[H, D_v]: the sum over D_k of matrix [H, D_k, D_v] times vector [H, D_k], in the contract's order."""
    products = matrix * vector[:, :, None]
    sums = np.zeros((len(products), _PARTIALS, products.shape[2]), np.float32)
    for i in range(0, products.shape[1], _PARTIALS):
        part = products[:, i : i + _PARTIALS]
        sums[:, : part.shape[1]] += part
    for half in (4, 2, 1):
        sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]
