"""A Llama decoder over a dense KV cache, written once; a framework fills in its primitives.

A batch is cut into blocks of some dozens of rows, which run through all layers one after the other. Per layer a block
takes four matrix products with weights, and per slot two with that slot's cache. The cache of a slot is the keys and
the values of its positions, [positions * kv_heads, head_dim] each, so that any prefix of a context is one contiguous
matrix. It grows with the context, by doubling; new positions are written in place, over what rejected drafts left.

Bits. With ``bit_stable`` (the default on CPUs) a token's hidden state and logits have the same bits whatever else is in
the batch: other tokens of its slot (1 or 11 a step, prefill chunks of any size), other slots, their order, stale cache
contents, the slot itself. So greedy and seeded decoding give the same tokens with and without drafts, by construction.
It holds per process: another processor, library version or thread count may give other bits. It rests on
- row counts of matrix products, and lengths of attended contexts, that agree bit for bit; :mod:`.rows` measures them
  when the model is loaded and when the cache is allocated, and blocks are padded up to them;
- everything else (norms, rotary, SwiGLU, softmax) working on each row by itself, in the same way in every row.
With ``bit_stable=False`` (the default elsewhere) nothing is measured or padded, and equality is as good as the
framework's kernels make it.

What bit-stability costs, measured with models/tiny-py-lm on a shared AMD EPYC (Zen 4), one thread, in turns with the
same model without it, ratio of the fastest steps: in Paddle 4 to 13 % of a step of 1 token, 13 to 17 % of 2, at most
2 % of 6 or 11; in PyTorch at most 6 %; of prefill in either about 10 %. Without it, steps of 1 and of 6 tokens gave
100 % (Paddle) and 87 % (PyTorch) of 2,000 tokens logits of other bits, by up to 2e-5, and none another argmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from specdec_hal.errors import ArgumentError
from specdec_hal.models.batch import Limits, blocks, check_hidden_layers
from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.layout import AttentionMask, LayerWeights, LlamaWeights, MTPWeights, RotaryTable, round_up
from specdec_hal.models.primitives import HostArray, Primitives
from specdec_hal.models.protocol import FINAL_NORM, ForwardBatch, ModelCapabilities, Segment
from specdec_hal.models.rows import RowSizes, attention_sizes, linear_sizes

Pair = tuple[Any, Any]  # keys, values

Start = Callable[[Any, int, int], tuple[Any, Any]]
"""From the embedded tokens of a block, its first row in the batch and its rows: residual, and what is added to it."""

# Rows of a block where any number may be taken.
_ANY = RowSizes(range(1, 257))

# Context lengths are rounded up to a multiple of the first of these that keeps bits; the first also where none has to.
_STRIDES = (64, 128, 192, 256, 384, 512, 768, 1024)


@dataclass
class Linear:
    """A weight in the framework's form, and the row counts with which its products agree."""

    weight: Any
    sizes: RowSizes


@dataclass
class _Layer:
    attention_norm: Any
    qkv: Linear
    out: Linear
    mlp_norm: Any
    gate_up: Linear
    down: Linear


@dataclass
class _SlotCache:
    """One slot's keys and values, per layer.

    `tensors` are [positions * kv_heads, head_dim]; `writable` the same memory as [positions, kv_heads * head_dim];
    `prefixes` the first rows of `tensors`, by number of positions.
    """

    positions: int = 0
    tensors: list[Pair] = field(default_factory=list)
    writable: list[Pair] = field(default_factory=list)
    prefixes: dict[int, list[Pair]] = field(default_factory=dict)


@dataclass
class _Piece:
    """A stretch of a segment within a block: `rows` >= `length` rows from `start` on go through attention together."""

    start: int
    length: int
    rows: int
    position: int
    context: int  # positions of the cache that it is compared with
    cache: _SlotCache
    prefixes: list[Pair]
    mask: Any = None


class Llama(Primitives):
    """The decoder; see :class:`specdec_hal.models.protocol.TargetModel` for what a runner calls."""

    framework: ClassVar[str]

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, *, bit_stable: bool) -> None:
        self.config = config
        self.bit_stable = bit_stable
        self._heads = config.num_attention_heads
        self._linear_sizes: dict[tuple[int, ...], RowSizes] = {}
        self._context_sizes: dict[tuple[int, int], RowSizes | None] = {}
        self._zeros: dict[tuple[int, int], Any] = {}
        self._limits: Limits | None = None
        with self._inference():
            self._embedding = self._upload(weights.embedding)
            self._layers = [self._layer(layer) for layer in weights.layers]
            self._final_norm = self._upload(weights.final_norm)
            self._head = self._linear(weights.head)
        self._mtp = weights.mtp

    # ---- what a runner calls

    @property
    def capabilities(self) -> ModelCapabilities:
        """Every layer can be tapped; attention runs slot by slot, at shapes that follow the batch."""
        return ModelCapabilities(
            hidden_layers=(FINAL_NORM, *range(self.config.num_hidden_layers)),
            mtp_modules=len(self._mtp),
            stable_row_counts=None if self.bit_stable else (),
        )

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """See TargetModel.allocate. Calling it again replaces the cache."""
        for name, value in (("max_num_seqs", max_num_seqs), ("max_model_len", max_model_len)):
            if value < 1:
                raise ArgumentError(
                    op="allocate",
                    backend=self.framework,
                    argument=name,
                    expected="an integer >= 1",
                    got=str(value),
                    cure="ask for at least one slot and one position",
                )
        with self._inference():
            self._choose_sizes(max_model_len)
        self._positions = positions = round_up(max_model_len, self._stride)
        self._empty_cache(max_num_seqs)
        self._rotary = RotaryTable(self.config, positions)
        self._mask = AttentionMask(self.config, positions, self._attention_sizes.largest)
        self._limits = Limits(self.framework, self.config.vocab_size, max_num_seqs, max_model_len)

    def mtp_module(self) -> LlamaMTP:
        """See MTPModel.mtp_module."""
        return LlamaMTP(self, self._mtp[0])

    def forward(self, batch: ForwardBatch) -> Mapping[int, Any]:
        """See TargetModel.forward."""
        return self._forward(batch, lambda embedded, first, tokens: (embedded, None))

    def _forward(self, batch: ForwardBatch, start: Start) -> Mapping[int, Any]:
        if self._limits is None:
            raise ArgumentError(
                op="forward",
                backend=self.framework,
                argument="batch",
                expected="a KV cache to write to",
                got="none",
                cure="call allocate() first",
            )
        ids = self._limits.check(batch)
        layers = check_hidden_layers(batch, self.capabilities, self.framework)
        with self._inference():
            for segment in batch.segments:
                self._reserve(self._slots[segment.slot], round_up(segment.position + segment.length, self._stride))
            groups = blocks(batch.segments, self._block_sizes.largest)
            parts = [self._run(ids, group, layers, start) for group in groups]
            if not parts:
                return {layer: self._output(self._rows(self._embedding, 0, 0)) for layer in layers}
            joined = parts[0] if len(parts) == 1 else {n: self._concat([part[n] for part in parts]) for n in layers}
            return {layer: self._output(hidden) for layer, hidden in joined.items()}

    def compute_logits(self, hidden: Any) -> Any:
        """See TargetModel.compute_logits."""
        with self._inference():
            x = self._input(hidden)
            shape = tuple(x.shape)
            if len(shape) != 2 or shape[1] != self.config.hidden_size:
                raise ArgumentError(
                    op="compute_logits",
                    backend=self.framework,
                    argument="hidden",
                    expected=f"[R, {self.config.hidden_size}]",
                    got=str(list(shape)),
                    cure="pass rows of what forward() returned",
                )
            rows, step = shape[0], self._head.sizes.largest
            if rows <= step:
                return self._output(self._project(x, self._head, rows))
            cuts = [(start, min(start + step, rows)) for start in range(0, rows, step)]
            parts = [self._project(self._rows(x, a, b), self._head, b - a) for a, b in cuts]
            return self._output(self._concat(parts))

    # ---- one block

    def _run(self, ids: HostArray, group: list[Segment], layers: frozenset[int], start: Start) -> dict[int, Any]:
        """Hidden states of one block's tokens, by layer."""
        first, last = group[0].start, group[-1].start + group[-1].length
        tokens = last - first
        pieces = [piece for segment in group for piece in self._pieces(segment, first)]
        if len(pieces) == 1 and tokens <= self._alone_sizes.largest:
            rows = pieces[0].rows = self._alone_sizes.fit(tokens)
        else:
            rows = self._block_sizes.fit(tokens)
        for piece in pieces:
            piece.mask = self._upload(self._mask.rows(piece.position, piece.rows, piece.context))
        padded, positions = np.zeros((2, rows), np.int64)
        padded[:tokens] = ids[first:last]
        for piece in pieces:
            positions[piece.start : piece.start + piece.length] = np.arange(piece.length) + piece.position
        factors = self._upload(self._rotary.rows(positions))
        hidden: dict[int, Any] = {}
        residual, delta = start(self._embed(self._embedding, self._upload(padded)), first, tokens)
        for i, layer in enumerate(self._layers):
            normed, residual = self._add_norm(residual, delta, layer.attention_norm)
            qkv = self._rotate(self._project(normed, layer.qkv, rows), factors)
            self._store(i, qkv, pieces)
            delta = self._whole(self._project(self._attention(i, qkv, pieces, tokens, rows), layer.out, rows))
            normed, residual = self._add_norm(residual, delta, layer.mlp_norm)
            gated = self._swiglu(self._project(normed, layer.gate_up, rows))
            delta = self._whole(self._project(gated, layer.down, rows))
            if i in layers:
                hidden[i] = residual + delta
        hidden[FINAL_NORM], _ = self._add_norm(residual, delta, self._final_norm)
        return hidden if rows == tokens else {n: self._rows(part, 0, tokens) for n, part in hidden.items()}

    def _whole(self, partial: Any) -> Any:
        """What leads back to the residual, where each rank of a tensor-parallel model has computed a summand of it."""
        return partial

    def _agreed(self, sizes: RowSizes) -> RowSizes:
        """Those of the sizes that every rank of a tensor-parallel model has found."""
        return sizes

    def _project(self, x: Any, linear: Linear, rows: int) -> Any:
        """x @ weight, padded to a row count that agrees with the others."""
        if rows in linear.sizes or rows == 0:
            return self._matmul(x, linear.weight)
        padding = self._zero_rows(linear.sizes.fit(rows) - rows, x.shape[1])
        return self._rows(self._matmul(self._concat([x, padding]), linear.weight), 0, rows)

    def _pieces(self, segment: Segment, first: int) -> Iterator[_Piece]:
        """A segment in stretches that attention takes at once."""
        slot, step = self._slots[segment.slot], self._attention_sizes.largest
        for done in range(0, segment.length, step):
            length = min(step, segment.length - done)
            position = segment.position + done
            context = round_up(position + length, self._stride)
            yield _Piece(
                start=segment.start - first + done,
                length=length,
                position=position,
                rows=self._attention_sizes.fit(length),
                context=context,
                cache=slot,
                prefixes=self._prefixes(slot, context),
            )

    def _attention(self, layer: int, qkv: Any, pieces: list[_Piece], tokens: int, rows: int) -> Any:
        """Attention of every row to its slot's cache: [rows, heads * head_dim]."""
        heads = self._heads
        queries = self._queries(qkv, rows * heads)
        if len(pieces) == 1 and pieces[0].rows == rows:
            return self._merge(self._attend(queries, *pieces[0].prefixes[layer], pieces[0].mask), rows)
        beyond = max(piece.start + piece.rows for piece in pieces) - rows
        if beyond > 0:
            queries = self._concat([queries, self._zero_rows(beyond * heads, self.config.head_dim)])
        parts = []
        for piece in pieces:
            own = self._rows(queries, piece.start * heads, (piece.start + piece.rows) * heads)
            part = self._attend(own, *piece.prefixes[layer], piece.mask)
            parts.append(part if piece.rows == piece.length else self._rows(part, 0, piece.length * heads))
        if rows > tokens:
            parts.append(self._zero_rows((rows - tokens) * heads, self.config.head_dim))
        return self._merge(self._concat(parts), rows)

    def _store(self, layer: int, qkv: Any, pieces: list[_Piece]) -> None:
        """Write the block's keys and values into the caches."""
        q, kv = (n * self.config.head_dim for n in (self._heads, self.config.num_key_value_heads))
        source = self._download(qkv) if self._host_cache else qkv
        for piece in pieces:
            rows = source[piece.start : piece.start + piece.length]
            keys, values = piece.cache.writable[layer]
            keys[piece.position : piece.position + piece.length] = rows[:, q : q + kv]
            values[piece.position : piece.position + piece.length] = rows[:, q + kv : q + 2 * kv]

    def _empty_cache(self, slots: int) -> None:
        self._slots = [_SlotCache() for _ in range(slots)]

    def _reserve(self, slot: _SlotCache, positions: int) -> None:
        """Give a slot room for at least so many positions, twice what it had or more, and keep what it holds."""
        if positions <= slot.positions:
            return
        size = min(max(positions, 2 * slot.positions), self._positions)
        kv_heads, head_dim = self.config.num_key_value_heads, self.config.head_dim
        shape = (size * kv_heads, head_dim)
        tensors = [(self._new_cache(*shape), self._new_cache(*shape)) for _ in self._layers]
        width = kv_heads * head_dim
        writable = [(self._writable(keys, width), self._writable(values, width)) for keys, values in tensors]
        for new, old in zip(writable, slot.writable, strict=False):  # an empty slot has none
            new[0][: slot.positions], new[1][: slot.positions] = old
        slot.positions, slot.tensors, slot.writable, slot.prefixes = size, tensors, writable, {}

    def _zero_rows(self, rows: int, columns: int) -> Any:
        found = self._zeros.get((rows, columns))
        if found is None:
            self._zeros[rows, columns] = found = self._upload(np.zeros((rows, columns), np.float32))
        return found

    def _prefixes(self, cache: _SlotCache, positions: int) -> list[Pair]:
        found = cache.prefixes.get(positions)
        if found is None:
            n = positions * self.config.num_key_value_heads
            found = [(self._prefix(keys, n), self._prefix(values, n)) for keys, values in cache.tensors]
            cache.prefixes[positions] = found
        return found

    # ---- sizes that agree

    def _layer(self, weights: LayerWeights) -> _Layer:
        return _Layer(
            attention_norm=self._upload(weights.attention_norm),
            qkv=self._linear(weights.qkv),
            out=self._linear(weights.out),
            mlp_norm=self._upload(weights.mlp_norm),
            gate_up=self._linear(weights.gate_up),
            down=self._linear(weights.down),
        )

    def _linear(self, weight: npt.NDArray[np.float32]) -> Linear:
        """A weight [in, out] in the framework's form, its sizes measured once per shape."""
        prepared = self._weight(weight)
        sizes = self._linear_sizes.get(weight.shape)
        if sizes is None:
            sizes = _ANY
            if self.bit_stable:
                sizes = linear_sizes(
                    lambda x: self._download(self._matmul(self._upload(x), prepared)),
                    weight.shape[0],
                    self._row_limit(),
                )
            self._linear_sizes[weight.shape] = sizes
        return Linear(prepared, sizes)

    def _choose_sizes(self, max_model_len: int) -> None:
        """Sets the sizes of blocks and of attention, and the stride of context lengths."""
        self._stride, self._attention_sizes, self._block_sizes, self._alone_sizes = _STRIDES[0], _ANY, _ANY, _ANY
        if not self.bit_stable:
            return
        for stride in (*_STRIDES, max_model_len):  # the last has one context length only
            shape = stride, round_up(max_model_len, stride)
            if shape not in self._context_sizes:
                self._context_sizes[shape] = self._measure_attention(*shape)
            sizes = self._context_sizes[shape]
            if sizes is not None:
                self._stride, self._attention_sizes = stride, sizes
                break
        linear = self._linear_sizes.values()
        shared = set.intersection(*(set(sizes.sizes) for sizes in linear))
        # A plain decode step is worth a size of its own: a weight whose sizes do not hold 1 pads by itself. So do all
        # if nothing is shared.
        block = {1, *shared} if shared else set(range(1, min(sizes.largest for sizes in linear) + 1))
        self._block_sizes = self._agreed(RowSizes(block))
        self._alone_sizes = self._agreed(RowSizes(block.intersection(self._attention_sizes.sizes)))

    def _measure_attention(self, stride: int, positions: int) -> RowSizes | None:
        config, width = self.config, self.config.num_key_value_heads
        generator = np.random.default_rng(0)

        def random(rows: int) -> npt.NDArray[np.float32]:
            return generator.standard_normal((rows, config.head_dim), np.float32)

        # Scores of about 1, so that every position has a say: a peaked softmax would hide the order of a sum.
        query, masks = random(self._heads) * np.float32(config.head_dim**-0.5), AttentionMask(config, positions, 1)
        keys, values = (self._upload(random(positions * width)) for _ in range(2))

        def attend(n: int, visible: int, context: int) -> npt.NDArray[np.float32]:
            mask = masks.rows(visible - 1, 1, context)
            queries = self._upload(np.tile(query, (n, 1)))
            seen = self._prefix(keys, context * width), self._prefix(values, context * width)
            return self._download(self._attend(queries, *seen, self._upload(np.tile(mask, (n, 1))))).reshape(n, -1)

        return attention_sizes(attend, range(stride, positions + 1, stride), self._row_limit())


class LlamaMTP:
    """The multi-token-prediction module of a :class:`Llama`; see :class:`specdec_hal.models.protocol.MTPModule`.

    One more decoder layer over ``eh_proj([enorm(embedding of p + 1), hnorm(hidden state of p)])`` (DeepSeek-V3,
    arXiv:2412.19437, equation 21). The product is computed as that of its two halves, whose sum is the residual. The
    layer, and so the KV cache, is the module's own; everything else is the model's, and what it says of bits holds.
    """

    def __init__(self, model: Llama, weights: MTPWeights) -> None:
        self._model = module = copy(model)
        module._empty_cache(len(model._slots))
        measured = len(model._linear_sizes)
        with model._inference():
            module._layers = [model._layer(weights.layer)]
            module._final_norm = model._upload(weights.final_norm)
            self._embedding_norm = model._upload(weights.embedding_norm)
            self._hidden_norm = model._upload(weights.hidden_norm)
            self._embedding_in = model._linear(weights.embedding_in)
            self._hidden_in = model._linear(weights.hidden_in)
            if len(model._linear_sizes) > measured:  # a shape that blocks must fit too
                module._choose_sizes(model._positions)

    def forward(self, batch: ForwardBatch, hidden: Any) -> Any:
        """See MTPModule.forward."""
        model, width = self._model, self._model.config.hidden_size
        expected = [len(batch.token_ids), width]
        if list(hidden.shape) != expected:
            raise ArgumentError(
                op="forward",
                backend=model.framework,
                argument="hidden",
                expected=str(expected),
                got=str(list(hidden.shape)),
                cure="pass a row for each token",
            )
        with model._inference():
            x = model._input(hidden)

        def start(embedded: Any, first: int, tokens: int) -> tuple[Any, Any]:
            rows = embedded.shape[0]
            below = model._rows(x, first, first + tokens)
            if rows > tokens:
                below = model._concat([below, model._zero_rows(rows - tokens, width)])
            token, _ = model._add_norm(embedded, None, self._embedding_norm)
            state, _ = model._add_norm(below, None, self._hidden_norm)
            return model._project(token, self._embedding_in, rows), model._project(state, self._hidden_in, rows)

        return model._forward(batch, start)[FINAL_NORM]

    def compute_logits(self, hidden: Any) -> Any:
        """See MTPModule.compute_logits."""
        return self._model.compute_logits(hidden)
