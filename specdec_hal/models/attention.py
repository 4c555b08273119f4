"""Rotary embeddings, KV caches and attention on CPUs: one call of the native library a layer, for all slots of a step.

Frameworks need a call per slot, or compute bits that depend on other slots and padding. ``native/attention.h``
describes the kernel and the cache layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from specdec_hal.models.layout import round_up
from specdec_hal.plugin.model import Segment
from specdec_hal.tensors.native import load_library

_LINE = 64  # bytes

Spans = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layer:
    """Parameters of an attention layer. `index`: its number in the KV cache. Layers that share their keys and values
    have the same.

    `softcap`: 0 for none. Values may be narrower than keys (`value_dim` <= `head_dim`), as in DeepSeek's latent
    attention. `window`, `causal`, `anchored`, `chunked`: see Launcher.attention.
    """

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    causal: bool = True
    anchored: bool = False
    chunked: bool = False


def cached(layers: Sequence[Layer]) -> list[Layer]:
    """One of the layers for each index, in this order."""
    return [layer for _, layer in sorted({layer.index: layer for layer in layers}.items())]


class Attention(Protocol):
    """Rotary embeddings, KV caches of all slots, and attention to them."""

    def reserve(self, slot: int, positions: int) -> None:
        """Grow a slot to at least this many positions, keeping its contents."""

    def begin(self, segments: Sequence[Segment], first: int, rows: int) -> Any:
        """Prepare `attend` for a block of `rows` rows, starting at token `first` of the batch."""

    def attend(self, layer: int, qkv: Any, block: Any) -> Any:
        """Store a block's keys and values; return its attention [rows, heads * head_dim], valid until the next call.

        `qkv` float32 [rows, width]: scaled queries, keys and values, in the order of :mod:`.layout`. Rows after the
        last segment give 0.
        """


@dataclass
class SlotCache:
    """One slot's keys and values: float32 [layers, blocks, kv_heads, floats of a block]."""

    positions: int
    data: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        self.address = self.data.ctypes.data


class HostAttention:
    """Attention of `layers` layers with the same heads.

    `rotary` float32 [positions, head_dim] rotates queries and keys, in the order of :mod:`.layout`; None: no rotation.
    `buffer(rows)`: a float32 tensor [rows, heads * head_dim] on the host to write to. `chunk`: a query sees keys from
    the last multiple of it on; 0: all. Such a chunk is stored like a text of its own, and is not rotated.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        layers: int,
        slots: int,
        positions: int,
        threads: int,
        buffer: Callable[[int], Any],
        rotary: npt.NDArray[np.float32] | None = None,
        chunk: int = 0,
    ) -> None:
        library = load_library("specdec_cpu")
        self._attention, self.instruction_set = library["attention"], library["instruction_sets"]() - 1
        self._heads = heads, kv_heads
        self._block = int(library["attention_block"]())  # positions stored together in a cache
        self._shape = layers, kv_heads, int(library["attention_block_size"](head_dim))
        self._chunk = chunk
        self._limit = round_up(self._stored(positions), self._block)
        self._rotary = np.zeros((0, head_dim), np.float32) if rotary is None else rotary
        self._no_sinks, self._no_bias = np.zeros(0, np.float32), np.zeros((0, 0), np.float32)
        self._threads = threads
        self._buffer = buffer
        self.slots = [SlotCache(0, self._blocks(0)) for _ in range(slots)]

    def reserve(self, slot: int, positions: int) -> None:
        """See Attention. A slot's room grows by doubling."""
        cache, positions = self.slots[slot], self._stored(positions)
        if positions <= cache.positions:
            return
        size = min(max(round_up(positions, self._block), 2 * cache.positions), self._limit)
        data = self._blocks(size // self._block)
        data[:, : cache.data.shape[1]] = cache.data
        self.slots[slot] = SlotCache(size, data)

    def begin(self, segments: Sequence[Segment], first: int, rows: int) -> tuple[Spans, Any]:
        """See Attention."""
        spans = []
        for segment in segments:
            cache, row = self.slots[segment.slot], segment.start - first - segment.position
            for begin, at, length in self._chunks(segment):
                spans.append((row + at, length, at - begin, self._address(cache, begin), cache.positions))
        return np.array(spans, np.int64), self._buffer(rows)

    def _chunks(self, segment: Segment) -> Iterator[tuple[int, int, int]]:
        """The parts of a segment that lie in one chunk: where the chunk begins, and their position and length."""
        at, end = segment.position, segment.position + segment.length
        while at < end:
            begin = at // self._chunk * self._chunk if self._chunk else 0
            until = min(end, begin + self._chunk) if self._chunk else end
            yield begin, at, until - at
            at = until

    def _stored(self, positions: int) -> int:
        """Positions of a cache that a text of `positions` takes: chunks begin at blocks."""
        chunks, rest = divmod(positions, self._chunk) if self._chunk else (0, positions)
        return chunks * round_up(self._chunk, self._block) + rest

    def _address(self, cache: SlotCache, begin: int) -> int:
        """Of a cache that begins with the chunk at position `begin`."""
        _, kv_heads, block = self._shape
        return cache.address + self._stored(begin) // self._block * kv_heads * block * cache.data.itemsize

    def attend(
        self,
        layer: int,
        qkv: Any,
        block: tuple[Spans, Any],
        *,
        scale: float = 1.0,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Any = None,
        bias: Any = None,
        rotary: Any = None,
        heads: int | None = None,
        stores: bool = True,
    ) -> Any:
        """See Attention. `scale`: on scores, `window`: keys that a query sees, itself included (0: all of them).

        `softcap`: scores become softcap * tanh(score / softcap), unless it is 0. `sinks` float32 [heads]: one score per
        head without a value, added to the softmax's sum. `bias` float32 [heads, positions], up to a multiple of 64: a
        score of key j at position i changes by bias[j] - bias[i]. `rotary` and `heads` take the
        place of the object's. Without `stores` only queries are read, and the cache stays as it is.
        """
        spans, out = block
        sinks = self._no_sinks if sinks is None else sinks
        rule = scale, window, softcap, sinks, self._no_bias if bias is None else bias
        self._attention(
            qkv,
            self._rotary if rotary is None else rotary,
            spans,
            layer,
            self._heads[0] if heads is None else heads,
            self._heads[1],
            *rule,
            stores,
            self._threads,
            self.instruction_set,
            out,
        )
        return out

    def _blocks(self, count: int) -> npt.NDArray[np.float32]:
        """Zeros that start at a cache line."""
        layers, kv_heads, block = self._shape
        size = layers * count * kv_heads * block
        data = np.zeros(size + _LINE // 4, np.float32)
        start = -data.ctypes.data % _LINE // 4
        return data[start : start + size].reshape(layers, count, kv_heads, block)


class Operators(Protocol):
    """A framework's part of a :class:`HostStore`. `rotary`: see :meth:`HostAttention.attend`."""

    rotary: Any

    def qkv(self, layer: Layer, query: Any, key: Any, value: Any) -> Any:
        """Queries, keys and values [T, heads, width] side by side: float32 [T, W], contiguous. Values narrower than
        keys are padded with zeros."""

    def buffer(self, width: int, rows: int) -> Any:
        """An uninitialised float32 tensor [rows, width]."""


@dataclass
class _Group:
    """The native attention of layers with the same heads, and its current block."""

    attention: HostAttention
    block: Any = None


class HostStore:
    """Keys and values of all slots on the host, float32, for tensors of any framework."""

    def __init__(self, layers: Sequence[Layer], slots: int, positions: int, threads: int, operators: Operators) -> None:
        self._operators = operators
        groups: dict[tuple[int, int, int, int], list[int]] = {}
        for layer in cached(layers):
            shape = layer.heads, layer.kv_heads, layer.head_dim, layer.window if layer.chunked else 0
            groups.setdefault(shape, []).append(layer.index)
        self._groups: list[_Group] = []
        self._of: dict[int, tuple[_Group, int]] = {}
        for (heads, kv_heads, head_dim, chunk), members in groups.items():
            width = heads * head_dim
            attention = HostAttention(
                heads, kv_heads, head_dim, layers=len(members), slots=slots, positions=positions, threads=threads,
                buffer=partial(operators.buffer, width), chunk=chunk,
            )  # fmt: skip
            group = _Group(attention)
            self._groups.append(group)
            self._of |= {index: (group, i) for i, index in enumerate(members)}

    def reserve(self, slot: int, positions: int) -> None:
        """See HostAttention."""
        for group in self._groups:
            group.attention.reserve(slot, positions)

    def begin(self, segments: Sequence[Segment], first: int, rows: int) -> None:
        """See HostAttention."""
        for group in self._groups:
            group.block = group.attention.begin(segments, first, rows)

    def attend(self, layer: Layer, query: Any, key: Any, value: Any, sinks: Any | None, bias: Any | None = None) -> Any:
        """See Store."""
        group, index = self._of[layer.index]
        qkv = self._operators.qkv(layer, query, key, value)
        out = group.attention.attend(
            index, qkv, group.block, scale=layer.scale, window=0 if layer.chunked else layer.window,
            softcap=layer.softcap, sinks=None if sinks is None else sinks.float(), bias=bias,
        ).reshape((len(query), layer.heads, layer.head_dim))  # fmt: skip
        return (out if layer.value_dim == layer.head_dim else out[..., : layer.value_dim]).to(query.dtype)

    def look(self, layer: Layer, qkv: Any, segments: Sequence[Segment]) -> Any:
        """Attention [T, heads * head_dim] of the queries in `qkv` to what is kept for a layer, which stays as it is.

        `layer` may have another number of heads, scale and window than the one that keeps keys and values.
        """
        group, index = self._of[layer.index]
        spans, _ = group.attention.begin(segments, 0, len(qkv))
        return group.attention.attend(
            index, qkv, (spans, self._operators.buffer(layer.heads * layer.head_dim, len(qkv))), scale=layer.scale,
            window=layer.window, softcap=layer.softcap, heads=layer.heads, stores=False,
        )  # fmt: skip

    def attend_joined(self, layer: Layer, qkv: Any) -> Any:
        """Attention [T, heads * head_dim] of rows that `packed.fuse` computes: float32, which it rotates."""
        group, index = self._of[layer.index]
        return group.attention.attend(
            index, qkv, group.block, scale=layer.scale, window=layer.window, softcap=layer.softcap,
            rotary=self._operators.rotary,
        )  # fmt: skip
