"""A Llama decoder over a dense KV cache; a framework supplies primitives (:mod:`.llama_paddle`).

A batch is cut into blocks of up to 256 rows, which run through all layers one after the other. Per layer a block
takes four matrix products with weights and one call for the attention of all its slots (:mod:`.attention`). A slot's
cache grows by doubling; new positions overwrite rejected drafts.

Bits. On a CPU every primitive gives a row the same bits whatever the other rows are: products and attention are native
(:mod:`.linear`, :mod:`.attention`), norms and SwiGLU work on each row by itself. So a token's hidden state and logits
do not depend on the other tokens of the batch, on slots, or on stale cache contents. Greedy and seeded decoding give
the same tokens with and without drafts, by construction. On a GPU equality depends on the framework's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from specdec_hal.models.attention import Attention, HostAttention
from specdec_hal.models.batch import Limits, blocks, check_hidden_layers, check_positive, check_rows, no_cache
from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.layout import LayerWeights, LlamaWeights, MTPWeights
from specdec_hal.models.primitives import HostArray, Primitives
from specdec_hal.models.rope import rotations
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities, Segment

Start = Callable[[Any, int], tuple[Any, Any | None, Any | None]]
"""Maps the embedded tokens and the first row of a block to its residual, the addend, and the first layer's
queries, keys and values if they are not projected from its norm.
"""

_BLOCK = 256  # rows


@dataclass
class _Layer:
    attention_norm: Any
    qkv: Any
    out: Any
    mlp_norm: Any
    gate_up: Any
    down: Any


class Llama(Primitives):
    """The decoder; see :class:`specdec_hal.plugin.model.TargetModel` for what a runner calls."""

    framework: ClassVar[str]

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, *, batch_invariant: bool) -> None:
        self.config = config
        self.batch_invariant = batch_invariant
        self._buffers: dict[int, Any] = {}
        self._limits: Limits | None = None
        with self._inference():
            self._embedding = self._upload(weights.embedding)
            self._layers = [self._layer(layer) for layer in weights.layers]
            self._final_norm = self._upload(weights.final_norm)
            self._head = self._weight(weights.head)
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
        self._attention = self.new_attention(len(self._layers), max_num_seqs, max_model_len)
        self._limits = Limits(self.framework, self.config.vocab_size, max_num_seqs, max_model_len)

    def mtp_module(self) -> LlamaMTP:
        """See MTPModel.mtp_module."""
        return LlamaMTP(self, self._mtp[0])

    def forward(self, batch: ForwardBatch) -> Mapping[int, Any]:
        """See TargetModel.forward."""
        return self._forward(batch, lambda embedded, first: (embedded, None, None))

    def _forward(self, batch: ForwardBatch, start: Start) -> Mapping[int, Any]:
        if self._limits is None:
            raise no_cache(self.framework, "forward")
        ids = self._limits.check(batch)
        layers = check_hidden_layers(batch, self.capabilities, self.framework)
        with self._inference():
            for segment in batch.segments:
                self._attention.reserve(segment.slot, segment.position + segment.length)
            groups = blocks(batch.segments, _BLOCK)
            parts = [self._run(ids, group, layers, start) for group in groups]
            if not parts:
                return {layer: self._rows(self._embedding, 0, 0) for layer in layers}
            return parts[0] if len(parts) == 1 else {n: self._concat([part[n] for part in parts]) for n in layers}

    def compute_logits(self, hidden: Any) -> Any:
        """See TargetModel.compute_logits."""
        with self._inference():
            x = self._input(hidden)
            check_rows(self.framework, "compute_logits", x, self.config.hidden_size)
            return self._matmul(x, self._head)

    def embed(self, ids: Any) -> Any:
        """See LendingModel.embed."""
        with self._inference():
            return self._embed(self._embedding, self._upload(np.asarray(ids, np.int64)))

    # ---- one block

    def _run(self, ids: HostArray, group: list[Segment], layers: frozenset[int], start: Start) -> dict[int, Any]:
        """Hidden states of one block's tokens, by layer."""
        first, last = group[0].start, group[-1].start + group[-1].length
        block = self._attention.begin(group, first, last - first)
        hidden: dict[int, Any] = {}
        embedded = self._embed(self._embedding, self._upload(ids[first:last]))
        residual, delta, qkv = start(embedded, first)
        for i, layer in enumerate(self._layers):
            if qkv is None:
                normed, residual = self._add_norm(residual, delta, layer.attention_norm)
                qkv = self._matmul(normed, layer.qkv)
            attended = self._attention.attend(i, qkv, block)
            qkv = None
            delta = self._matmul(attended, layer.out)
            normed, residual = self._add_norm(residual, delta, layer.mlp_norm)
            delta = self._matmul(self._swiglu(self._matmul(normed, layer.gate_up)), layer.down)
            if i in layers:
                hidden[i] = residual + delta
        hidden[FINAL_NORM], _ = self._add_norm(residual, delta, self._final_norm)
        return hidden

    def new_attention(self, layers: int, slots: int, positions: int) -> Attention:
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
            self._buffers[rows] = found = self._upload(np.zeros((rows, width), np.float32))
        return found

    def _layer(self, weights: LayerWeights) -> _Layer:
        return _Layer(
            attention_norm=self._upload(weights.attention_norm),
            qkv=self._weight(weights.qkv),
            out=self._weight(weights.out),
            mlp_norm=self._upload(weights.mlp_norm),
            gate_up=self._weight(weights.gate_up),
            down=self._weight(weights.down),
        )


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
            self._embedding_in = model._weight(weights.embedding_in)
            self._hidden_in = model._weight(weights.hidden_in)
        module._attention = model.new_attention(1, limits.max_num_seqs, limits.max_model_len)

    def forward(self, batch: ForwardBatch, hidden: Any) -> Any:
        """See MTPModule.forward."""
        model, width = self._model, self._model.config.hidden_size
        check_rows(model.framework, "forward", hidden, width, len(batch.token_ids))
        with model._inference():
            x = model._input(hidden)

        def start(embedded: Any, first: int) -> tuple[Any, Any, None]:
            token, _ = model._add_norm(embedded, None, self._embedding_norm)
            state, _ = model._add_norm(model._rows(x, first, first + embedded.shape[0]), None, self._hidden_norm)
            return model._matmul(token, self._embedding_in), model._matmul(state, self._hidden_in), None

        return model._forward(batch, start)[FINAL_NORM]

    def compute_logits(self, hidden: Any) -> Any:
        """See MTPModule.compute_logits."""
        return self._model.compute_logits(hidden)
