"""Recurrent layers in the shapes of Qwen3.5-4B (gated delta rule) and of a Mamba-2 hybrid of 4 B, a layer each.

Peers are kernels in Triton of both storages on an H100.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from specdec_hal.bench.case import Case, OpCall, WarmCold, alone
from specdec_hal.ops.enums import Activation, Storage

TOKENS = (1, 4, 8)
"""Of each slot in a step: drafts and one."""
PROMPTS = (512, 2048, 8192)
"""Of one slot."""
RING = 9
"""Entries of a ring of states: K = 7 drafts, and two."""
REPLAY_RING, LIVE = 16, 4
"""Entries of a ring of updates, and those since the checkpoint."""
_CHECKED = 64
"""Most rows whose results are compared with the reference, which takes minutes for more."""
_TARGETS = {(64, 1): 65.0, (64, 4): 100.0, (256, 1): 260.0}
_PEERS: Mapping[tuple[int, int], tuple[float, float]] = {
    (1, 1): (3.9, 5.2), (1, 4): (6.7, 7.6), (1, 8): (10.5, 10.6), (8, 1): (14.7, 12.0), (8, 4): (34.4, 22.3),
    (8, 8): (60.8, 31.7), (64, 1): (100.1, 74.6), (64, 4): (265.7, 134.8), (64, 8): (464.9, 189.8),
    (256, 1): (395.7, 283.6),
}  # fmt: skip


def cases(quick: bool) -> Iterator[Case]:
    """The delta rule, Mamba-2 and the convolution by slots and tokens."""
    sizes = [(slots, tokens) for slots in (1, 8, 64, 256) for tokens in TOKENS]
    sizes = [(2, 1), (2, 4), (1, 40)] if quick else [*sizes, *((1, tokens) for tokens in PROMPTS)]
    for slots, tokens in sizes:
        for storage in Storage:
            yield _recurrence("gated_delta_rule", slots, tokens, (16, 32, 128, 128), storage)
            yield _recurrence("mamba2_step", slots, tokens, (8, 112, 128, 64), storage)
        yield _convolution(slots, tokens)


def _steps(slots: int, tokens: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng([seed, 13])
    offsets = np.arange(slots + 1, dtype=np.int32) * tokens
    return {"cu_seqlens_q": offsets, "seq_lens_decoder": rng.integers(LIVE, 1000, slots).astype(np.int32)}


def _recurrence(op: str, slots: int, tokens: int, shape: tuple[int, int, int, int], storage: Storage) -> Case:
    """`shape`: key heads, value heads, and their widths. Replayed are :data:`LIVE` updates."""
    key_heads, heads, key_width, width = shape
    rows, state = slots * tokens, heads * key_width * width * 4
    delta, replays = op == "gated_delta_rule", storage is Storage.REPLAY
    moves = LIVE + tokens > REPLAY_RING // 2

    def call(seed: int) -> OpCall:
        rng = np.random.default_rng([seed, 17])

        def drawn(*extents: int) -> Any:
            return rng.standard_normal(extents, np.float32)

        inputs = {"q": drawn(rows, key_heads, key_width), "k": drawn(rows, key_heads, key_width)}
        inputs |= {"v": drawn(rows, heads, width), "decay": rng.random((rows, heads), np.float32)}
        inputs["beta" if delta else "dt"] = rng.random((rows, heads), np.float32)
        steps = _steps(slots, tokens, seed)
        ring = () if replays else (RING,)
        states = np.zeros((slots, *ring, heads, key_width, width), np.float32)
        if rows <= _CHECKED:
            states += drawn(heads, key_width, width)
        kept: dict[str, Any] = {"states": states}
        if replays:
            recent = slots, REPLAY_RING, heads
            kept = {"checkpoint": states, "checkpoint_lens": steps["seq_lens_decoder"] - np.int32(LIVE)}
            kept |= {"replay_k": drawn(slots, REPLAY_RING, key_heads, key_width), "replay_u": drawn(*recent, width)}
            kept["replay_decay"] = rng.random(recent, np.float32)
        output = {"core_out": np.zeros((rows, heads, width), np.float32), "storage": storage}
        return OpCall(op, inputs | steps | kept | output)

    known: dict[str, Any] = {}
    if delta:
        times = _PEERS.get((slots, tokens))
        peers: dict[str, WarmCold] = {} if times is None else {"Triton, H100": (times[replays], None)}
        known = {"target": (_TARGETS.get((slots, tokens)), None), "peers": peers}
    moved = slots * state * (1 + (moves if replays else min(tokens, RING)))
    if tokens > max(TOKENS):
        moved += 8 * rows * (key_heads * key_width + heads * width)
    name = storage.name.lower()
    params = {"slots": slots, "tokens": tokens, "heads": heads, "state_bytes": state, "storage": name}
    label = f"{op}, {name}, {slots} slots of {tokens} tokens"
    return Case(label, op, alone(call), moved, params=params, checked=rows <= _CHECKED, **known)


def _convolution(slots: int, tokens: int, channels: int = 8192, taps: int = 4) -> Case:
    """Over queries, keys and values."""
    rows, ring = slots * tokens, 16

    def call(seed: int) -> OpCall:
        rng = np.random.default_rng([seed, 19])
        inputs: dict[str, Any] = {
            "conv_x": rng.standard_normal((rows, channels), np.float32),
            "conv_weight": rng.standard_normal((channels, taps), np.float32),
            "conv_ring": rng.standard_normal((slots, ring, channels), np.float32),
            "conv_out": np.zeros((rows, channels), np.float32),
            "activation": Activation.SILU,
        }
        return OpCall("causal_conv1d", inputs | _steps(slots, tokens, seed))

    moved = 4 * channels * (slots * (taps - 1) + 3 * rows)
    params = {"slots": slots, "tokens": tokens, "channels": channels}
    label = f"causal_conv1d, {slots} slots of {tokens} tokens"
    return Case(label, "causal_conv1d", alone(call), moved, params=params)
