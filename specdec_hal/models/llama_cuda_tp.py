"""The decoder for CUDA GPUs over a group of ranks, each on a GPU of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.llama_cuda import LlamaCuda, load
from specdec_hal.models.tp_weights import WeightsPart
from specdec_hal.plugin.model import ModelCapabilities
from specdec_hal.tensors.group import Group


class TensorParallelLlamaCuda(LlamaCuda):
    """One rank of it: hidden states and logits are whole, and of the same bits on every rank.

    What a rank adds to the residual is gathered in the weights' dtype; a kernel adds it in the order of ranks, in
    float32, rounded once, and normalises. So a token's bits do not depend on the batch, as a reduction's would, whose
    order a library chooses by the size of the message. Between two GPUs a gather moves as many bytes as a reduction.

    A layer is nine launches, two of them gathers. A step is captured where the group can be (:attr:`Group.capturable`).
    """

    def __init__(self, part: WeightsPart, weights: dict[str, Any], *, group: Group, **options: Any) -> None:
        """`weights`: this rank's of the layers, by name, and the whole head."""
        self._group = group
        part.cut_head(weights)
        super().__init__(part.config, weights, **options)

    @property
    def capabilities(self) -> ModelCapabilities:
        """As without ranks, if the group can be captured."""
        return replace(super().capabilities, static_shapes=self._group.capturable)

    def _add_norm(self, x: Any, weight: Any, residual: Any, norm: Any, out: Any, count: Any) -> None:
        partial = self.rows("summand", len(residual))
        self.launcher.linear(x, weight, partial, count)
        parts = self._group.gather(partial)
        self.launcher.sum_norm(parts, residual, norm, out, count, self.config.rms_norm_eps)

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceModel.compute_logits_device: gathered. Rows from `num_rows` on are undefined."""
        parts = self._group.gather(self._my_logits(hidden, num_rows))
        first, width = 0, parts.shape[2]
        for part in parts:
            columns = out[:, first : first + width]
            columns.copy_(part[:, : columns.shape[1]])
            first += width

    def compute_logits_part_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """The first of this rank's columns of the logits, as many as `out` [R, W] has."""
        out.copy_(self._my_logits(hidden, num_rows)[:, : out.shape[1]])

    def _my_logits(self, hidden: Any, num_rows: Any | None) -> Any:
        """This rank's columns, as many as every rank has. Always one product, so that its bits are the same."""
        mine = self.launcher.arena.take("logits", (len(hidden), len(self._head)), torch.float32)
        self.launcher.linear(hidden, self._head, mine, num_rows)
        return mine


def load_part(path: str | Path, config: LlamaConfig, *, group: Group, **options: Any) -> TensorParallelLlamaCuda:
    """A rank's part of a checkpoint folder's decoder; see :func:`specdec_hal.models.llama_cuda.load`."""
    part = WeightsPart(config, group.rank, group.size)

    def make(whole: LlamaConfig, weights: dict[str, Any], **more: Any) -> TensorParallelLlamaCuda:
        return TensorParallelLlamaCuda(part, weights, group=group, **more)

    model = load(path, config, make=make, part=part.slices, **options)
    assert isinstance(model, TensorParallelLlamaCuda)
    return model
