"""A model of `paddleformers` over a pool of KV blocks: for GPUs.

The host reads the lengths of a step, so it is launched operator by operator, and no step is captured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specdec_hal.models.batch import check_positive, no_cache
from specdec_hal.models.mtp import HostMTP
from specdec_hal.models.paddle_attention import PagedStore
from specdec_hal.models.paddleformers.model import PaddleFormers
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ModelCapabilities, Segment

_BLOCK_SIZE = 64  # where the host interface makes the pool


class _Slots:
    """A pool in which each slot has blocks of its own, in the interface of HostStore."""

    def __init__(self, store: PagedStore, block_tables: Any) -> None:
        self._store, self._tables = store, block_tables

    def reserve(self, slot: int, positions: int) -> None:
        """Nothing grows."""

    def begin(self, segments: Sequence[Segment], first: int, rows: int) -> None:
        """See HostStore. Rows after the last segment are a text of their own in the last slot."""
        own = [replace(one, start=one.start - first) for one in segments]
        done = own[-1].start + own[-1].length
        if rows > done:
            own.append(Segment(len(self._tables) - 1, done, rows - done, 0))
        self._store.begin(own, self._tables)


class DevicePaddleFormers(PaddleFormers):
    """See :class:`specdec_hal.plugin.model.DeviceModel`. On a CPU batches may be NumPy arrays."""

    _paged: PagedStore | None = None

    @property
    def capabilities(self) -> ModelCapabilities:
        """See PaddleFormers; batches may be on the device."""
        dtype = str(self._decoder.dtype).rpartition(".")[2]
        return replace(super().capabilities, device_lengths=True, hidden_dtype=dtype)

    def bytes_per_block(self, block_size: int) -> int:
        """See DeviceModel.bytes_per_block."""
        width = sum(2 * layer.kv_heads * layer.head_dim for layer in self._decoder.survey.layers)
        return int(block_size * width * self._decoder.embed(self._upload(np.zeros(1, np.int64))).element_size())

    def mtp_bytes_per_block(self, block_size: int) -> int:
        """See MTPModel.mtp_bytes_per_block: those of one layer."""
        return self.bytes_per_block(block_size) // len(self._decoder.survey.layers)

    @property
    def cache_bytes(self) -> int:
        """See DeviceModel.cache_bytes."""
        return 0 if self._paged is None else sum(layer.size * layer.element_size() for layer in self._paged.pool)

    def allocate_blocks(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        """See DeviceModel.allocate_blocks."""
        positions = self.config.max_position_embeddings if max_model_len is None else max_model_len
        check_positive(self.framework, num_blocks=num_blocks, block_size=block_size, max_model_len=positions)
        self._limits = self._paged = None  # freed first: both may not fit
        self._paged = PagedStore(self._decoder.survey.layers, num_blocks, block_size, self._place, self._decoder.dtype)
        self._decoder.serve(self._paged)
        self._blocks = num_blocks, block_size, positions

    def _new_store(self, slots: int, positions: int) -> Any:
        width = -(-positions // _BLOCK_SIZE)
        self.allocate_blocks((slots + 1) * width, _BLOCK_SIZE, positions)
        assert self._paged is not None
        return _Slots(self._paged, np.arange((slots + 1) * width, dtype=np.int32).reshape(slots + 1, width))

    def forward_device(self, batch: DeviceBatch, out: Mapping[int, Any]) -> None:
        """See DeviceModel.forward_device."""
        if self._paged is None:
            raise no_cache(self.framework, "forward_device", "allocate_blocks")
        ends, before, tables, ids = (
            np.asarray(x) for x in (batch.cu_seqlens_q, batch.seq_lens_decoder, batch.block_tables, batch.token_ids)
        )
        segments = [
            Segment(slot, int(ends[slot]), int(ends[slot + 1] - ends[slot]), int(before[slot]))
            for slot in range(len(ends) - 1)
            if ends[slot + 1] > ends[slot]
        ]
        if not segments:
            return
        count = int(ends[-1])
        ids = ids[:count, 0].astype(np.int64)
        ids[(ids < 0) | (ids >= self.config.vocab_size)] = 0  # drafts of a stopped slot may be invalid tokens
        positions = np.concatenate([np.arange(one.position, one.position + one.length) for one in segments])
        positions[positions >= self._blocks[2]] = 0
        self._paged.begin(segments, tables)
        with self._inference():
            hidden = self._decoder.hidden(self._upload(ids), self._upload(positions), out.keys() - {FINAL_NORM})
            for layer, tensor in out.items():
                rows = hidden[layer].astype(self._decoder.dtype)
                tensor[:count] = rows.numpy() if isinstance(tensor, np.ndarray) else rows

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceModel.compute_logits_device."""
        with self._inference():
            logits = self._decoder.logits(self._input(hidden))
            out[:] = logits.numpy() if isinstance(out, np.ndarray) else logits

    def mtp_module(self) -> Any:
        """See MTPModel.mtp_module."""
        served = self._module_model()
        if self._limits is not None:
            served.allocate(self._limits.max_num_seqs, self._limits.max_model_len)
        else:
            served.allocate_blocks(*self._blocks)
        return DeviceMTP(self, served, served._decoder)


class DeviceMTP(HostMTP):
    """See HostMTP, and :class:`specdec_hal.plugin.model.DeviceMTPModule`."""

    def forward_device(self, batch: DeviceBatch, hidden: Any, out: Any) -> None:
        """See DeviceMTPModule.forward_device."""
        self._decoder.of(hidden)
        self._served.forward_device(batch, {FINAL_NORM: out})

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceMTPModule.compute_logits_device."""
        self._model.compute_logits_device(hidden, out, num_rows)
