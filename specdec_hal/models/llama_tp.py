"""The PyTorch decoder over a group of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.layout import arrange
from specdec_hal.models.llama_torch import LlamaTorch
from specdec_hal.models.rows import RowSizes
from specdec_hal.models.tp_weights import WeightsPart
from specdec_hal.tensors.group import Group


class TensorParallelLlama(LlamaTorch):
    """One rank of it: hidden states and logits are whole, and of the same bits on every rank.

    Sums over ranks are gathered and added in the order of ranks. So a token's bits do not depend on the batch or on a
    library's reduction, only on the number of ranks.
    """

    is_partial: ClassVar[bool] = True

    def __init__(self, config: LlamaConfig, weights: Mapping[str, Any], *, group: Group, **options: Any) -> None:
        """`weights`: the whole checkpoint's, by name."""
        self._group = group
        part = WeightsPart(config, group.rank, group.size)
        super().__init__(part.config, arrange(part.shard(weights), part.config), **options)

    def compute_logits(self, hidden: Any) -> Any:
        """See TargetModel.compute_logits."""
        with self._inference():
            parts = self._group.gather(super().compute_logits(hidden))
            return parts.transpose(0, 1).flatten(1)[:, : self.config.vocab_size].contiguous()

    def _whole(self, partial: Any) -> Any:
        first, *others = self._group.gather(partial)
        for part in others:
            first += part
        return first

    def _agreed(self, sizes: RowSizes) -> RowSizes:
        return RowSizes(set.intersection(*map(set, self._group.gather_objects(sizes.sizes))))
