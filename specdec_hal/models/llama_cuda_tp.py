"""The decoder for CUDA GPUs over a group of ranks, one per GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.llama_cuda import LlamaCuda, load
from specdec_hal.models.tp_weights import WeightsPart
from specdec_hal.models.triton_kernels.launcher import Launcher, RankParts
from specdec_hal.models.triton_kernels.ranks import meeting_cells
from specdec_hal.plugin.model import ModelCapabilities
from specdec_hal.tensors.group import Group, Shared


class Exchange:
    """How ranks exchange results: in memory that all kernels can access, or by gathers.

    Kernels read only valid rows. A buffer is reused only after all ranks have reached the next exchange and so have
    read it; hence names alternate. All ranks make the same calls in the same order.
    """

    def __init__(self, group: Group, launcher: Launcher) -> None:
        self.group, self._launcher = group, launcher
        cells = group.share(meeting_cells(group.size), torch.int32, stops=True) if group.size > 1 else None
        self._cells = None if cells is None else cells.places
        self._held: dict[str, Shared] = {}
        self._outgrown: list[Shared] = []

    def take(self, name: str, shape: tuple[int, int], dtype: Any) -> Any:
        """Memory for this rank's part, as :meth:`Arena.take` gives it."""
        if self._cells is None:
            return self._launcher.arena.take(name, shape, dtype)
        size, held = shape[0] * shape[1], self._held.get(name)
        if held is None or len(held.mine) < size:
            self._launcher.arena.refuse_in_capture(name, shape)
            self._outgrown += [] if held is None else [held]
            held = self.group.share(size, dtype)
            assert held is not None  # the cells were shared
            self._held[name] = held
        return held.mine[:size].view(*shape)

    def parts(self, name: str, mine: Any) -> RankParts:
        """All ranks' parts; `mine` comes from :meth:`take` and was filled by an earlier launch."""
        rank, size = self.group.rank, self.group.size
        if self._cells is None:
            return RankParts(self.group.gather(mine), None, rank, size)
        return RankParts(self._held[name].places, self._cells, rank, size)


class TensorParallelLlamaCuda(LlamaCuda):
    """One rank of it: hidden states and logits are whole, and of the same bits on every rank.

    What a rank adds to the residual is rounded to the weights' dtype; a kernel adds it in the order of ranks, in
    float32, rounded once, and normalises. So a token's bits do not depend on the batch; a library's reduction would
    choose its order by message size. The kernel reads other GPUs' memory directly if possible, else the parts are
    gathered.

    A step is captured where the group can be (:attr:`Group.capturable`).
    """

    def __init__(self, part: WeightsPart, weights: dict[str, Any], *, group: Group, **options: Any) -> None:
        """`weights`: this rank's of the layers, by name, and the whole head."""
        part.cut_head(weights)
        super().__init__(part.config, weights, **options)
        self.exchange = Exchange(group, self.launcher)
        self._turn = 0

    @property
    def capabilities(self) -> ModelCapabilities:
        """As without ranks, if the group can be captured."""
        return replace(super().capabilities, static_shapes=self.exchange.group.capturable)

    def _add_norm(self, x: Any, weight: Any, residual: Any, norm: Any, out: Any, count: Any) -> None:
        self._turn ^= 1  # twice a layer, so that captured steps alternate too
        name = f"summand {self._turn}"
        partial = self.exchange.take(name, tuple(residual.shape), self.dtype)
        self.launcher.linear(x, weight, partial, count)
        parts = self.exchange.parts(name, partial)
        self.launcher.sum_norm(parts, residual, residual, count, weight=norm, out=out, epsilon=self.config.rms_norm_eps)

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceModel.compute_logits_device. Rows from `num_rows` on are undefined."""
        mine = self.exchange.take("logits", (len(hidden), len(self._head)), torch.float32)
        self.launcher.linear(hidden, self._head, mine, num_rows)
        parts = self.exchange.parts("logits", mine)
        width = len(self._head)
        if parts.shared:
            return self.launcher.gather_columns(parts, width, out, num_rows)
        for rank, part in enumerate(parts.parts):
            columns = out[:, rank * width : (rank + 1) * width]
            columns.copy_(part[:, : columns.shape[1]])

    def compute_logits_part_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """The first of this rank's columns of the logits, as many as `out` [R, W] has, by the same product."""
        mine = self.launcher.arena.take("logits", (len(hidden), len(self._head)), torch.float32)
        self.launcher.linear(hidden, self._head, mine, num_rows)
        out.copy_(mine[:, : out.shape[1]])


def load_part(path: str | Path, config: LlamaConfig, *, group: Group, **options: Any) -> TensorParallelLlamaCuda:
    """A rank's part of a checkpoint folder's decoder; see :func:`specdec_hal.models.llama_cuda.load`."""
    part = WeightsPart(config, group.rank, group.size)

    def make(whole: LlamaConfig, weights: dict[str, Any], **more: Any) -> TensorParallelLlamaCuda:
        return TensorParallelLlamaCuda(part, weights, group=group, **more)

    model = load(path, config, make=make, part=part.slices, **options)
    assert isinstance(model, TensorParallelLlamaCuda)
    return model
