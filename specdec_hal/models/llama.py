"""A Llama decoder over a dense KV cache; a framework supplies primitives (:mod:`.llama_paddle`).

A batch is cut into blocks of up to 256 rows, which run through all layers one after the other. Per layer a block
takes four matrix products with weights and one call for the attention of all its slots (:mod:`.attention`). A slot's
cache grows by doubling; new positions overwrite rejected drafts.

Bits. With ``batch_invariant`` (the default on CPUs) a token's hidden state and logits have the same bits whatever is in
the batch. That covers other tokens of its slot (1 or 11 a step, prefill chunks of any size), other slots, their order,
stale cache contents, and the slot itself. So greedy and seeded decoding give the same tokens with and without drafts,
by construction. It holds per process: another processor, library version or thread count may give other bits. It rests
on
- row counts of products with weights that agree bit for bit: all of them in Paddle on a CPU, which has
  :mod:`.linear`; otherwise :mod:`.rows` measures them when the model is loaded, and blocks are padded up to them;
- everything else (norms, SwiGLU, attention) working on each row by itself, in the same way in every row.
With ``batch_invariant=False`` (the default elsewhere) nothing is measured or padded, and equality depends on the
framework's kernels.

Without batch invariance, on an AMD EPYC, steps of 1 and 6 tokens differed by up to 2e-5 in nearly all logits and in
none of 2,000 argmaxes (Paddle with MKL's products).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from specdec_hal.models.attention import Attention, HostAttention
from specdec_hal.models.batch import Limits, blocks, check_hidden_layers, check_positive, check_rows, no_cache
from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.layout import LayerWeights, LlamaWeights, MTPWeights
from specdec_hal.models.primitives import HostArray, Primitives
from specdec_hal.models.rope import rotations
from specdec_hal.models.rows import RowSizes, linear_sizes
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities, Segment

Start = Callable[[Any, int, int], tuple[Any, Any | None, Any | None]]
"""Maps the embedded tokens, first row and number of rows of a block to its residual, the addend, and the first layer's
queries, keys and values if they are not projected from its norm.
"""

# Rows of a block if any number is allowed.
_ANY = RowSizes(range(1, 257))


@dataclass
class Linear:
    """A weight in the framework's format, and the row counts whose products agree."""

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


class Llama(Primitives):
    """The decoder; see :class:`specdec_hal.plugin.model.TargetModel` for what a runner calls."""

    framework: ClassVar[str]
    _keeps_bits: bool = False
    """Whether a row of a product has the same bits for any number of rows."""

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, *, batch_invariant: bool) -> None:
        self.config = config
        self.batch_invariant = batch_invariant
        self._linear_sizes: dict[tuple[int, ...], RowSizes] = {}
        self._zeros: dict[tuple[int, int], Any] = {}
        self._buffers: dict[int, Any] = {}
        self._limits: Limits | None = None
        self._widest = widest(weights.layers)
        with self._inference():
            self._embedding = self._upload(weights.embedding)
            self._layers = [self._layer(layer) for layer in weights.layers]
            self._final_norm = self._upload(weights.final_norm)
            self._head = self._linear(weights.head)
        self._mtp = weights.mtp

    # ---- what a runner calls

    @property
    def capabilities(self) -> ModelCapabilities:
        """Every layer can be tapped; shapes follow the batch."""
        return ModelCapabilities(
            hidden_layers=(FINAL_NORM, *range(self.config.num_hidden_layers)),
            mtp_modules=len(self._mtp),
            stable_row_counts=None if self.batch_invariant else (),
        )

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """See TargetModel.allocate. Calling it again replaces the cache."""
        check_positive(self.framework, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self._choose_sizes()
        self._attention = self._new_attention(len(self._layers), max_num_seqs, max_model_len)
        self._limits = Limits(self.framework, self.config.vocab_size, max_num_seqs, max_model_len)

    def mtp_module(self) -> LlamaMTP:
        """See MTPModel.mtp_module."""
        return LlamaMTP(self, self._mtp[0])

    def forward(self, batch: ForwardBatch) -> Mapping[int, Any]:
        """See TargetModel.forward."""
        return self._forward(batch, lambda embedded, first, tokens: (embedded, None, None))

    def _forward(self, batch: ForwardBatch, start: Start) -> Mapping[int, Any]:
        if self._limits is None:
            raise no_cache(self.framework, "forward")
        ids = self._limits.check(batch)
        layers = check_hidden_layers(batch, self.capabilities, self.framework)
        with self._inference():
            for segment in batch.segments:
                self._attention.reserve(segment.slot, segment.position + segment.length)
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
            check_rows(self.framework, "compute_logits", x, self.config.hidden_size)
            return self._output(self._project_all(x, self._head))

    def embed(self, ids: Any) -> Any:
        """See LendingModel.embed."""
        with self._inference():
            return self._output(self._embed(self._embedding, self._upload(np.asarray(ids, np.int64))))

    # ---- one block

    def _run(self, ids: HostArray, group: list[Segment], layers: frozenset[int], start: Start) -> dict[int, Any]:
        """Hidden states of one block's tokens, by layer."""
        first, last = group[0].start, group[-1].start + group[-1].length
        tokens = last - first
        rows = self._block_sizes.fit(tokens)
        padded = np.zeros(rows, np.int64)
        padded[:tokens] = ids[first:last]
        block = self._attention.begin(group, first, rows)
        hidden: dict[int, Any] = {}
        residual, delta, qkv = start(self._embed(self._embedding, self._upload(padded)), first, tokens)
        for i, layer in enumerate(self._layers):
            if qkv is None:
                normed, residual = self._add_norm(residual, delta, layer.attention_norm)
                qkv = self._project(normed, layer.qkv, rows)
            attended = self._cast(self._attention.attend(i, self._output(qkv), block))
            qkv = None
            delta = self._project(attended, layer.out, rows)
            normed, residual = self._add_norm(residual, delta, layer.mlp_norm)
            gated = self._swiglu(self._project(normed, layer.gate_up, rows))
            delta = self._project(gated, layer.down, rows)
            if i in layers:
                hidden[i] = residual + delta
        hidden[FINAL_NORM], _ = self._add_norm(residual, delta, self._final_norm)
        return hidden if rows == tokens else {n: self._rows(part, 0, tokens) for n, part in hidden.items()}

    def _project(self, x: Any, linear: Linear, rows: int) -> Any:
        """x @ weight, padded to a row count that agrees with the others."""
        if rows in linear.sizes or rows == 0:
            return self._matmul(x, linear.weight)
        padding = self._zero_rows(linear.sizes.fit(rows) - rows, x.shape[1])
        return self._rows(self._matmul(self._concat([x, padding]), linear.weight), 0, rows)

    def _project_all(self, x: Any, linear: Linear) -> Any:
        """x @ weight of any number of rows."""
        rows, step = x.shape[0], linear.sizes.largest
        if rows <= step:
            return self._project(x, linear, rows)
        cuts = [(start, min(start + step, rows)) for start in range(0, rows, step)]
        return self._concat([self._project(self._rows(x, a, b), linear, b - a) for a, b in cuts])

    def _new_attention(self, layers: int, slots: int, positions: int) -> Attention:
        """Rotary embeddings, caches and attention; on the host unless a framework overrides this."""
        config = self.config
        return HostAttention(
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            layers=layers,
            slots=slots,
            positions=positions,
            threads=self._host_threads(),
            buffer=self._buffer,
            rotary=rotations(config, positions).astype(np.complex64).view(np.float32),
        )

    def _buffer(self, rows: int) -> Any:
        """Output buffer of attention for all layers and steps of this many rows."""
        found = self._buffers.get(rows)
        if found is None:
            width = self.config.num_attention_heads * self.config.head_dim
            self._buffers[rows] = found = self._output(self._upload(np.zeros((rows, width), np.float32)))
        return found

    def _zero_rows(self, rows: int, columns: int) -> Any:
        found = self._zeros.get((rows, columns))
        if found is None:
            self._zeros[rows, columns] = found = self._upload(np.zeros((rows, columns), np.float32))
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
        """A weight [in, out] in the framework's format; sizes are measured once per shape."""
        prepared = self._weight(weight)
        sizes = self._linear_sizes.get(weight.shape)
        if sizes is None:
            sizes = _ANY
            if self.batch_invariant and not self._keeps_bits:
                sizes = linear_sizes(
                    lambda x: self._download(self._matmul(self._upload(x), prepared)),
                    weight.shape[0],
                    self._row_limit(),
                )
            self._linear_sizes[weight.shape] = sizes
        return Linear(prepared, sizes)

    def _choose_sizes(self) -> None:
        """Set the sizes of blocks to those common to all weights."""
        self._block_sizes = _ANY
        if not self.batch_invariant:
            return
        linear = self._linear_sizes.values()
        shared = set.intersection(*(set(sizes.sizes) for sizes in linear))
        # If nothing is shared, each weight pads by itself.
        self._block_sizes = RowSizes(shared or range(1, min(sizes.largest for sizes in linear) + 1))


def widest(layers: Sequence[LayerWeights]) -> int:
    """The most columns of activations in these layers."""
    return max(columns for layer in layers for columns in (len(layer.down), layer.qkv.shape[1]))


class LlamaMTP:
    """The multi-token-prediction module of a :class:`Llama`; see :class:`specdec_hal.plugin.model.MTPModule`.

    One more decoder layer over ``eh_proj([enorm(embedding of p + 1), hnorm(hidden state of p)])`` (DeepSeek-V3,
    arXiv:2412.19437, equation 21). The product is computed as that of its two halves, whose sum is the residual. The
    layer and its KV cache are the module's own; everything else is the model's, including guarantees about bits.
    """

    def __init__(self, model: Llama, weights: MTPWeights) -> None:
        limits = model._limits
        if limits is None:
            raise no_cache(model.framework, "mtp_module")
        self._model = module = copy(model)
        with model._inference():
            module._layers = [model._layer(weights.layer)]
            module._final_norm = model._upload(weights.final_norm)
            self._embedding_norm = model._upload(weights.embedding_norm)
            self._hidden_norm = model._upload(weights.hidden_norm)
            self._embedding_in = model._linear(weights.embedding_in)
            self._hidden_in = model._linear(weights.hidden_in)
        module._choose_sizes()  # with new shapes that blocks must fit too
        module._attention = model._new_attention(1, limits.max_num_seqs, limits.max_model_len)

    def forward(self, batch: ForwardBatch, hidden: Any) -> Any:
        """See MTPModule.forward."""
        model, width = self._model, self._model.config.hidden_size
        check_rows(model.framework, "forward", hidden, width, len(batch.token_ids))
        with model._inference():
            x = model._input(hidden)

        def start(embedded: Any, first: int, tokens: int) -> tuple[Any, Any, None]:
            rows = embedded.shape[0]
            below = model._rows(x, first, first + tokens)
            if rows > tokens:
                below = model._concat([below, model._zero_rows(rows - tokens, width)])
            token, _ = model._add_norm(embedded, None, self._embedding_norm)
            state, _ = model._add_norm(below, None, self._hidden_norm)
            return model._project(token, self._embedding_in, rows), model._project(state, self._hidden_in, rows), None

        return model._forward(batch, start)[FINAL_NORM]

    def compute_logits(self, hidden: Any) -> Any:
        """See MTPModule.compute_logits."""
        return self._model.compute_logits(hidden)
