"""The history models with their tensors on a device."""

from __future__ import annotations

from typing import Any

from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ModelCapabilities
from specdec_hal.tensors.device import get_device
from tests.support.history_model import BY_HISTORY, BY_LAST_TWO, CONTEXT, VOCABULARY, HistoryModel


class UploadingHistoryModel(HistoryModel):
    """Computed on the host; hidden states and logits stand on a GPU."""

    framework = "torch"

    def __init__(self) -> None:
        super().__init__()
        self.device = get_device("cuda:0", self.framework)

    def forward(self, batch: Any) -> Any:
        return {layer: self.device.upload(hidden) for layer, hidden in super().forward(batch).items()}

    def compute_logits(self, hidden: Any) -> Any:
        return self.device.upload(super().compute_logits(self.device.download(hidden)))


class TorchHistoryModel(HistoryModel):
    """Computed on the device over KV blocks; a step can be captured in a graph."""

    framework = "torch"
    capabilities = ModelCapabilities(stable_row_counts=None, device_lengths=True, static_shapes=True)

    def __init__(self, device: str) -> None:
        super().__init__()
        import torch

        self.torch, self.where = torch, device
        self.by_last_two = torch.from_numpy(BY_LAST_TWO).to(device)
        self.by_history = torch.from_numpy(BY_HISTORY).to(device)
        powers = [1]
        for _ in range(CONTEXT):
            powers.append(powers[-1] * 31 % 1_000_003)
        self.powers = torch.tensor(powers, device=device)
        self.positions = torch.arange(CONTEXT, device=device)

    cache_bytes = 0

    def bytes_per_block(self, block_size: int) -> int:
        return 8 * block_size

    def allocate_blocks(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        self.block_size = block_size
        # The last block takes what must not be kept.
        self.blocks = self.torch.full((num_blocks + 1, block_size), -1, device=self.where)

    def forward_device(self, batch: DeviceBatch, out: Any) -> None:
        if self.failures:
            raise self.failures.pop()
        torch = self.torch
        slot, token = torch.as_tensor(batch.batch_id_per_token).long(), torch.as_tensor(batch.token_ids)[:, 0]
        starts, offsets = torch.as_tensor(batch.seq_lens_decoder), torch.as_tensor(batch.cu_seqlens_q)
        real, slot = slot >= 0, slot.clamp(min=0)
        at = torch.arange(len(slot), device=self.where)
        position = starts[slot] + at - offsets[slot]
        position = torch.where(real, position, 0).clamp(0, CONTEXT - 1)
        kept = real & (token >= 0) & (token < VOCABULARY)  # not the drafts of a slot that has stopped
        tables = torch.as_tensor(batch.block_tables).long()
        block = torch.where(kept, tables[slot, position // self.block_size], len(self.blocks) - 1)
        self.blocks[block, position % self.block_size] = token

        seen = self.positions[: batch.max_seq_len]
        texts = self.blocks[tables[:, seen // self.block_size], seen % self.block_size][slot]
        inside = seen <= position[:, None]
        distance = (position[:, None] - seen).clamp(min=0)
        total = ((texts + 1) * self.powers[distance] % 1_000_003 * inside).sum(1) % 1_000_003
        last = texts.gather(1, position[:, None])[:, 0]
        before = torch.where(position > 0, texts.gather(1, (position[:, None] - 1).clamp(min=0))[:, 0], 0)
        recent = (last * 7 + before * 3) % len(self.by_last_two)
        hidden = self.by_last_two[recent] + self.by_history[total % len(self.by_history)]
        missing = ((texts == -1) & inside).any(1)
        given = torch.as_tensor(out[FINAL_NORM])
        given[:, :VOCABULARY] = hidden.masked_fill(missing[:, None], float("nan"))
        given[:, VOCABULARY] = texts[:, 0]

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        self.torch.as_tensor(out).copy_(self.torch.as_tensor(hidden)[:, :VOCABULARY])
