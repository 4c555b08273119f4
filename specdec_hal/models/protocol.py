"""What a model runner may assume of a target model: packed ragged batches in, hidden states and logits out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from specdec_hal.models.rope import RopeScaling


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Llama-style decoder, as config.json gives it."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    num_nextn_predict_layers: int = 0
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    rope_scaling: RopeScaling | None = None


@dataclass
class Segment:
    """Tokens ``[start, start + length)`` of a packed batch: `slot`'s, at ``position .. position + length - 1``."""

    slot: int
    start: int
    length: int
    position: int


@dataclass
class ForwardBatch:
    """One step's input: `token_ids` int64 [T], and the segments that tile it, in the order of their tokens.

    Slots may come in any order (a backend may put prefill tokens first), each at most once; idle slots have no segment.
    """

    token_ids: npt.NDArray[np.int64]
    segments: Sequence[Segment]


@dataclass(frozen=True)
class DeviceBatch:
    """One step's input where it is computed: tensors of fixed capacity on the device, of which the host reads nothing.

    Slots are those of the ops' step index (`prepare_inputs`): M allocated, of which the first B take part, some of them
    idle. `max_seq_len` and `max_query_len` are the host's bounds, and may be larger than what comes.
    """

    token_ids: Any
    """int64 [T_cap] or [T_cap, 1]: the step's tokens, packed."""
    batch_id_per_token: Any
    """int32 [T_cap]: the slot of each packed token; -1 in the tail."""
    cu_seqlens_q: Any
    """int32 [B+1]: exclusive prefix sum of tokens per slot."""
    seq_lens_decoder: Any
    """int32 [M]: tokens of each slot that are in the KV cache before this step."""
    block_tables: Any
    """int32 [M, W]: the blocks of the KV pool that hold each slot's positions, in order; any value behind the last."""
    max_seq_len: int
    """Most positions of a slot, this step's tokens included."""
    max_query_len: int
    """Most tokens of a slot in this step: K+1 where all slots decode, else the prefill chunk."""


class TargetModel(Protocol):
    """The model whose distribution is kept. A token at position p attends to positions <= p of its own slot only."""

    config: ModelConfig
    framework: str

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """Make a KV cache: `max_model_len` positions in each of `max_num_seqs` slots (any headroom included)."""

    def forward(self, batch: ForwardBatch) -> Any:
        """Hidden states after the final norm: float32 [T, D] of the model's framework, in the order of `token_ids`.

        Writes keys and values at the given positions, over what rejected drafts left there. ArgumentError, with nothing
        written, if the batch does not fit the model or the cache.
        """

    def compute_logits(self, hidden: Any) -> Any:
        """Float32 [R, V] of the model's framework, from hidden states [R, D]: any DLPack tensor, or a NumPy array."""
