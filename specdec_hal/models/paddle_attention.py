"""Rotary embeddings, KV caches and attention in Paddle's own operators, slot by slot: for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import _C_ops as ops

from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.layout import RotaryTable, round_up
from specdec_hal.plugin.model import Segment

_STRIDE = 64  # contexts are rounded up to a multiple, for few shapes


class _Piece(NamedTuple):
    segment: Segment
    start: int  # of its rows in the block
    context: int
    mask: Any  # [tokens, 1, 1, context]: 0, or -inf for later positions


class DeviceStore:
    pass


class DeviceAttention:
    """See :class:`specdec_hal.models.attention.Attention`. Tensors are on `place`."""

    def __init__(self, config: LlamaConfig, *, layers: int, slots: int, positions: int, place: Any) -> None:
        self._config, self._layers, self._place = config, layers, place
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

    def begin(self, segments: Sequence[Segment], first: int, rows: int) -> tuple[list[_Piece], Any, int]:
        """See Attention."""
        pieces, positions = [], np.zeros(rows, np.int64)
        for segment in segments:
            start, stop = segment.start - first, segment.position + segment.length
            own = np.arange(segment.position, stop)
            positions[start : start + segment.length] = own
            context = round_up(stop, _STRIDE)
            mask = np.where(np.arange(context) <= own[:, None], np.float32(0), np.float32(-np.inf))
            pieces.append(_Piece(segment, start, context, paddle.Tensor(mask[:, None, None], self._place)))
        return pieces, paddle.Tensor(self._rotary.rows(positions), self._place), rows

    def attend(self, layer: int, qkv: Any, block: tuple[list[_Piece], Any, int]) -> Any:
        """See Attention."""
        pieces, factors, rows = block
        heads, kv_heads, dim = (
            self._config.num_attention_heads,
            self._config.num_key_value_heads,
            self._config.head_dim,
        )
        turned = ops.view_dtype(ops.view_dtype(qkv, paddle.complex64) * factors, paddle.float32)
        parts = []
        for segment, start, context, mask in pieces:
            length, cache, stop = segment.length, self._caches[segment.slot], segment.position + segment.length
            own = turned[start : start + length]
            for half in (0, 1):
                column = (heads + half * kv_heads) * dim
                new = own[:, column : column + kv_heads * dim].reshape([length, kv_heads, dim])
                cache[layer, half, segment.position : stop] = new
            keys, values = (cache[layer, half, :context].transpose([1, 0, 2]) for half in (0, 1))
            query = own[:, : heads * dim].reshape([length, kv_heads, heads // kv_heads, dim])
            scores = paddle.matmul(query, keys, transpose_y=True) + mask
            part = paddle.matmul(paddle.nn.functional.softmax(scores, -1), values)
            parts.append(part.reshape([length, heads * dim]))
        done = sum(part.shape[0] for part in parts)
        if rows > done:
            parts.append(paddle.zeros([rows - done, heads * dim]).to(self._place))
        return paddle.concat(parts, 0)

    def _empty(self, positions: int) -> Any:
        shape = [self._layers, 2, positions, self._config.num_key_value_heads, self._config.head_dim]
        return paddle.zeros(shape, "float32").to(self._place)
