"""Rotary embeddings, KV caches and attention in Paddle's own operators: for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
from paddle import _C_ops as ops
from paddle.nn.functional.flash_attention import flash_attn_unpadded

from specdec_hal.models.attention import Layer
from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.layout import RotaryTable, round_up
from specdec_hal.plugin.model import Segment

FLASH = (paddle.float16, paddle.bfloat16)
"""Dtypes of Paddle's flash attention."""
_STRIDE = 64  # contexts are rounded up to a multiple, for few shapes


class SlotCaches:
    """Keys and values of layers of `kv_heads` and `head_dim`, by slot: [layers, 2, positions, kv_heads, head_dim] on
    `place`. A slot's room grows by doubling."""

    def __init__(
        self, kv_heads: int, head_dim: int, *, layers: int, slots: int, positions: int, place: Any, dtype: Any
    ) -> None:
        self._shape, self._layers, self._place, self._dtype = [kv_heads, head_dim], layers, place, dtype
        self._limit = round_up(positions, _STRIDE)
        self._caches = [self._empty(0)] * slots

    def reserve(self, slot: int, positions: int) -> None:
        """See Attention."""
        old = self._caches[slot]
        if positions <= old.shape[2]:
            return
        size = min(max(round_up(positions, _STRIDE), 2 * old.shape[2]), self._limit)
        self._caches[slot] = paddle.concat([old, self._empty(size - old.shape[2])], 2)

    def write(self, layer: int, slot: int, position: int, *rows: Any) -> None:
        """Keep keys and values [T, kv_heads, head_dim] from a position on."""
        for half, new in enumerate(rows):
            self._caches[slot][layer, half, position : position + len(new)] = new

    def read(self, layer: int, slot: int, context: int) -> tuple[Any, Any]:
        """Keys and values [context, kv_heads, head_dim]."""
        cache = self._caches[slot]
        return cache[layer, 0, :context], cache[layer, 1, :context]

    def attend(self, layer: Layer, index: int, segment: Segment, query: Any, sinks: Any | None = None) -> Any:
        """Attention [T, heads, head_dim] of a segment's positions, which are there already; sums are float32."""
        rows, first, group = len(query), segment.position, layer.heads // layer.kv_heads
        context = round_up(first + rows, _STRIDE)
        kept = self.read(index, segment.slot, context)
        keys, values = (x.astype("float32").transpose([1, 0, 2]).unsqueeze(1) for x in kept)
        grouped = query.astype("float32").reshape([rows, layer.kv_heads, group, -1]).transpose([1, 2, 0, 3])
        scores = paddle.matmul(grouped, keys, transpose_y=True) * layer.scale  # [kv_heads, group, rows, context]
        if layer.softcap:
            scores = layer.softcap * paddle.tanh(scores / layer.softcap)
        at, positions = np.arange(context), np.arange(first, first + rows)[:, None]
        seen = (at <= positions) & (at > positions - (layer.window or context))
        scores = scores + paddle.Tensor(np.where(seen, np.float32(0), np.float32(-np.inf)), self._place)
        if sinks is not None:
            sink = sinks.astype("float32").reshape([layer.kv_heads, group, 1, 1]).expand([-1, -1, rows, 1])
            scores = paddle.concat([scores, sink], -1)
        weights = paddle.nn.functional.softmax(scores, -1)[..., :context]
        out = paddle.matmul(weights, values).transpose([2, 0, 1, 3])
        return out.reshape([rows, layer.heads, -1]).astype(query.dtype)

    def _empty(self, positions: int) -> Any:
        return paddle.zeros([self._layers, 2, positions, *self._shape], self._dtype).to(self._place)


class DeviceStore:
    """Keys and values of all slots for layers of any shape, in the interface of
    :class:`~specdec_hal.models.attention.HostStore`.

    In float16 and bfloat16 Paddle's `flash_attn_unpadded` computes all slots of a step at once; in float32, and for
    windows, soft caps and sinks, which it does not have, Paddle's operators compute one slot after the other.
    """

    def __init__(self, layers: Sequence[Layer], slots: int, positions: int, place: Any, dtype: Any) -> None:
        self._place, self._flash = place, dtype in FLASH
        self._caches = [
            SlotCaches(
                layer.kv_heads, layer.head_dim, layers=1, slots=slots, positions=positions, place=place, dtype=dtype
            )
            for layer in layers
        ]
        self._step: tuple[list[Segment], list[int], Any, Any] = [], [], None, None

    def reserve(self, slot: int, positions: int) -> None:
        """See HostStore."""
        for caches in self._caches:
            caches.reserve(slot, positions)

    def begin(self, segments: Sequence[Segment], first: int, rows: int) -> None:
        """See HostStore."""
        starts = [segment.start - first for segment in segments]
        lengths = [segment.length for segment in segments], [segment.position + segment.length for segment in segments]
        ends = (paddle.Tensor(np.cumsum([0, *each], dtype=np.int32), self._place) for each in lengths)
        self._step = [*segments], starts, *ends

    def attend(self, layer: Layer, query: Any, key: Any, value: Any, sinks: Any | None) -> Any:
        """See Store.attend in :mod:`.transformers.interface`."""
        segments, starts, rows_to, keys_to = self._step
        caches, narrower = self._caches[layer.index], layer.head_dim - layer.value_dim
        if narrower:
            value = paddle.nn.functional.pad(value, [0, narrower], data_format="NCL")
        for segment, start in zip(segments, starts, strict=True):
            own = slice(start, start + segment.length)
            caches.write(0, segment.slot, segment.position, key[own], value[own])
        done = starts[-1] + segments[-1].length
        if self._flash and not (layer.window or layer.softcap or sinks is not None):
            stops = [one.position + one.length for one in segments]
            contexts = [caches.read(0, one.slot, stop) for one, stop in zip(segments, stops, strict=True)]
            keys, values = (paddle.concat([context[half] for context in contexts], 0) for half in (0, 1))
            longest = max(one.length for one in segments), max(stops)
            out, _ = flash_attn_unpadded(
                query[:done].contiguous(), keys, values, rows_to, keys_to, *longest, layer.scale, causal=True,
                training=False,
            )  # fmt: skip
        else:
            parts = [
                caches.attend(layer, 0, segment, query[start : start + segment.length], sinks)
                for segment, start in zip(segments, starts, strict=True)
            ]
            out = paddle.concat(parts, 0)
        if len(query) > done:
            out = paddle.concat([out, paddle.zeros_like(query[done:])], 0)
        return out[..., : layer.value_dim] if narrower else out


class DeviceAttention:
    """See :class:`specdec_hal.models.attention.Attention`. Tensors are on `place`."""

    def __init__(self, config: LlamaConfig, *, layers: int, slots: int, positions: int, place: Any) -> None:
        self._config, self._place = config, place
        self._layer = Layer(
            index=0, heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, head_dim=config.head_dim,
            value_dim=config.head_dim, scale=1.0,
        )  # fmt: skip
        self._rotary = RotaryTable(config, round_up(positions, _STRIDE))
        self._caches = SlotCaches(
            config.num_key_value_heads, config.head_dim, layers=layers, slots=slots, positions=positions, place=place,
            dtype="float32",
        )  # fmt: skip
        self.reserve = self._caches.reserve

    def begin(self, segments: Sequence[Segment], first: int, rows: int) -> tuple[Sequence[Segment], int, Any, int]:
        """See Attention."""
        positions = np.zeros(rows, np.int64)
        for segment in segments:
            start = segment.start - first
            positions[start : start + segment.length] = range(segment.position, segment.position + segment.length)
        return segments, first, paddle.Tensor(self._rotary.rows(positions), self._place), rows

    def attend(self, layer: int, qkv: Any, block: tuple[Sequence[Segment], int, Any, int]) -> Any:
        """See Attention."""
        segments, first, factors, rows = block
        heads, kv_heads, dim = self._layer.heads, self._layer.kv_heads, self._layer.head_dim
        turned = ops.view_dtype(ops.view_dtype(qkv, paddle.complex64) * factors, paddle.float32)
        parts = []
        for segment in segments:
            own = turned[segment.start - first : segment.start - first + segment.length]
            own = own[:, : (heads + 2 * kv_heads) * dim].reshape([segment.length, -1, dim])
            query, key, value = own[:, :heads], own[:, heads : heads + kv_heads], own[:, heads + kv_heads :]
            self._caches.write(layer, segment.slot, segment.position, key, value)
            parts.append(self._caches.attend(self._layer, layer, segment, query).flatten(1))
        done = sum(part.shape[0] for part in parts)
        if rows > done:
            parts.append(paddle.zeros([rows - done, heads * dim]).to(self._place))
        return paddle.concat(parts, 0)
