"""A target model whose next token depends on the last one alone, so that whole decodes have an exact distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities, ModelConfig


class MarkovModel:
    """Row t of `table` are the logits after token t, of `mtp` those of its MTP module; no token ends a text."""

    framework = "none"
    capabilities = ModelCapabilities(stable_row_counts=None, mtp_modules=1)

    def __init__(self, table: Any, mtp: Any = None) -> None:
        self.table, self.mtp = np.asarray(table, np.float32), mtp
        self.config = ModelConfig(vocab_size=len(self.table), hidden_size=len(self.table), max_position_embeddings=32)

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """Nothing is remembered."""

    def forward(self, batch: ForwardBatch) -> dict[int, Any]:
        return {FINAL_NORM: self.table[batch.token_ids]}

    def compute_logits(self, hidden: Any) -> Any:
        return np.array(hidden)

    def mtp_module(self) -> Any:
        return MarkovMTP(self.mtp)


class MarkovMTP(MarkovModel):
    """As the model, whatever the hidden states say."""

    def forward(self, batch: ForwardBatch, hidden: Any) -> Any:  # type: ignore[override]
        return super().forward(batch)[FINAL_NORM]
