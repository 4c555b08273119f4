"""Sparse attention by an index (DeepSeek-V3.2, GLM-5): an indexer chooses the keys that each query attends to.

Its keys are by position too, and in the same blocks as those of attention: an indexer is one more layer of the store.
The library's own code chooses, text by text, over all keys of that text. So a step reads its lengths on the host, and
attention runs by PyTorch's operators: this is for correct results, not for speed.

Source: DeepSeek-AI, DeepSeek-V3.2 (2025).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import MethodType
from typing import Any

import torch

from specdec_hal.models.attention import Layer
from specdec_hal.models.paged import PagedStore, Placed
from specdec_hal.models.transformers.interface import LAYER, STORE, trial
from specdec_hal.models.transformers.own_attention import without_mask
from specdec_hal.plugin.model import Segment

LAYER_TYPES = {"deepseek_sparse_attention", "indexed_attention"}
"""In 5.17, and in newer versions of `transformers`."""
_INDEXERS = {"DeepseekV32Indexer", "GlmMoeDsaIndexer"}
_BASES = {"DeepseekV32Model", "GlmMoeDsaModel"}
_BLOCK = 64

Choose = Callable[[Any, Callable[[Any], Any], Any], Any]
"""From rows of the step, a function that keeps their keys [S, width] and returns all of their text's, and a mask [S, K]
of those that each sees: the chosen ones, [S, count]."""


def is_known(architecture: Any) -> bool:
    """Whether layers of a class of models have an indexer that is served here."""
    names = vars(sys.modules[architecture.__module__])
    return any(name in names for name in _INDEXERS)


def attach(model: Any) -> None:
    """Let indexers choose among the keys in their store."""
    for module in model.modules() if is_known(type(model)) else ():
        kind = type(module).__name__
        if kind in _INDEXERS:
            module.forward = MethodType(_choose, module)
        elif kind in _BASES and not module._forward_pre_hooks:
            module.register_forward_pre_hook(without_mask, with_kwargs=True)


class _Cache:
    """Stands for the library's in an indexer."""

    def __init__(self, keep: Callable[[Any], Any]) -> None:
        self._keep = keep

    def update_indexer(self, keys: Any, layer: int) -> Any:
        """All keys [1, K, width] of the text whose new ones are `keys` [1, S, width]."""
        return self._keep(keys[0])[None]


def _choose(self: Any, hidden_states: Any, q_resid: Any, position_embeddings: Any, *others: Any, **known: Any) -> Any:
    def choose(rows: Any, keep: Callable[[Any], Any], seen: Any) -> Any:
        angles = tuple(x[:, rows] for x in position_embeddings)
        cache, inner = _Cache(keep), type(self).forward
        return inner(self, hidden_states[:, rows], q_resid[:, rows], angles, seen[None], None, cache)[0]

    if trial.recorder is not None:
        return trial.recorder.index(self, self.head_dim, hidden_states.shape[1], choose)
    state = self.__dict__
    return state[STORE].choose(state[LAYER], choose)


def attention(layer: Layer, query: Any, keys: Any, values: Any, chosen: Any, seen: Any) -> Any:
    """Attention of `query` [S, heads, head_dim] to the `chosen` [S, count] ones of `keys` and `values` [K, heads,
    width] that `seen` [S, K] allows: [S, heads, width]."""
    shown = torch.zeros_like(seen).scatter(1, chosen.long(), True) & seen
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys.float()) * layer.scale
    weights = scores.masked_fill(~shown, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values.float()).to(query.dtype)


def causal(rows: int, keys: int, device: Any) -> Any:
    """Which of a text's `keys` its last `rows` tokens see, bool [rows, keys]."""
    return torch.ones((rows, keys), dtype=torch.bool, device=device).tril(keys - rows)


class SparseStore(PagedStore):
    """A pool of blocks, also with the keys of indexers. Steps read their lengths on the host.

    Among keys with equal scores, such as several 0, which are chosen may depend on the number of keys, as in the
    library.
    """

    def parts(self) -> list[tuple[slice, Any]]:
        """The rows of each text of the step, and the lines of its keys in the pool."""
        assert self._step is not None
        batch, size, made = self._step.batch, self._block_size, []
        ends, before = batch.cu_seqlens_q.tolist(), batch.seq_lens_decoder.tolist()
        for slot, (start, end) in enumerate(pairwise(ends)):
            end = min(end, len(self._step.line))
            if end > start:
                table = batch.block_tables[slot].long().clamp(0, len(self.pool[0]) - 1)
                at = torch.arange(max(before[slot], 0) + end - start, device=table.device).clamp(
                    max=len(table) * size - 1
                )
                made.append((slice(start, end), table[at // size] * (2 * size) + at % size))
        return made

    def choose(self, layer: Layer, choose: Choose) -> list[Any]:
        """For each text of the step, the keys that an indexer chooses for its rows."""
        assert self._step is not None
        step, lines, found = self._step, self.pool[layer.index].view(-1, layer.head_dim), list[Any]()
        for rows, context in self.parts():

            def keep(keys: Any, rows: Any = rows, context: Any = context) -> Any:
                self.write(layer, step.line[rows], keys[:, None], keys[:, None])
                return lines[context]

            found.append(choose(rows, keep, causal(rows.stop - rows.start, len(context), lines.device)))
        return found

    def attend_chosen(self, layer: Layer, query: Any, key: Any, value: Any, chosen: Sequence[Any]) -> Any:
        """As Store.attend, to the `chosen` keys of each text."""
        assert self._step is not None
        self.write(layer, self._step.line, key, value)
        lines = self.pool[layer.index].view(-1, layer.kv_heads, layer.head_dim)
        out = query.new_zeros((*query.shape[:2], layer.value_dim))
        for (rows, context), mine in zip(self.parts(), chosen, strict=True):
            seen = causal(rows.stop - rows.start, len(context), query.device)
            values = lines[context + self._block_size][..., : layer.value_dim]
            out[rows] = attention(layer, query[rows], lines[context], values, mine, seen)
        return out


class SlotStore(SparseStore):
    """The same on a host, with blocks for all positions of each slot."""

    def __init__(self, layers: Sequence[Layer], slots: int, positions: int, dtype: Any) -> None:
        width = -(-positions // _BLOCK)
        super().__init__(layers, slots * width, _BLOCK, dtype=dtype, device="cpu")
        at = torch.arange(width * _BLOCK)
        self._lines = torch.arange(slots)[:, None] * (width * 2 * _BLOCK) + at // _BLOCK * (2 * _BLOCK) + at % _BLOCK
        self._parts: list[tuple[slice, Any]] = []

    def reserve(self, slot: int, positions: int) -> None:
        """See HostAttention: all positions have room."""

    def begin(self, segments: Sequence[Segment], first: int, rows: int) -> None:  # type: ignore[override]
        """See HostAttention."""
        line = torch.full((rows,), (len(self.pool[0]) - 1) * 2 * _BLOCK)
        self._parts = []
        for one in segments:
            mine, end = slice(one.start - first, one.start - first + one.length), one.position + one.length
            line[mine] = self._lines[one.slot, one.position : end]
            self._parts.append((mine, self._lines[one.slot, :end]))
        batch: Any = None
        self._step = Placed(batch, None, None, line)

    def parts(self) -> list[tuple[slice, Any]]:
        """See SparseStore."""
        return self._parts
