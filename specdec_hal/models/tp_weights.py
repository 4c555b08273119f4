"""A rank's part of a checkpoint, after Shoeybi et al. (Megatron-LM, arXiv:1909.08053).

Q, K, V, gate and up are split by outputs, so that a rank has whole heads; projections back to the residual are split by
inputs and summed over the ranks. With fewer KV heads than ranks, several ranks hold the same one. The head is split by
outputs, a range of the vocabulary per rank. Embedding, norms and the projections of an MTP module are whole everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import numpy as np

from specdec_hal.backends.reference.primitives import vocabulary_part
from specdec_hal.errors import ArgumentError
from specdec_hal.models.batch import refused
from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.weights import EMBEDDING, HEAD, Slices

_WHOLE = slice(None)
_QUERIES = ("q_proj", "o_proj")
_KEYS = ("k_proj", "v_proj")
_BY_INPUTS = ("o_proj", "down_proj")
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")


class WeightsPart:
    """One rank's part of a checkpoint's weights, stored [out, in].

    `config`: of the rank's decoder. ArgumentError for indivisible sizes.
    """

    def __init__(self, config: LlamaConfig, rank: int, size: int) -> None:
        self._vocabulary, self._tied = config.vocab_size, config.tie_word_embeddings
        self._rank, self._size = rank, size
        kv_heads = config.num_key_value_heads
        if size % kv_heads and kv_heads % size:
            raise indivisible("a divisor or a multiple", "num_key_value_heads", kv_heads, size)
        for name in ("num_attention_heads", "intermediate_size"):
            if (count := getattr(config, name)) % size:
                raise indivisible("a divisor", name, count, size)
        self.config = replace(
            config,
            num_attention_heads=config.num_attention_heads // size,
            num_key_value_heads=max(kv_heads // size, 1),
            intermediate_size=config.intermediate_size // size,
            tie_word_embeddings=False,
        )
        self._first_kv_head = rank * kv_heads // size

    def slices(self, name: str) -> Slices:
        """This rank's part of a weight; all of the head (see :meth:`cut_head`)."""
        config, kind = self.config, name.split(".")[-2]
        if kind in _QUERIES:
            mine = self._nth(self._rank, config.num_attention_heads * config.head_dim)
        elif kind in _KEYS:
            width = config.num_key_value_heads * config.head_dim
            mine = slice(start := self._first_kv_head * config.head_dim, start + width)
        elif kind in _FEED_FORWARD:
            mine = self._nth(self._rank, config.intermediate_size)
        else:
            return (_WHOLE,)
        return (_WHOLE, mine) if kind in _BY_INPUTS else (mine,)

    def shard(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """This rank's part of whole weights, head included."""
        mine = {name: weight[self.slices(name)] for name, weight in weights.items()}
        self.cut_head(mine)
        return mine

    def cut_head(self, weights: MutableMapping[str, Any]) -> None:
        """Replace the head (NumPy or PyTorch) by this rank's rows, padded to the same number on all ranks."""
        width = vocabulary_part(self._vocabulary, self._size)
        mine = weights[EMBEDDING if self._tied else HEAD][self._nth(self._rank, width)]
        missing = width - len(mine)
        if isinstance(mine, np.ndarray):
            weights[HEAD] = np.pad(mine, ((0, missing), (0, 0)))
        else:
            from torch.nn.functional import pad

            weights[HEAD] = pad(mine, (0, 0, 0, missing))

    @staticmethod
    def _nth(rank: int, width: int) -> slice:
        return slice(rank * width, (rank + 1) * width)


def indivisible(relation: str, name: str, count: int, size: int) -> ArgumentError:
    """The error of sizes that cannot be divided among ranks."""
    expected, hint = f"{relation} of {name} = {count}", "lower engine.tensor_parallel"
    return refused("torch", "load_model", "tensor_parallel", expected, size, hint)
