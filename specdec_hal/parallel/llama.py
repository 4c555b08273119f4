"""The PyTorch decoder over a group of ranks."""

from __future__ import annotations

from typing import Any

import torch

from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.layout import LlamaWeights
from specdec_hal.models.llama_torch import LlamaTorch
from specdec_hal.models.rows import RowSizes
from specdec_hal.parallel.group import Group
from specdec_hal.parallel.weights import part_of_config, part_of_weights


class TensorParallelLlama(LlamaTorch):
    """One rank of it: hidden states and logits are whole, and of the same bits on every rank.

    Sums over ranks are gathered and added in the order of ranks. So a token's bits depend neither on the batch nor on
    how a library would divide the sum, but they do on the number of ranks.
    """

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, *, group: Group, **options: Any) -> None:
        self._group = group
        part = part_of_config(config, group.size)
        super().__init__(part, part_of_weights(weights, config, group.rank, group.size), **options)

    def compute_logits(self, hidden: Any) -> Any:
        """See TargetModel.compute_logits."""
        with self._inference():
            parts = self._group.gather(self.compute_logits_part(hidden))
            return torch.cat(parts, 1)[:, : self.config.vocab_size].contiguous()

    def compute_logits_part(self, hidden: Any) -> Any:
        """This rank's columns of `compute_logits`, as many as every rank has; undefined behind the vocabulary."""
        return super().compute_logits(hidden)

    def _whole(self, partial: Any) -> Any:
        first, *others = self._group.gather(partial)
        total = first.clone()
        for part in others:
            total += part
        return total

    def _agreed(self, sizes: RowSizes) -> RowSizes:
        return RowSizes(set.intersection(*map(set, self._group.gather_objects(sizes.sizes))))
