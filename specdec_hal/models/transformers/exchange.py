"""Sums and logits over ranks by Triton's kernels, in memory that all ranks' kernels read where there is such.

A rank's part of a sum is rounded to the weights' dtype; a kernel adds the parts in the order of ranks, with the
residual, in float32, rounded once, and computes the norm that follows. So a token's bits do not depend on its batch; a
library's reduction would choose its order by message size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from specdec_hal.models.transformers.tensor_parallel import Gathered, Summed
from specdec_hal.models.triton_kernels.launcher import Launcher, RankParts
from specdec_hal.models.triton_kernels.ranks import meeting_cells
from specdec_hal.tensors.group import Group, Shared


class Alone:
    """A group without communication, of the same size: each rank uses its own tensors instead of the others'.

    `device`: of its shared memory; None: there is none.
    """

    capturable = True

    def __init__(self, group: Group, device: Any | None = None) -> None:
        self.rank, self.size, self._device = group.rank, group.size, device

    def gather(self, tensor: Any) -> Any:
        """See Group.gather."""
        return tensor.expand(self.size, *tensor.shape).contiguous()

    def gather_objects(self, value: Any) -> list[Any]:
        """See Group.gather_objects."""
        return [value] * self.size

    def share(self, count: int, dtype: Any, *, stops: bool = False) -> Shared | None:
        """See Group.share."""
        if self._device is None:
            return None
        mine = torch.zeros(count, dtype=dtype, device=self._device)
        return Shared(mine, torch.full((self.size,), mine.data_ptr(), device=self._device))


class Exchange:
    """How ranks exchange results: in memory that all kernels can access, or by gathers.

    Kernels read only valid rows. A buffer is written again only after all ranks have read it. A rank that reaches the
    next exchange has, so layers' buffers alternate, with a barrier if one layer is called twice, as in trials. Logits
    may follow logits, so their kernel ends only after all reads. All ranks make the same calls in the same order.
    """

    def __init__(self, group: Group, launcher: Launcher) -> None:
        self.group, self.launcher = group, launcher
        cells = group.share(meeting_cells(group.size), torch.int32, stops=True) if group.size > 1 else None
        self._cells = None if cells is None else cells.places
        self._held: dict[str, Shared] = {}
        self._last = ""
        """The buffer of the last sum that was launched or captured."""
        self._outgrown: list[Shared] = []

    def alone(self) -> Exchange:
        """One of the same launches that exchanges nothing, for launches that are only recorded."""
        return Exchange(Alone(self.group, None if self._cells is None else self._cells.device), self.launcher)

    def take(self, name: str, shape: tuple[int, int], dtype: Any) -> Any:
        """Memory for this rank's part, as :meth:`Arena.take` gives it."""
        if self._cells is None:
            return self.launcher.arena.take(name, shape, dtype)
        size, held = shape[0] * shape[1], self._held.get(name)
        if held is None or len(held.mine) < size:
            self.launcher.arena.refuse_in_capture(name, shape)
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

    def add(self, name: str, layer: Summed, x: Any, residual: Any | None) -> Any:
        """All ranks' products of x [.., in] and `residual`; see :attr:`Summed.exchange`."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        if self._cells is not None and name == self._last:
            self.launcher.barrier(self._cells, self.group.rank, self.group.size)
        self._last = name
        mine = self.take(name, (len(rows), len(layer.part.weight)), x.dtype)
        self.launcher.linear(rows, layer.part.weight, mine, self.launcher.used_of_tiles(len(rows)))
        total, norm = torch.empty_like(mine, memory_format=torch.contiguous_format), layer.norm
        onto = None if residual is None else residual.reshape(total.shape).contiguous()
        shape, count = (*x.shape[:-1], -1), self.launcher.used(len(rows))
        if norm is None:
            self.launcher.sum_norm(self.parts(name, mine), onto, total, count)
            return total.view(shape)
        out = torch.empty_like(total)
        self.launcher.sum_norm(
            self.parts(name, mine), onto, total, count, weight=norm.weight, out=out, epsilon=norm.epsilon
        )
        total = total.view(shape)
        norm.ready = total, out.view(shape)
        return total

    def logits(self, head: Gathered, hidden: Any, out: Any, num_rows: Any | None) -> None:
        """All ranks' columns for rows [R, D] into `out` [R, V]. Rows from `num_rows` on are undefined."""
        weight, bias = head.part.weight, head.part.bias
        mine = self.take("logits", (len(hidden), len(weight)), torch.float32)
        self.launcher.linear(hidden, weight, mine, num_rows, bias=bias)
        parts, width = self.parts("logits", mine), len(weight)
        if parts.shared:
            return self.launcher.gather_columns(parts, width, out, num_rows)
        for rank, part in enumerate(parts.parts):
            columns = out[:, rank * width : (rank + 1) * width]
            columns.copy_(part[:, : columns.shape[1]])


def connect(model: Any, exchange: Exchange, run: Callable[[], Any]) -> None:
    """Let all sums of linear layers go through it; `run`: a pass, in whose order buffers alternate."""
    order: list[Summed] = []
    sums = [module for module in model.modules() if isinstance(module, Summed) and module.bias is None]
    hooks = [module.register_forward_pre_hook(lambda layer, args: order.append(layer)) for module in sums]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    for i, layer in enumerate(order):
        last = i == len(order) - 1 and not i % 2  # before the first one of the next pass
        layer.exchange = partial(exchange.add, f"summand {2 if last else i % 2}")
