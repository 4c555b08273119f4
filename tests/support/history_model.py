"""A target model that reads its whole KV cache: a stale or missing entry changes the logits or raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ForwardBatch, ModelCapabilities, ModelConfig

VOCABULARY = 24
CONTEXT = 64
END = 0
LONG = 100
"""Added to the tokens in the cache of a text beyond the switch."""
TABLES = np.random.default_rng(5)
BY_LAST_TWO = TABLES.normal(0, 2.5, (13, VOCABULARY)).astype(np.float32)
BY_HISTORY = TABLES.normal(0, 0.1, (997, VOCABULARY)).astype(np.float32)
BY_LAST_TWO[:, END] -= 3


def logits_after(history: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The next token's logits: mostly by the last two tokens (so that texts repeat), a little by everything before."""
    total = 0
    for token in history:
        total = (total * 31 + token + 1) % 1_000_003
    recent = (history[-1] * 7 + (history[-2] if len(history) > 1 else 0) * 3) % len(BY_LAST_TWO)
    logits: np.ndarray[Any, np.dtype[np.float32]] = BY_LAST_TWO[recent] + BY_HISTORY[total % len(BY_HISTORY)]
    return logits


def hidden_after(history: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The logits, and the first token, which an MTP module is not fed."""
    return np.append(logits_after(history), np.float32(history[0]))


class HistoryModel:
    """The protocol's model over :func:`logits_after`."""

    framework = "none"
    config = ModelConfig(
        vocab_size=VOCABULARY, hidden_size=VOCABULARY + 1, max_position_embeddings=CONTEXT, eos_token_ids=(END,),
    )  # fmt: skip

    capabilities = ModelCapabilities(stable_row_counts=None, mtp_modules=1)

    def __init__(self, switch: int | None = None) -> None:
        self.capabilities = replace(self.capabilities, rope_switch=switch)
        self.long = np.zeros(64, np.bool_)
        self.cache: np.ndarray[Any, np.dtype[np.int64]] = np.empty((0, 0), np.int64)
        self.failures: list[Exception] = []
        self.poisoned: set[int] = set()
        """Tokens after which the logits are NaN."""

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        self.cache = np.full((max_num_seqs, max_model_len), -1, np.int64)

    def set_long(self, slot: int, long: bool) -> None:
        self.long[slot] = long

    def forward(self, batch: ForwardBatch) -> dict[int, Any]:
        if self.failures:
            raise self.failures.pop()
        hidden = np.full((len(batch.token_ids), VOCABULARY + 1), np.nan, np.float32)
        for segment in batch.segments:
            stop = segment.position + segment.length
            tokens = batch.token_ids[segment.start : segment.start + segment.length]
            assert ((tokens >= 0) & (tokens < VOCABULARY)).all()
            self.cache[segment.slot, segment.position : stop] = tokens + LONG * self.long[segment.slot]
            for i in range(segment.length):
                history = self.cache[segment.slot, : segment.position + i + 1].tolist()
                assert -1 not in history, "attends to a position that was never written"
                hidden[segment.start + i] = hidden_after(history)
                if history[-1] in self.poisoned:
                    hidden[segment.start + i] = np.nan
        return {FINAL_NORM: hidden}

    def compute_logits(self, hidden: Any) -> Any:
        return np.array(hidden[:, :VOCABULARY])

    def mtp_module(self) -> Any:
        return HistoryMTP(self)


class HistoryMTP:
    """An MTP module that is always right, and insists on the hidden state in front of each token that it is fed."""

    def __init__(self, model: HistoryModel) -> None:
        self.cache = np.full(model.cache.shape, -1, np.int64)
        self.compute_logits = model.compute_logits

    def row(self, state: Any, fed: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """`fed`: the tokens at 1 .. p + 1, `state`: the hidden state of p."""
        assert -1 not in fed, "attends to a position that was never written"
        history = [int(state[-1]), *fed]
        assert (state == hidden_after(history[:-1])).all(), "a hidden state of another text, or another position"
        return hidden_after(history)

    def forward(self, batch: ForwardBatch, hidden: Any) -> Any:
        given = np.empty_like(hidden)
        assert given.shape == (len(batch.token_ids), VOCABULARY + 1)
        for segment in batch.segments:
            for i in range(segment.length):
                row, position = segment.start + i, segment.position + i
                self.cache[segment.slot, position] = batch.token_ids[row]
                given[row] = self.row(hidden[row], self.cache[segment.slot, : position + 1].tolist())
        return given


class DeviceHistoryModel(HistoryModel):
    """The same over KV blocks and tensors of fixed capacity, as a model on a device takes them."""

    capabilities = ModelCapabilities(stable_row_counts=None, mtp_modules=1, device_lengths=True, static_shapes=True)

    cache_bytes = 0
    module: Any = None
    """Its MTP module, once it is made."""

    def bytes_per_block(self, block_size: int) -> int:
        return 8 * block_size

    def allocate_blocks(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        self.block_size = block_size
        self.cache = np.full((num_blocks, block_size), -1, np.int64)

    def forward_device(self, batch: DeviceBatch, out: Any) -> None:
        if self.failures:
            raise self.failures.pop()
        hidden = out[FINAL_NORM]
        hidden[:] = np.nan
        offsets = batch.cu_seqlens_q
        tokens = min(int(offsets[-1]), len(batch.token_ids))
        for t in range(tokens):
            slot = int(batch.batch_id_per_token[t])
            position = int(batch.seq_lens_decoder[slot]) + t - int(offsets[slot])
            assert position < batch.max_seq_len, "a context beyond the bucket"
            assert offsets[slot + 1] - offsets[slot] <= batch.max_query_len
            block = batch.block_tables[slot]
            token = int(batch.token_ids[t, 0])
            if not 0 <= token < VOCABULARY:
                continue  # drafts of a slot that has stopped
            self.cache[block[position // self.block_size], position % self.block_size] = token + LONG * self.long[slot]
        for t in range(tokens):
            slot = int(batch.batch_id_per_token[t])
            position = int(batch.seq_lens_decoder[slot]) + t - int(offsets[slot])
            blocks = batch.block_tables[slot, : position // self.block_size + 1]
            history = self.cache[blocks].reshape(-1)[: position + 1].tolist()
            hidden[t] = np.nan if -1 in history or history[-1] in self.poisoned else hidden_after(history)

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        out[:] = np.nan
        rows = len(hidden) if num_rows is None else int(num_rows[0])
        out[:rows] = hidden[:rows, :VOCABULARY]

    def mtp_bytes_per_block(self, block_size: int) -> int:
        return 8 * block_size

    def mtp_module(self) -> Any:
        self.module = DeviceHistoryMTP(self)
        return self.module


class DeviceHistoryMTP(HistoryMTP):
    """The same over the model's KV blocks."""

    def __init__(self, model: DeviceHistoryModel) -> None:
        super().__init__(model)
        self.block_size = model.block_size
        self.compute_logits_device = model.compute_logits_device

    def forward_device(self, batch: DeviceBatch, hidden: Any, out: Any) -> None:
        out[:] = np.nan
        offsets = batch.cu_seqlens_q
        for t in range(int(offsets[-1])):
            slot = int(batch.batch_id_per_token[t])
            position = int(batch.seq_lens_decoder[slot]) + t - int(offsets[slot])
            assert position < batch.max_seq_len, "a context beyond the bucket"
            assert offsets[slot + 1] - offsets[slot] <= batch.max_query_len
            block = batch.block_tables[slot]
            self.cache[block[position // self.block_size], position % self.block_size] = int(batch.token_ids[t, 0])
            blocks = block[: position // self.block_size + 1]
            out[t] = self.row(hidden[t], self.cache[blocks].reshape(-1)[: position + 1].tolist())


class LetterDetokenizer:
    def push(self, token_id: int) -> str:
        return chr(ord("a") + token_id)

    def finish(self) -> str:
        return ""


class LetterTokenizer:
    """Token t is the letter number t."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + token) for token in ids if token < VOCABULARY)

    special_ids = frozenset[int]()
    vocab_size = VOCABULARY

    def token_bytes(self, token_id: int) -> bytes:
        return self.decode([token_id]).encode()

    def detokenizer(self, prompt: Any = (), **options: bool) -> LetterDetokenizer:
        return LetterDetokenizer()
