"""Drives a model's device interface with slots whose positions lie in shuffled blocks of a pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch

POISON = float("nan")


class Paged:
    """`slots` slots of up to `length` positions; the pool starts as NaN, and blocks lie in it in random order."""

    def __init__(self, model: Any, slots: int, length: int, block_size: int = 16, seed: int = 0) -> None:
        self.model, self.slots, self.length = model, slots, length
        self.width = -(-length // block_size)
        model.allocate_blocks(slots * self.width + 3, block_size, max_model_len=self.width * block_size)
        for layer in model.pool_layers():
            layer.fill_(POISON)
        order = np.random.default_rng(seed).permutation(slots * self.width)
        self.block_tables = self.tensor(order.reshape(slots, self.width), torch.int32)

    def tensor(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values)).to(self.model.device, dtype)

    def batch(
        self, parts: dict[int, tuple[int, npt.ArrayLike]], slots: int | None = None, padding: int = 0,
        max_seq_len: int | None = None, max_query_len: int | None = None,
    ) -> DeviceBatch:  # fmt: skip
        """`parts`: position and token ids by slot; the other of the first `slots` slots are idle."""
        slots = self.slots if slots is None else slots
        ids: list[int] = []
        owner: list[int] = []
        offsets, before = [0], np.full(self.slots, 7)
        for slot in range(slots):
            position, tokens = parts.get(slot, (7, []))
            tokens = np.asarray(tokens).tolist()
            ids += tokens
            owner += [slot] * len(tokens)
            offsets.append(len(ids))
            before[slot] = position
        lengths = [len(np.asarray(tokens)) for _, tokens in parts.values()]
        ends = [position + len(np.asarray(tokens)) for position, tokens in parts.values()]
        return DeviceBatch(
            token_ids=self.tensor(ids + [0] * padding, torch.int64),
            batch_id_per_token=self.tensor(owner + [-1] * padding, torch.int32),
            cu_seqlens_q=self.tensor(offsets, torch.int32),
            seq_lens_decoder=self.tensor(before, torch.int32),
            block_tables=self.block_tables,
            max_seq_len=max(ends) if max_seq_len is None else max_seq_len,
            max_query_len=max(lengths) if max_query_len is None else max_query_len,
        )

    def step(self, parts: dict[int, tuple[int, npt.ArrayLike]], **options: Any) -> dict[int, torch.Tensor]:
        """Logits [n, V] of each slot's tokens."""
        batch = self.batch(parts, **options)
        config, rows = self.model.config, len(batch.token_ids)
        hidden = torch.full((rows, config.hidden_size), POISON, dtype=self.model.dtype, device=self.model.device)
        logits = torch.full((rows, config.vocab_size), POISON, dtype=torch.float32, device=self.model.device)
        self.model.forward_device(batch, {FINAL_NORM: hidden})
        self.model.compute_logits_device(hidden, logits, batch.cu_seqlens_q[-1:])
        offsets = batch.cu_seqlens_q.tolist()
        return {slot: logits[offsets[slot] : offsets[slot + 1]].clone() for slot in parts}
