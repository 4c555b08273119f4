"""Rotary embeddings, KV caches and attention in Paddle's own operators: for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
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


class PagedStore:
    """Keys and values in a pool of blocks, for layers of any shape: [2, (num_blocks + 1) * block_size, kv_heads,
    head_dim] of each. The last block takes rows without a block.

    In float16 and bfloat16 Paddle's `flash_attn_unpadded` computes all slots of a step at once; in float32, and for
    windows, soft caps and sinks, which it does not have, Paddle's operators compute one slot after the other.
    """

    def __init__(self, layers: Sequence[Layer], num_blocks: int, block_size: int, place: Any, dtype: Any) -> None:
        self._size, self._dead, self._place, self._flash = block_size, num_blocks, place, dtype in FLASH
        lines = (num_blocks + 1) * block_size
        shapes = [[2, lines, layer.kv_heads, layer.head_dim] for layer in layers]
        self.pool = [paddle.zeros(shape, dtype).to(place) for shape in shapes]
        self._segments: Sequence[Segment] = ()

    def begin(self, segments: Sequence[Segment], block_tables: npt.NDArray[np.int32]) -> None:
        """Begin a step of segments that tile its rows. `block_tables` [M, G]: the blocks of each slot."""
        seen = [self._lines(block_tables[one.slot], one.position + one.length) for one in segments]
        written = [lines[one.position :] for one, lines in zip(segments, seen, strict=True)]
        ends = [np.cumsum([0, *map(len, each)]).astype(np.int32) for each in (written, seen)]
        self._segments, self._written = segments, self._upload(np.concatenate(written))
        self._seen, self._every = [*map(self._upload, seen)], self._upload(np.concatenate(seen))
        self._ends = [*map(self._upload, ends)]

    def _lines(self, blocks: npt.NDArray[np.int32], context: int) -> npt.NDArray[np.int64]:
        """The lines of a slot's positions."""
        positions = np.arange(context)
        inside = positions < len(blocks) * self._size
        block = np.where(inside, blocks[np.where(inside, positions // self._size, 0)], self._dead)
        block = np.where((block >= 0) & (block < self._dead), block, self._dead)
        return block.astype(np.int64) * self._size + positions % self._size

    def _upload(self, array: npt.NDArray[Any]) -> Any:
        return paddle.Tensor(array, self._place)

    def attend(self, layer: Layer, query: Any, key: Any, value: Any, sinks: Any | None) -> Any:
        """See Store.attend in :mod:`.transformers.interface`."""
        pool, narrower = self.pool[layer.index], layer.head_dim - layer.value_dim
        if narrower:
            value = paddle.nn.functional.pad(value, [0, narrower], data_format="NCL")
        for half, rows in enumerate((key, value)):
            pool[half] = paddle.scatter(pool[half], self._written, rows.astype(pool.dtype))
        if self._flash and not (layer.window or layer.softcap or sinks is not None):
            keys, values = (paddle.gather(pool[half], self._every) for half in (0, 1))
            longest = max(one.length for one in self._segments), max(map(len, self._seen))
            out, _ = flash_attn_unpadded(
                query.contiguous(), keys, values, *self._ends, *longest, layer.scale, causal=True, training=False
            )
        else:
            parts = []
            for one, lines in zip(self._segments, self._seen, strict=True):
                keys, values = (paddle.gather(pool[half], lines) for half in (0, 1))
                rows = query[one.start : one.start + one.length]
                parts.append(attention(layer, rows, keys, values, one.position, sinks))
            out = paddle.concat(parts, 0)
        return out[..., : layer.value_dim] if narrower else out


def attention(layer: Layer, query: Any, keys: Any, values: Any, first: int, sinks: Any | None = None) -> Any:
    """Attention [T, heads, head_dim] of a slot's positions from `first` on to its keys and values [context, kv_heads,
    head_dim], later ones not seen. Sums are float32."""
    rows, context, group = len(query), len(keys), layer.heads // layer.kv_heads
    keys, values = (x.astype("float32").transpose([1, 0, 2]).unsqueeze(1) for x in (keys, values))
    grouped = query.astype("float32").reshape([rows, layer.kv_heads, group, -1]).transpose([1, 2, 0, 3])
    scores = paddle.matmul(grouped, keys, transpose_y=True) * layer.scale  # [kv_heads, group, rows, context]
    if layer.softcap:
        scores = layer.softcap * paddle.tanh(scores / layer.softcap)
    at, positions = np.arange(context), np.arange(first, first + rows)[:, None]
    seen = (at <= positions) & (at > positions - (layer.window or context))
    scores = scores + paddle.Tensor(np.where(seen, np.float32(0), np.float32(-np.inf)), query.place)
    if sinks is not None:
        sink = sinks.astype("float32").reshape([layer.kv_heads, group, 1, 1]).expand([-1, -1, rows, 1])
        scores = paddle.concat([scores, sink], -1)
    weights = paddle.nn.functional.softmax(scores, -1)[..., :context]
    out = paddle.matmul(weights, values).transpose([2, 0, 1, 3])
    return out.reshape([rows, layer.heads, -1]).astype(query.dtype)


class DeviceAttention:
    """See :class:`specdec_hal.models.attention.Attention`. Tensors are on `place`."""

    def __init__(self, config: LlamaConfig, *, layers: int, slots: int, positions: int, place: Any) -> None:
        self._layers, self._place = layers, place
        self._layer = Layer(
            index=0, heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, head_dim=config.head_dim,
            value_dim=config.head_dim, scale=1.0,
        )  # fmt: skip
        self._limit = round_up(positions, _STRIDE)
        self._rotary = RotaryTable(config, self._limit)
        self._caches = [self._empty(0)] * slots  # [layers, 2, positions, kv_heads, head_dim]

    def reserve(self, slot: int, positions: int) -> None:
        """See Attention. A slot's room grows by doubling."""
        old = self._caches[slot]
        if positions <= old.shape[2]:
            return
        size = min(max(round_up(positions, _STRIDE), 2 * old.shape[2]), self._limit)
        self._caches[slot] = paddle.concat([old, self._empty(size - old.shape[2])], 2)

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
            start, stop = segment.start - first, segment.position + segment.length
            cache, context = self._caches[segment.slot], round_up(stop, _STRIDE)
            own = turned[start : start + segment.length, : (heads + 2 * kv_heads) * dim]
            own = own.reshape([segment.length, heads + 2 * kv_heads, dim])
            for half in (0, 1):
                column = heads + half * kv_heads
                cache[layer, half, segment.position : stop] = own[:, column : column + kv_heads]
            keys, values = (cache[layer, half, :context] for half in (0, 1))
            parts.append(attention(self._layer, own[:, :heads], keys, values, segment.position).flatten(1))
        done = sum(part.shape[0] for part in parts)
        if rows > done:
            parts.append(paddle.zeros([rows - done, heads * dim]).to(self._place))
        return paddle.concat(parts, 0)

    def _empty(self, positions: int) -> Any:
        shape = [self._layers, 2, positions, self._layer.kv_heads, self._layer.head_dim]
        return paddle.zeros(shape, "float32").to(self._place)
