"""An EAGLE-3 head (Li et al., arXiv:2503.01840) over a :class:`~specdec_hal.models.llama.Llama`.

Row p of its cache belongs to the token at p + 1 and the target's state at p, and predicts the token at p + 2. The
state is the target's features at a few depths, fused by one product; in further drafts it is the head's own. The first
layer reads the normed embedding and the normed state side by side; the residual is the state::

    u = fc(features) or the head's own state           c = [input_layernorm(embedding), hidden_norm(u)]
    y = u + attention(c)                               z = y + mlp(post_attention_layernorm(y))
    logits = lm_head(norm(z))                          the next u: z, or norm(z) with `norm_output`
                                                       without `norm_before_head`: lm_head(z)

Other targets, parallel heads, and those with Qwen3's layers or with windows are :mod:`specdec_hal.models.draft_pass`'s.

:mod:`specdec_hal.models.drafter` reads heads and says what the options of a config.json are.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from specdec_hal.models.batch import check_rows, no_cache
from specdec_hal.models.drafter import (
    Blocks,
    Eagle3Config,
    Eagle3Weights,
    eagle3_shapes,
    read_drafter_weights,
    read_eagle3_weights,
    rows_of_head,
)
from specdec_hal.models.llama import Llama
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, TargetModel


def eagle3_head(model: TargetModel, config: Eagle3Config, folder: str | Path, blocks: Blocks, drafts: int = 1) -> Any:
    """The head in a folder beside its target: a :class:`~specdec_hal.plugin.model.DraftHead`.

    `drafts`: the most a step.
    """
    if isinstance(model, Llama) and config.is_llama:
        return LlamaEagle3(model, config, read_eagle3_weights(folder, config))
    from specdec_hal.models.draft_pass import HeadPass

    weights = read_drafter_weights(folder, eagle3_shapes(config), config)
    return HeadPass(model, config, weights, blocks, drafts)


class LlamaEagle3:
    """See :class:`specdec_hal.plugin.model.DraftHead`. The layers, and so the KV cache, are the head's own.

    Embedding and head default to the target's. The model's guarantees about bits hold here too.
    """

    def __init__(self, model: Llama, config: Eagle3Config, weights: Eagle3Weights) -> None:
        limits = model._limits
        if limits is None:
            raise no_cache(model.framework, "eagle3_head")
        self.config, self.draft_ids = config, weights.draft_ids
        self._model = head = copy(model)
        head.config, head._buffers = config, {}
        with model._inference():
            head._layers = [head._layer(layer) for layer in weights.layers]
            head._final_norm = head._upload(weights.final_norm)
            if weights.embedding is not None:
                head._embedding = head._upload(weights.embedding)
            if weights.head is not None:
                head._head = head._weight(weights.head)
            elif (ids := weights.draft_ids) is not None:
                head._head = head._weight(rows_of_head(model.compute_logits, config.hidden_size, ids).T)
            self._fc = head._weight(weights.fc)
            self._feature_norms = [head._upload(norm) for norm in weights.feature_norms]
            self._hidden_norm = head._upload(weights.hidden_norm)
        head._attention = head.new_attention(len(head._layers), limits.max_num_seqs, limits.max_model_len)

    def variant(self, config: Eagle3Config) -> LlamaEagle3:
        """A variant with the same weights and cache: other taps, and options about norms."""
        other = copy(self)
        other.config = config
        return other

    def fuse(self, features: Mapping[int, Any]) -> Any:
        """See DraftHead.fuse."""
        head, norms = self._model, self._feature_norms
        with head._inference():
            parts = [head._input(features[tap]) for tap in self.config.taps]
            if self.config.fc_norm:
                parts = [head._add_norm(part, None, norm)[0] for part, norm in zip(parts, norms, strict=True)]
            x = head._concat(parts, 1)
            if self.config.norm_before_fc:
                x, _ = head._add_norm(x, None, norms[0])
            return head._matmul(x, self._fc)

    def forward(self, batch: ForwardBatch, hidden: Any) -> Any:
        """See DraftHead.forward."""
        head, width = self._model, self.config.hidden_size
        check_rows(head.framework, "forward", hidden, width, len(batch.token_ids))
        with head._inference():
            x = head._input(hidden)
        first_layer = head._layers[0]

        def start(embedded: Any, first: int) -> tuple[Any, Any, Any]:
            # a copy, modified in place
            state = head._concat([head._rows(x, first, first + embedded.shape[0])])
            token, _ = head._add_norm(embedded, None, first_layer.attention_norm)
            normed, _ = head._add_norm(state, None, self._hidden_norm)
            qkv = head._matmul(head._concat([token, normed], 1), first_layer.qkv)
            return (normed if self.config.norm_before_residual else state), None, qkv

        last = len(head._layers) - 1
        given = head._forward(replace(batch, hidden_layers=(last,)), start)
        return given[FINAL_NORM if self.config.norm_output else last]

    def compute_logits(self, hidden: Any) -> Any:
        """See DraftHead.compute_logits."""
        head = self._model
        with head._inference():
            x = head._input(hidden)
            if self.config.norm_before_head and not self.config.norm_output:
                x, _ = head._add_norm(x, None, head._final_norm)
            return head._matmul(x, head._head)
