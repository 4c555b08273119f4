"""Keys and values in a pool of blocks, and attention over it, for models on a GPU and for trials.

Uses Triton's kernel if available, else PyTorch's operators over each slot's whole context.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from specdec_hal.models.attention import Layer, cached
from specdec_hal.plugin.model import DeviceBatch


def on_torch(batch: DeviceBatch) -> DeviceBatch:
    """A batch as PyTorch tensors; on a CPU its arrays may be NumPy's."""
    return replace(
        batch, **{name: torch.as_tensor(value) for name, value in vars(batch).items() if not isinstance(value, int)}
    )


@dataclass(frozen=True)
class Placed:
    """A batch, and for each row: its slot, its position, and the line of the pool where its key goes."""

    batch: DeviceBatch
    slot: Any
    position: Any
    line: Any


class PagedStore:
    """Per index of layers [num_blocks + 1, 2, block_size, kv_heads, head_dim]; rows without a block go to the last one.

    `launcher`: of Triton's kernels, or None. Nothing is read on the host; calls follow each other on one stream.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        num_blocks: int,
        block_size: int,
        *,
        dtype: Any,
        device: Any,
        launcher: Any = None,
    ) -> None:
        self._block_size, self._launcher, self._dtype = block_size, launcher, dtype
        # Zeros: masked values get weight 0, and 0 times NaN is NaN.
        self.pool = [
            torch.zeros((num_blocks + 1, 2, block_size, layer.kv_heads, layer.head_dim), dtype=dtype, device=device)
            for layer in cached(layers)
        ]
        self._step: Placed | None = None

    def begin(self, batch: DeviceBatch, vocab_size: int = 0) -> tuple[Any, Any]:
        """Take a batch of tensors of this device; each row's id, 0 for one outside the vocabulary, and position.

        In the tail positions are 0. A batch without ids has none.
        """
        if self._launcher is not None:
            self._launcher.pending = None  # of a step that failed
        if self._launcher is not None and batch.token_ids is not None:
            # Kept buffers: while kernels are only compiled, they hold ids and positions that operators can read.
            take, shape = self._launcher.arena.take, (len(batch.batch_id_per_token),)
            ids, position = (take(name, shape, torch.int64) for name in ("ids", "positions"))
            self._step = self._by_kernel(batch, vocab_size, ids, position)
            return ids, position
        ids = None
        if batch.token_ids is not None:  # drafts of a stopped slot may be invalid tokens
            ids = batch.token_ids.flatten()
            ids = torch.where((ids >= 0) & (ids < vocab_size), ids, 0)
        self._step = self.place(batch)
        return ids, self._step.position

    def place(self, batch: DeviceBatch) -> Placed:
        """Where the rows of a batch are."""
        if self._launcher is not None and batch.token_ids is not None:
            ids, position = torch.zeros(
                (2, len(batch.batch_id_per_token)), dtype=torch.int64, device=batch.token_ids.device
            )
            return self._by_kernel(batch, 0, ids, position)
        slot, size, dead = batch.batch_id_per_token.long(), self._block_size, len(self.pool[0]) - 1
        real, slot = slot >= 0, slot.clamp(min=0)
        row = torch.arange(len(slot), device=slot.device)
        position = batch.seq_lens_decoder[slot].long() + row - batch.cu_seqlens_q[slot]
        width = batch.block_tables.shape[1]
        inside = real & (position >= 0) & (position < min(width * size, batch.max_seq_len))
        position = torch.where(inside, position, 0)
        block = batch.block_tables[slot, position // size].long()
        inside &= (block >= 0) & (block < dead)
        block = torch.where(inside, block, dead)
        line = block * (2 * size) + position % size
        return Placed(batch, slot, position, line)

    def _by_kernel(self, batch: DeviceBatch, vocab_size: int, ids: Any, position: Any) -> Placed:
        """Write the rows' ids and positions; where they belong, without their slots."""
        line = torch.empty_like(position)
        self._launcher.places(batch, ids, position, line, len(self.pool[0]) - 1, self._block_size, vocab_size)
        return Placed(batch, None, position, line)

    def attend(self, layer: Layer, query: Any, key: Any, value: Any, sinks: Any | None, bias: Any | None = None) -> Any:
        """See Store.attend."""
        assert self._step is not None
        step, narrower = self._step, layer.head_dim - layer.value_dim
        due = None
        if self._launcher is not None:
            due, self._launcher.pending = self._launcher.pending, None
        if due is None:
            self.write(layer, step.line, key, value)
        else:
            pool, value = self.pool[layer.index], value if value.stride(-1) == 1 else value.contiguous()
            query = torch.empty(query.shape, dtype=self._dtype, device=query.device)
            self._launcher.rotate(
                due.q, due.k, due.cos[0], due.sin[0], query, pool, norms=due.norms, value=value, lines=step.line,
                positions=due.positions, dims=due.dims,
            )  # fmt: skip
        out = self.look(layer, step, query, sinks, bias)
        return out[..., : layer.value_dim] if narrower else out

    def write(self, layer: Layer, line: Any, key: Any, value: Any) -> None:
        """Keep keys and values [T, kv_heads, head_dim] at lines of the pool; narrower values get zeros."""
        if self._launcher is not None:
            key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (key, value))
            self._launcher.store(key, value, self.pool[layer.index], line)
            return
        lines = self.pool[layer.index].view(-1, layer.kv_heads, layer.head_dim)
        lines.index_copy_(0, line, key.to(self._dtype))
        value = torch.nn.functional.pad(value, (0, layer.head_dim - layer.value_dim))
        lines.index_copy_(0, line + self._block_size, value.to(self._dtype))

    def look(self, layer: Layer, step: Placed, query: Any, sinks: Any | None = None, bias: Any | None = None) -> Any:
        """Attention of queries [T, heads, head_dim] to the cache: [T, heads, head_dim]."""
        pool, query = self.pool[layer.index], query.to(self._dtype)
        if self._launcher is not None:
            return self._by_triton(layer, query, pool, step.batch, sinks, bias)
        return self._by_torch(layer, query, pool, step, sinks, bias)

    def _by_triton(
        self, layer: Layer, query: Any, pool: Any, batch: DeviceBatch, sinks: Any | None, bias: Any | None
    ) -> Any:
        from specdec_hal.models.triton_kernels.launcher import Heads

        query = query.contiguous()
        # The kernel skips rows of the tail, which keep old values or zeros.
        out = self._launcher.arena.take("attended", query.shape, query.dtype)
        self._launcher.attention(
            query, out, pool, batch, Heads(layer.heads, layer.kv_heads, layer.head_dim),
            scale=layer.scale, window=layer.window, softcap=layer.softcap, sinks=sinks, causal=layer.causal,
            anchored=layer.anchored, chunked=layer.chunked, bias=bias,
        )  # fmt: skip
        return out

    def _by_torch(self, layer: Layer, query: Any, pool: Any, step: Placed, sinks: Any | None, bias: Any | None) -> Any:
        """Each slot's queries, padded to the most that one may have, with its whole context."""
        batch, size, group = step.batch, self._block_size, layer.heads // layer.kv_heads
        slots, rows = len(batch.cu_seqlens_q) - 1, len(query)
        most = min(batch.max_query_len, rows)
        starts = batch.cu_seqlens_q[:-1].long()
        # Queries by slot: [slots, most, heads, head_dim].
        index = (starts[:, None] + torch.arange(most, device=query.device)).clamp(max=rows - 1)
        queries = query[index].unflatten(2, (layer.kv_heads, group)).float()
        blocks = -(-batch.max_seq_len // size)
        tables = batch.block_tables[:slots, :blocks].long().clamp(0, len(pool) - 1)
        keys, values = (pool[tables, i].flatten(1, 2).float() for i in (0, 1))  # [slots, context, kv_heads, head_dim]
        scores = torch.einsum("bqhgd,bkhd->bhgqk", queries, keys) * layer.scale
        if layer.softcap:
            scores = layer.softcap * torch.tanh(scores / layer.softcap)
        at = torch.arange(keys.shape[1], device=query.device)
        first = batch.seq_lens_decoder[:slots, None, None].long()
        positions = first + torch.arange(most, device=query.device)[:, None]
        if bias is not None:
            of_keys, last = bias.unflatten(0, (layer.kv_heads, group)), bias.shape[1] - 1
            own = of_keys[..., positions[..., 0].clamp(max=last)].permute(2, 0, 1, 3)
            scores = scores + (of_keys[:, :, None, at.clamp(max=last)] - own[..., None])
        seen = at <= (positions if layer.causal else first + batch.cu_seqlens_q.diff()[:, None, None] - 1)
        if layer.window and layer.anchored:
            seen = seen & (at >= first - layer.window)
        elif layer.window and layer.chunked:
            seen = seen & (at >= positions // layer.window * layer.window)
        elif layer.window:
            near = at > positions - layer.window
            seen = seen & (near if layer.causal else near & (at < positions + layer.window))
        seen = seen.expand(slots, most, len(at))
        scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
        scores = scores.masked_fill(~seen.any(-1)[:, None, None, :, None], 0.0)  # of padding: anything but NaN
        if sinks is not None:
            sink = sinks.float().view(1, layer.kv_heads, group, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sink], -1)
        weights = scores.softmax(-1)[..., : keys.shape[1]]
        out = torch.einsum("bhgqk,bkhd->bqhgd", weights, values).flatten(2, 3)
        row = (torch.arange(rows, device=query.device) - starts[step.slot]).clamp(0, most - 1)
        return out[step.slot, row].to(self._dtype)


def launchers(device: Any, pdl_rows: int | None = None) -> Callable[[Any], Any] | None:
    """Triton's kernels on a GPU, by dtype; None without Triton. `pdl_rows`: see Launcher."""
    if importlib.util.find_spec("triton") is None:
        return None
    from specdec_hal.models.triton_kernels.launcher import Launcher

    return partial(Launcher, device, pdl_rows=pdl_rows)
