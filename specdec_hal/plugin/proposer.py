"""The interface of a proposer: its inputs, declarations, and view of a step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from specdec_hal.errors import UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdec_hal.errors import ConfigError
    from specdec_hal.plugin.backend import Backend
    from specdec_hal.plugin.model import ModelMemory, TargetModel
    from specdec_hal.tensors.device import Device
    from specdec_hal.tensors.transfer import Field

RunsOn = Literal["device", "host"]


class Tokenizer(Protocol):
    """The tokenizer of a checkpoint folder. `vocab_size`: 1 + its largest id."""

    vocab_size: int

    @property
    def special_ids(self) -> Collection[int]:
        """Ids of special tokens, such as a BOS."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token inside a text."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. `add_special_tokens`: with those of the tokenizer's template, such as a BOS."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids."""


class SlotTensors(Protocol):
    """The tensors of a decode loop, by their names in the op vocabulary: ``state["draft_tokens"]`` is the tensor.

    `symbols`: the sizes M, S, L, ... of the vocabulary's shapes. `device`: where the tensors are.
    """

    symbols: Mapping[str, int]
    device: Device

    def __getitem__(self, name: str) -> Any: ...

    def args(self, op: str, sizes: Mapping[str, int] | None = None, **attrs: Any) -> dict[str, Any]:
        """The op's operands that the state holds, by name, and `attrs`. `sizes`: smaller extents of leading axes."""

    def field(self, name: str, **symbols: int) -> Field:
        """The vocabulary's shape and dtype of a tensor; `symbols` overrides sizes."""

    def replacing(self, own: Mapping[str, Any]) -> SlotTensors:
        """The same tensors, but `own` in place of those of these names."""

    def allocate(self, name: str, **symbols: int) -> Any:
        """A new zeroed tensor with the vocabulary's shape and dtype; `symbols` overrides sizes."""

    def of_draft_model(self, own: Mapping[str, Any]) -> Any:
        """The tensors for ops of a draft model: `own` by name, the target's as base_model_..., all others shared."""

    def read(self, name: str) -> NDArray[Any]:
        """The tensor's values now; waits for the device."""

    def write(self, name: str, index: Any, values: Any) -> None:
        """``state[name][index] = values``, ordered after earlier work of the device."""


class Settings(Protocol):
    """The checked configuration, with its sections as attributes: ``config.speculative.num_speculative_tokens``."""

    @property
    def model(self) -> Any:
        """The section `model`."""

    @property
    def runner(self) -> Any:
        """The section `runner`."""

    @property
    def speculative(self) -> Any:
        """The section `speculative`."""

    @property
    def drafter_path(self) -> str:
        """The folder in ``speculative.model``; ConfigError without one."""

    def error(self, key: str, problem: str) -> ConfigError:
        """A ConfigError that names a key, and the file that has it."""


@dataclass(frozen=True)
class ProposerContext:
    """Input of a :class:`~specdec_hal.plugin.hookspecs.ProposerSpec`'s factory.

    `settings`: the checked section ``speculative.<name>``; None if the spec has no settings. `load_model(path)` loads
    another checkpoint (a draft model) in the target's framework and device, through the runner's registry. `kv_blocks`:
    number of KV blocks in the target's pool (`state["block_tables"]`), or 0. `fed`: int32 [M], above 0 for slots whose
    tokens a proposer with a cache reads even while they draft nothing, since they may draft again; None: every slot
    under ``speculative.adaptive``.
    """

    backend: Backend
    state: SlotTensors
    model: TargetModel
    tokenizer: Tokenizer | None
    settings: Any
    config: Settings
    load_model: Callable[[str], TargetModel]
    kv_blocks: int = 0
    fed: Any = None


@dataclass(frozen=True)
class MemoryContext:
    """Input of a :class:`~specdec_hal.plugin.hookspecs.ProposerSpec`'s `memory`, before any allocation.

    `symbols`: sizes of the runner's tensors, by their names in the op vocabulary. `checkpoint_memory(path)`: memory of
    `load_model(path)`; None if unknown. Other fields as in :class:`ProposerContext`.
    """

    model: TargetModel
    settings: Any
    config: Settings
    symbols: Mapping[str, int]
    kv_blocks: int
    checkpoint_memory: Callable[[str], ModelMemory | None]


@dataclass(frozen=True)
class SlotView:
    """The host's view of a decoding request after a step. `token_ids`: all generated so far.

    `accepted`: only this step's. `max_drafts`: most drafts of the next step, by K, the request's limit and its
    remaining length.
    """

    slot: int
    request_id: str
    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int]
    accepted: Sequence[int]
    max_drafts: int


@dataclass(frozen=True)
class StepBounds:
    """Capacities of a step's launches: `slots`, packed `tokens`, tokens per slot (`query`), and `context`."""

    slots: int
    tokens: int
    query: int
    context: int


@dataclass
class StepView:
    """One finished step. ``step["accept_num"]`` is a tensor by its name in the op vocabulary, after the step's ops.

    `stream`: the stream that the step ran on, as an integer. `hidden_states`: by layer, [R, D], the rows that predicted
    the emitted tokens: row ``cu_seqlens_q_output[b] + i`` for token i of slot b. `input_hidden_states`: by layer, [T,
    D], of all input tokens, in the backend's `token_order` (slot order if the model takes device tensors). Both have
    the proposer's declared layers, in memory that the next step overwrites. `bounds`: constant in a device graph.
    `slots`: for a host proposer, all continuing requests with their prompts in the KV cache; empty for one on the
    device.
    """

    state: SlotTensors
    stream: int
    bounds: StepBounds
    hidden_states: Mapping[int, Any] = field(default_factory=dict)
    input_hidden_states: Mapping[int, Any] = field(default_factory=dict)
    slots: Sequence[SlotView] = ()
    vocab_size: int = 0
    dropped: int = 0
    """Draft lists refused by :meth:`draft`."""

    def __getitem__(self, name: str) -> Any:
        return self.state[name]

    def draft(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """From the host: write drafts by slot, and the next step's lengths.

        Missing slots get no drafts. A list longer than `max_drafts` or with a token outside the vocabulary is dropped
        and counted. Call it once per step, even without drafts.
        """
        state, count = self.state, len(self.slots)
        rows = np.zeros((count, state.symbols["S"] - 1), np.int64)
        lens = np.ones(count, np.int32)
        for at, view in enumerate(self.slots):
            tokens = list(drafts.get(view.slot, ()))
            if len(tokens) > view.max_drafts or not all(0 <= token < self.vocab_size for token in tokens):
                self.dropped += 1
                continue
            rows[at, : len(tokens)] = tokens
            lens[at] += len(tokens)
        if count:
            slots = [view.slot for view in self.slots]
            state.write("seq_lens_this_time", slots, lens)
            if rows.size:
                state.write("draft_tokens", (slots, slice(1, None)), rows)


class Proposer(Protocol):
    """Drafts for all slots at once. Subclass it for the defaults.

    `runs_on`: "device" if `propose` only launches work on the step's stream and reads no value on the host, so it can
    be captured with the step. "host" if it needs the accepted tokens in Python: it drafts between steps, which then do
    not overlap. `hidden_layers`: required hidden states (:data:`specdec_hal.plugin.model.FINAL_NORM`, or decoder layer
    numbers); a model without them is refused. `gives_draft_probs`: whether `propose` returns the drafts' distributions.
    `draft_positions`: positions of its drafts after a step's tokens in the blocks of ``state["block_tables"]``, for a
    proposer with a cache there.

    `cache_lookahead`, for a proposer with `hidden_layers` or `draft_positions`: number of later tokens on which a row
    of its cache, laid out by these blocks, depends. It is 1 if a row belongs to the next token (MTP, EAGLE), 0 if it
    belongs to its own or no rows are kept. Requests then share prefixes in both caches: the first chunk of a request
    may begin after position 0. None (the default): rows are elsewhere, so requests with drafts share no prefix.

    `modes`, for a proposer on the device: names of its methods, "propose" first. Under `speculative.adaptive` a step
    calls the one that the runner has written to `mode`, "feed" where no slot may draft. It does a part of what
    "propose" would.
    """

    runs_on: RunsOn
    hidden_layers: tuple[int, ...]
    gives_draft_probs: bool
    draft_positions: int = 0
    cache_lookahead: int | None = None
    modes: tuple[str, ...] = ("propose",)
    mode: str = "propose"

    @abstractmethod
    def reset(self, slots: list[int]) -> None:
        """New requests have taken these slots: reset their state."""

    def forget(self) -> None:
        """Forget finished requests, if the proposer keeps them.

        See :meth:`ModelRunner.forget <specdec_hal.runner.ModelRunner.forget>`.
        """
        return None

    @abstractmethod
    def propose(self, step: StepView) -> Any:
        """After `update_model_status`: write drafts and the next step's `seq_lens_this_time`.

        Prefill slots (enc > 0) are unchanged, decode slots get 1 + drafts, all others 0; on the host,
        :meth:`StepView.draft` does this. Returns None (drafts count as certain), or `draft_probs` float32 [M, K, V] on
        the state's device for the strategy REJECTION in the next step. Return the same tensor every step: the op is
        bound to it.
        """


def check_hidden_layers(proposer: Proposer, method: str, model: TargetModel) -> None:
    """UnsupportedError if the model lacks hidden states that the proposer needs."""
    offered = model.capabilities.hidden_layers
    missing = [layer for layer in proposer.hidden_layers if layer not in offered]
    if missing:
        raise UnsupportedError(
            f"speculative.method '{method}' asks for hidden states of the layers {missing}, the model gives those of "
            f"{sorted(offered)} (-1: the final norm); choose another method or another model"
        )
