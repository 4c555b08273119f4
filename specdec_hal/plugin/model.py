"""What a model runner may assume of a target model: packed ragged batches in, hidden states and logits out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

FINAL_NORM = -1
"""The layer number that stands for the output of the final norm, which the logits are computed from."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What a runner must know of any model."""

    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelCapabilities:
    """What a model can do, as it says itself; a runner guesses nothing and refuses by name what is missing here.

    `hidden_layers`: the hidden states that proposers can have; layer i stands for the residual stream after decoder
    layer i, which EAGLE-3 (arXiv:2503.01840) and block-diffusion drafters tap. A model that does not name
    :data:`FINAL_NORM` returns it all the same, but as something of its own, which only its `compute_logits` can read.
    `mtp_modules`: multi-token-prediction modules that can be run (:class:`MTPModel`). `static_shapes`: a batch padded
    to a capacity gives the same launches every time, so that a step can be captured in a device graph.
    `device_lengths`: ids, positions and lengths may be device tensors, none of which is read on the host.
    `stable_row_counts`: numbers of tokens a step between which the bits of a token's logits do not change; None: any
    number; empty (the default): not promised.
    `hidden_dtype`: of hidden states; logits are float32 always.
    """

    hidden_layers: Collection[int] = (FINAL_NORM,)
    mtp_modules: int = 0
    static_shapes: bool = False
    device_lengths: bool = False
    stable_row_counts: Collection[int] | None = ()
    hidden_dtype: str = "float32"


@dataclass(frozen=True)
class ModelMemory:
    """Bytes that a checkpoint takes once it is loaded: `weights`, by what they are for, reading them included.

    `kv_position`: of a position in a pool of KV blocks, all layers; 0 for a cache that grows with its contexts.
    `hidden_row`: of a token's hidden state.
    """

    weights: Mapping[str, int]
    kv_position: int
    hidden_row: int


@dataclass
class Segment:
    """Tokens ``[start, start + length)`` of a packed batch: `slot`'s, at ``position .. position + length - 1``.

    `outputs`: logits are asked for after so many of its last tokens at most; None: after any.
    """

    slot: int
    start: int
    length: int
    position: int
    outputs: int | None = None


@dataclass
class ForwardBatch:
    """One step's input: `token_ids` int64 [T], and the segments that tile it, in the order of their tokens.

    Slots may come in any order (a backend may put prefill tokens first), each at most once; idle slots have no segment.
    `hidden_layers`: whose hidden states are wanted besides :data:`FINAL_NORM`'s.
    """

    token_ids: npt.NDArray[np.int64]
    segments: Sequence[Segment]
    hidden_layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class DeviceBatch:
    """One step's input as device tensors of fixed capacity, for models with `device_lengths`. The host reads none.

    `token_ids` int64 [T_cap, 1], 0 in the tail; `batch_id_per_token` int32 [T_cap], the slot of each token, -1 in the
    tail; `cu_seqlens_q` int32 [B+1]. `seq_lens_decoder` int32 [M], the position of a slot's first token in this step;
    `block_tables` int32 [M, G], the KV blocks of each slot. `max_seq_len` bounds the context of every slot and
    `max_query_len` the tokens of one: they size launches. Tokens stand in slot order.
    """

    token_ids: Any
    batch_id_per_token: Any
    cu_seqlens_q: Any
    seq_lens_decoder: Any
    block_tables: Any
    max_seq_len: int
    max_query_len: int


class TargetModel(Protocol):
    """The model whose distribution is kept. A token at position p attends to positions <= p of its own slot only.

    `framework`: whose tensors it returns, and where on a GPU the runner's tensors come from ("torch", "paddle",
    "cupy"; on a CPU any name).
    """

    config: ModelConfig
    framework: str

    @property
    def capabilities(self) -> ModelCapabilities:
        """What it can do; asked once it is built."""

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """Make a KV cache: `max_model_len` positions in each of `max_num_seqs` slots (any headroom included)."""

    def forward(self, batch: ForwardBatch) -> Mapping[int, Any]:
        """Hidden states by layer, :data:`FINAL_NORM` and `batch.hidden_layers`: each float32 [T, D], as `token_ids`.

        Writes keys and values at the given positions, over what rejected drafts left there. ArgumentError, with nothing
        written, if the batch does not fit the model or the cache.
        """

    def compute_logits(self, hidden: Any) -> Any:
        """Float32 [R, V] of the model's framework, from rows [R, D] of FINAL_NORM: any DLPack tensor, or NumPy."""


class DeviceModel(TargetModel, Protocol):
    """A target model with `device_lengths`: a step of it only launches work."""

    @property
    def cache_bytes(self) -> int:
        """Memory of the pool of KV blocks that it has now, which `allocate_blocks` replaces; 0 without one."""
        return 0

    def bytes_per_block(self, block_size: int) -> int:
        """Memory of one KV block of `block_size` positions, all layers."""

    def allocate_blocks(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        """Make a pool of KV blocks, which slots share by block tables. Calling it again replaces the pool.

        `max_model_len`: the longest context of a slot, any headroom included; None: `max_position_embeddings`.
        """

    def forward_device(self, batch: DeviceBatch, out: Mapping[int, Any]) -> None:
        """Write hidden states to `out`, by layer, each [T_cap, D] of `hidden_dtype`; the tail's rows are undefined."""

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """Write float32 logits [R_cap, V] to `out`, from rows [R_cap, D] of hidden states.

        `num_rows` int32 [1], on the device: the rows that hold something, None for all; the others are undefined.
        """

    @property
    def compilations(self) -> int:
        """Kernels that this process has compiled, or loaded, so far; 0 for a model that compiles none. Optional."""
        return 0

    def compiling(self) -> AbstractContextManager[object]:
        """While inside, calls launch nothing and only have their kernels compiled, several at a time; leaving it waits
        for all. Optional, for models that compile: a runner warms up with it."""
        return nullcontext()


class LendingModel(TargetModel, Protocol):
    """A target model that lends trained drafters its embedding, as its `compute_logits` lends its head."""

    def embed(self, ids: Any) -> Any:
        """Rows [T, D] of the input embedding of int64 ids [T] within the vocabulary.

        With `device_lengths` both are on the device, the rows of `hidden_dtype`; else ids are NumPy's, rows float32.
        """


class MTPModule(Protocol):
    """A multi-token-prediction module (DeepSeek-V3, arXiv:2412.19437, section 2.2), with a KV cache of its own.

    From the hidden state of position p and the token at p + 1 it predicts the token at p + 2; a row stands at p in its
    cache. Hidden states are FINAL_NORM's of the model, or for further drafts the module's own.
    """

    def forward(self, batch: ForwardBatch, hidden: Any) -> Any:
        """Hidden states [T, D] for `compute_logits`, from the tokens at p + 1 and hidden [T, D]; segments tell p.

        Errors as TargetModel.forward.
        """

    def compute_logits(self, hidden: Any) -> Any:
        """As TargetModel.compute_logits, from rows of `forward`."""


class DraftHead(MTPModule, Protocol):
    """A trained EAGLE-3 head (arXiv:2503.01840), with a KV cache of its own. Rows are those of an MTP module.

    The states that it reads are what :meth:`fuse` makes of the target's, or what its own `forward` returned.
    """

    def fuse(self, features: Mapping[int, Any]) -> Any:
        """States [T, D] from the residuals [T, H] of the target's, by the number of decoder layers before them."""


class DeviceMTPModule(Protocol):
    """The same for a :class:`DeviceModel`: a step of it only launches work. Its KV blocks go by the model's tables."""

    def forward_device(self, batch: DeviceBatch, hidden: Any, out: Any) -> None:
        """Write hidden states to `out` [T_cap, D], from `hidden` [T_cap, D], both of `hidden_dtype`."""

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """As DeviceModel.compute_logits_device."""


class MTPModel(TargetModel, Protocol):
    """A target model whose capabilities name MTP modules."""

    def mtp_module(self) -> Any:
        """The first module: a :class:`DeviceMTPModule` if the model has `device_lengths`, else an :class:`MTPModule`.

        After `allocate` or `allocate_blocks`: it makes the module's cache, with the sizes of the model's.
        """

    def mtp_bytes_per_block(self, block_size: int) -> int:
        """Memory of one KV block of the module, for a model with `device_lengths`."""
