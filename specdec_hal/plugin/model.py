"""The interface of target models: packed ragged batches in, hidden states and logits out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from specdec_hal.ops.enums import Storage

FINAL_NORM = -1
"""The layer number of the final norm's output, from which logits are computed."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A runner's view of any model's configuration."""

    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelCapabilities:
    """Declared features of a model; a runner refuses everything else by name.

    `hidden_layers`: hidden states available to proposers; layer i is the residual stream after decoder layer i, which
    EAGLE-3 (arXiv:2503.01840) and block-diffusion drafters tap. Without :data:`FINAL_NORM` in it, the model returns an
    opaque value for that, which only its `compute_logits` can read. `mtp_modules`: usable multi-token-prediction
    modules (:class:`MTPModel`). `static_shapes`: a batch padded to a capacity always gives the same launches, so a step
    can be captured in a device graph. `device_lengths`: ids, positions and lengths may be device tensors, which the
    host does not read. `recurrent`: layers keep a state besides keys and values (:class:`RecurrentModel`).
    `stable_row_counts`: numbers of tokens per step that give a token's logits the same bits; None: any number; empty
    (the default): no guarantee. `hidden_dtype`: of hidden states; logits are float32 always. `rope_switch`: texts of
    more tokens have other rotary frequencies (:class:`LongRopeModel`); None: all have the same.
    """

    hidden_layers: Collection[int] = (FINAL_NORM,)
    mtp_modules: int = 0
    static_shapes: bool = False
    device_lengths: bool = False
    recurrent: bool = False
    stable_row_counts: Collection[int] | None = ()
    hidden_dtype: str = "float32"
    rope_switch: int | None = None


@dataclass(frozen=True)
class ModelMemory:
    """Bytes of a loaded checkpoint: `weights` by purpose, including the peak while reading.

    `kv_position`: of a position in a pool of KV blocks, all layers; 0 for a cache that grows with its contexts.
    `hidden_row`: of a token's hidden state.
    """

    weights: Mapping[str, int]
    kv_position: int
    hidden_row: int


@dataclass
class Segment:
    """Tokens ``[start, start + length)`` of a packed batch: `slot`'s, at ``position .. position + length - 1``.

    `outputs`: at most this many of its last tokens need logits; None: any.
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
    `hidden_layers`: hidden states to return besides :data:`FINAL_NORM`.
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
    `max_query_len` the tokens of one, `decode_len` those of one without a chunk of its prompt: they size launches.
    Tokens stand in slot order.
    """

    token_ids: Any
    batch_id_per_token: Any
    cu_seqlens_q: Any
    seq_lens_decoder: Any
    block_tables: Any
    max_seq_len: int
    max_query_len: int
    decode_len: int = 1


class TargetModel(Protocol):
    """The model whose distribution is preserved. A token at position p attends only to positions <= p of its slot.

    `framework`: of returned tensors and, on a GPU, of the runner's tensors ("torch", "paddle"; on a CPU any name).
    """

    config: ModelConfig
    framework: str

    @property
    def capabilities(self) -> ModelCapabilities:
        """Its features, fixed after construction."""

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """Make a KV cache: `max_model_len` positions in each of `max_num_seqs` slots (any headroom included)."""

    def forward(self, batch: ForwardBatch) -> Mapping[int, Any]:
        """Hidden states by layer, :data:`FINAL_NORM` and `batch.hidden_layers`: each float32 [T, D], as `token_ids`.

        Writes keys and values at the given positions, overwriting rejected drafts. ArgumentError, with nothing written,
        if the batch does not fit the model or the cache.
        """

    def compute_logits(self, hidden: Any) -> Any:
        """Float32 [R, V] of the model's framework, from rows [R, D] of FINAL_NORM: any DLPack tensor, or NumPy."""


class DeviceModel(TargetModel, Protocol):
    """A target model with `device_lengths`, whose steps only launch work."""

    @property
    def cache_bytes(self) -> int:
        """Memory of the current pool of KV blocks, which `allocate_blocks` replaces; 0 without one."""
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

        `num_rows` int32 [1], on the device: number of valid rows, None for all; the others are undefined.
        """

    @property
    def compilations(self) -> int:
        """Kernels compiled or loaded by this process so far. Optional."""
        return 0

    def compiling(self) -> AbstractContextManager[object]:
        """Context in which calls launch nothing but record kernels, compiled in parallel; leaving it waits for all.
        Optional, for a runner's warm-up.
        """
        return nullcontext()


class RecurrentModel(TargetModel, Protocol):
    """A target model whose capabilities have `recurrent`.

    Its states belong to slots. They are kept by position, so a step that starts at any position up to K before the last
    one continues from there: nothing is done about rejected drafts. Only what is not kept must be computed from
    position 0.
    """

    @property
    def state_bytes(self) -> int:
        """Memory of the current states, which `allocate_states` replaces; 0 without any."""

    def bytes_per_slot(self, num_speculative_tokens: int, storage: Storage = Storage.STATES) -> int:
        """Memory of the states of one slot, all layers, for steps of up to that many drafts (K)."""

    @property
    def bytes_per_prefix(self) -> int:
        """Memory of a state that is kept for other requests, all layers. This and what follows `allocate_states`: with
        `device_lengths` only."""

    def allocate_states(
        self,
        max_num_seqs: int,
        num_speculative_tokens: int,
        backend: Any = None,
        *,
        storage: Storage = Storage.STATES,
        num_prefixes: int = 0,
    ) -> None:
        """Make the states of `max_num_seqs` slots, besides the KV cache; calling it again replaces them.

        `backend`: computes their ops (section 12 of the contract) on the model's device; None: that of the device.
        `storage`: of the recurrences; bits are the same. `num_prefixes`: states at ends of known texts.
        """

    def keeps_prefix(self, rows: int) -> bool:
        """Whether :meth:`keep_prefix` works after a step with so many rows of a slot's prompt."""

    def keep_prefix(self, slot: int, position: int, entry: int) -> None:
        """Copy the states that a slot's text before `position` left to `entry` < num_prefixes, after the step that
        ended there and before the next. Launches only, on the current stream."""

    def resume_prefix(self, entry: int, slot: int, position: int) -> None:
        """Copy the states of `entry` to a slot whose next step starts at `position`."""


class LongRopeModel(TargetModel, Protocol):
    """A target model whose capabilities have `rope_switch`. Until :meth:`set_long`, all slots have the frequencies of
    the longest context that the cache was made for.
    """

    def set_long(self, slot: int, long: bool) -> None:
        """Before a slot's first step: whether its text gets the frequencies of texts of more than `rope_switch` tokens.

        The slot keeps them until the next call; its text is computed from position 0, or after blocks that were
        computed with the same.
        """


class LendingModel(TargetModel, Protocol):
    """A target model that lends trained drafters its embedding, as its `compute_logits` lends its head.

    One whose FINAL_NORM is opaque also has ``head_logits(rows)``: float32 [T, V] of states [T, D] after the final norm.
    One that lacks the residual of its last layer has `num_hidden_layers`, the number of its decoder layers.
    """

    def embed(self, ids: Any) -> Any:
        """Rows [T, D] of the input embedding of int64 ids [T] within the vocabulary.

        With `device_lengths` both are on the device, the rows of `hidden_dtype`; else ids are NumPy's, rows float32.
        """


class MTPModule(Protocol):
    """A multi-token-prediction module (DeepSeek-V3, arXiv:2412.19437, section 2.2), with a KV cache of its own.

    From the hidden state of position p and the token at p + 1 it predicts the token at p + 2; its cache holds this row
    at p. Hidden states are the model's FINAL_NORM or, for further drafts, the module's own.
    """

    def forward(self, batch: ForwardBatch, hidden: Any) -> Any:
        """Hidden states [T, D] for `compute_logits`, from the tokens at p + 1 and hidden [T, D]; segments tell p.

        Errors as TargetModel.forward.
        """

    def compute_logits(self, hidden: Any) -> Any:
        """As TargetModel.compute_logits, from rows of `forward`."""


class DraftHead(MTPModule, Protocol):
    """A trained EAGLE-3 head (arXiv:2503.01840), with a KV cache of its own. Rows are those of an MTP module.

    Its input states come from :meth:`fuse` or its own `forward`. Its logits are by its own ids: `draft_ids` int64
    [V_draft] has the target's id of each, None if they are the same.
    """

    draft_ids: Any

    def fuse(self, features: Mapping[int, Any]) -> Any:
        """States [T, D] from the residuals [T, H] of the target's, by the number of decoder layers before them."""


class DeviceMTPModule(Protocol):
    """The same for a :class:`DeviceModel`: only launches work and uses the model's block tables."""

    def forward_device(self, batch: DeviceBatch, hidden: Any, out: Any) -> None:
        """Write hidden states to `out` [T_cap, D], from `hidden` [T_cap, D], both of `hidden_dtype`."""

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """As DeviceModel.compute_logits_device."""


class ModuleReader(TargetModel, Protocol):
    """A target model for which modules come from checkpoints of their own."""

    def trained_module(self, folder: str, slots: int) -> Any:
        """The module in a folder, as of `mtp_module`. `slots`: the most of a step.

        CheckpointError for one of another target, UnsupportedError for a kind that this target cannot serve.
        """


class MTPModel(TargetModel, Protocol):
    """A target model whose capabilities name MTP modules."""

    def mtp_module(self) -> Any:
        """The first module: a :class:`DeviceMTPModule` if the model has `device_lengths`, else an :class:`MTPModule`.

        After `allocate` or `allocate_blocks`: it makes the module's cache, with the sizes of the model's.
        """

    def mtp_bytes_per_block(self, block_size: int) -> int:
        """Memory of one KV block of the module, for a model with `device_lengths`."""
