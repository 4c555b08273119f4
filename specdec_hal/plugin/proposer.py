"""The interface of a proposer: what it is built from, what it declares, what it sees of a step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from specdec_hal.errors import UnsupportedError

if TYPE_CHECKING:
    from specdec_hal.config.schema import Config
    from specdec_hal.models.tokenizer import Tokenizer
    from specdec_hal.plugin.backend import Backend
    from specdec_hal.plugin.model import ModelMemory, TargetModel
    from specdec_hal.runner.state import DecodeState

RunsOn = Literal["device", "host"]


@dataclass(frozen=True)
class ProposerContext:
    """What a :class:`~specdec_hal.plugin.hookspecs.ProposerSpec`'s factory builds a proposer from.

    `settings`: the checked section ``speculative.<name>``; None if the spec has no settings. `load_model(path)` loads
    another checkpoint in the target model's framework and place (a draft model's), through the runner's registry.
    `kv_blocks`: KV blocks of the target's pool, which `state["block_tables"]` names; 0 where it has none.
    """

    backend: Backend
    state: DecodeState
    model: TargetModel
    tokenizer: Tokenizer | None
    settings: Any
    config: Config
    load_model: Callable[[str], TargetModel]
    kv_blocks: int = 0


@dataclass(frozen=True)
class MemoryContext:
    """What a :class:`~specdec_hal.plugin.hookspecs.ProposerSpec`'s `memory` counts from: nothing is allocated yet.

    `symbols`: sizes of the runner's tensors, by their names in the op vocabulary. `checkpoint_memory(path)`: what
    `load_model(path)` of the :class:`ProposerContext` would take; None if unknown before. The others as there.
    """

    model: TargetModel
    settings: Any
    config: Config
    symbols: Mapping[str, int]
    kv_blocks: int
    checkpoint_memory: Callable[[str], ModelMemory | None]


@dataclass(frozen=True)
class SlotView:
    """A request that decodes, as the host sees it after a step. `token_ids`: generated so far, this step's included.

    `accepted`: this step's alone. `max_drafts`: how many drafts the next step takes at most, from K, from what the
    request asks for and from what is left of it.
    """

    slot: int
    request_id: str
    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int]
    accepted: Sequence[int]
    max_drafts: int


@dataclass(frozen=True)
class StepBounds:
    """What a step's launches have room for: `slots`, packed `tokens`, tokens of a slot (`query`), and its `context`."""

    slots: int
    tokens: int
    query: int
    context: int


@dataclass
class StepView:
    """One finished step. ``step["accept_num"]`` is a tensor by its name in the op vocabulary, after the step's ops.

    `stream`: the stream that the step ran on, as an integer. `hidden_states`: by layer, [R, D], the rows that emitted
    tokens were predicted from: token i of slot b by row ``cu_seqlens_q_output[b] + i``. `input_hidden_states`: by
    layer, [T, D], of every token that was fed, prompts included, in the backend's `token_order` (slot order where the
    model takes device tensors). Both hold the layers that the proposer declares, in memory that the next step
    overwrites. `bounds`: the same in every step of a device graph. `slots`: for a proposer on the host, every request
    whose prompt is in the KV cache and that goes on; empty for one on the device.
    """

    state: DecodeState
    stream: int
    bounds: StepBounds
    hidden_states: Mapping[int, Any] = field(default_factory=dict)
    input_hidden_states: Mapping[int, Any] = field(default_factory=dict)
    slots: Sequence[SlotView] = ()
    vocab_size: int = 0
    dropped: int = 0
    """Lists of drafts that :meth:`draft` could not use."""

    def __getitem__(self, name: str) -> Any:
        return self.state[name]

    def draft(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """From the host: write the drafts of the slots in `slots`, by slot, and what the next step feeds them.

        Slots that are left out get no drafts. A list that is longer than `max_drafts` or holds a token outside the
        vocabulary is dropped and counted; the other slots are served. To be called once a step, also with nothing.
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
    """Drafts for all slots at once. Derive from it for the defaults.

    `runs_on`: "device" if `propose` only launches work on the step's stream and reads no value on the host, so that it
    can be captured in a graph together with the step. "host" if it needs the accepted tokens in Python: steps then do
    not overlap, and it drafts between them. `hidden_layers`: whose hidden states it wants
    (:data:`specdec_hal.plugin.model.FINAL_NORM`, or a decoder layer's number); a model that cannot give one of them is
    refused. `gives_draft_probs`: whether `propose` returns the distributions that its drafts were drawn from.
    `draft_positions`: how many positions its drafts take after a step's tokens in the blocks of
    ``state["block_tables"]``, for a proposer with a cache there.

    `cache_lookahead`, for a proposer with `hidden_layers` or `draft_positions`: how many tokens after a position its
    row depends on, in a cache of its own that is laid out by these blocks. It is 1 where a row goes with the next token
    (MTP, EAGLE), 0 where it goes with its own, or where no rows are kept. Requests then share prefixes in both
    caches: the first chunk of a request may begin after position 0. None (the default): rows elsewhere, so that a
    request with drafts shares no prefix.
    """

    runs_on: RunsOn
    hidden_layers: tuple[int, ...]
    gives_draft_probs: bool
    draft_positions: int = 0
    cache_lookahead: int | None = None

    @abstractmethod
    def reset(self, slots: list[int]) -> None:
        """New requests have taken these slots: forget what was known of them."""

    def forget(self) -> None:
        """Empty the memory of requests that have ended, for a proposer that has one.

        See :meth:`ModelRunner.forget <specdec_hal.runner.ModelRunner.forget>`.
        """
        return None

    @abstractmethod
    def propose(self, step: StepView) -> Any:
        """After `update_model_status`: write drafts and the next step's `seq_lens_this_time`.

        Prefill slots (enc > 0) are left alone, decode slots get 1 + drafts, all others 0; on the host,
        :meth:`StepView.draft` does it. Returns None, or `draft_probs` float32 [M, K, V] on the state's device, which
        the strategy REJECTION holds these drafts against in the next step; without it, drafts count as certain. Return
        the same tensor every step: the op is bound to it.
        """


def check_hidden_layers(proposer: Proposer, method: str, model: TargetModel) -> None:
    """UnsupportedError for a proposer that wants hidden states which the model does not give."""
    offered = model.capabilities.hidden_layers
    missing = [layer for layer in proposer.hidden_layers if layer not in offered]
    if missing:
        raise UnsupportedError(
            f"speculative.method '{method}' asks for hidden states of the layers {missing}, the model gives those of "
            f"{sorted(offered)} (-1: the final norm); choose another method or another model"
        )
