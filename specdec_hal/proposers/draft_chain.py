"""Drafts of a model that reads accepted tokens and then its own drafts: a chain of ops, one substep per draft.

The model has its own slots, updated by the contract's ops of section 9: they copy the target's accepted tokens, take a
token per substep, and count the drafts at the end. Its text is the request's from the second token on, so a prompt
chunk ends in the token emitted by the target. Its KV cache has a row for every row of the target's, with the same block
numbers; the next step overwrites rejected drafts.

The host reads no device value: if the model takes device tensors, the chain is captured with the step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec_hal.ops import TokenOrder
from specdec_hal.plugin.model import DeviceBatch
from specdec_hal.plugin.proposer import Proposer, ProposerContext, RunsOn, StepBounds, StepView
from specdec_hal.proposers.draft_sampler import DraftSampler

Call = Callable[[int], None]

SLOTS = (
    "input_ids",
    "seq_lens_this_time",
    "seq_lens_encoder",
    "seq_lens_decoder",
    "step_idx",
    "stop_flags",
    "is_block_step",
)
"""What a slot is doing."""
_OWN = (
    *SLOTS,
    "token_ids_all",
    "draft_tokens",
    "has_running",
    "ids_remove_padding",
    "batch_id_per_token",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "cu_seqlens_q_output",
    "num_tokens",
    "output_token_num",
)
"""The model's own tensors."""


@dataclass(frozen=True)
class Substep:
    """The calls of a substep: those that feed the model, those that draw a draft, and those that take it."""

    read: list[Call]
    draw: list[Call]
    take: list[Call]


@dataclass(frozen=True)
class ChainPlan:
    """The calls of a step: first ones, substeps, last ones."""

    head: list[Call]
    substeps: list[Substep]
    tail: list[Call]


class DraftChain(Proposer):
    """`drafts`: substeps. `width`, `dtype`: of the rows that the model gives. `certain`: see :class:`DraftSampler`."""

    runs_on: RunsOn = "device"
    modes = ("propose", "feed")

    def __init__(self, context: ProposerContext, drafts: int, *, width: int, dtype: str, certain: bool = False) -> None:
        state = context.state
        self._backend, self._state, self._device = context.backend, state, state.device
        self._drafts, self._shape = drafts, (width, dtype)
        size = state.symbols
        self._own = own = {name: state.allocate(name) for name in _OWN}
        own["batch_id_per_token_output"] = state.allocate("batch_id_per_token_output", R_cap=size["M"])
        self._device.write(own["stop_flags"], slice(None), True)
        self._tensors = state.of_draft_model(own)
        # The model's output, and the last row of each slot.
        self._given, self._last = self._rows(size["T_cap"]), self._rows(size["M"])
        self._sampler = DraftSampler(context, certain=certain)
        self.gives_draft_probs = self._sampler.probs is not None
        self._ranked = self._device.zeros((size["M"], 1), "int64")
        self._every_slot = self._device.upload(np.arange(size["M"] + 1, dtype=np.int32))
        # As `draft_token_num`; requests without drafts are fed too, so that their cache stays complete.
        self._every_request = self._device.upload(np.ones(size["M"], np.int32))
        self._plans: dict[StepBounds, ChainPlan] = {}

    def reset(self, slots: list[int]) -> None:
        """The model's text starts at the request's second token."""
        for slot in slots:
            own, text = (tensors["token_ids_all"][slot] for tensors in (self._tensors, self._state))
            self._device.assign(own[:-1], text[1:])

    def propose(self, step: StepView) -> Any:
        """Feed the model the accepted tokens, then its drafts."""
        return self._launch(self._plan_of(step), step.stream, draws=self._any_drafts())

    def feed(self, step: StepView) -> Any:
        """The same where no slot may draft: only the accepted tokens."""
        return self._launch(self._plan_of(step), step.stream, draws=False)

    @abstractmethod
    def _plan_of(self, step: StepView) -> ChainPlan:
        """The plan for such a step."""

    # ---- the model

    @abstractmethod
    def _head(self, bounds: StepBounds) -> list[Call]:
        """Set the slots, from `schedule_slots` to `draft_model_preprocess`."""

    @abstractmethod
    def _read(self, number: int, bounds: StepBounds, sizes: dict[str, int], hidden: Any) -> list[Call]:
        """Pack the tokens of substep `number`, and run the model: its hidden states go to the rows of `_given`.

        `hidden`: the target's rows of the step, for a model that reads them.
        """

    @abstractmethod
    def _logits(self, number: int, last: Any) -> list[Call]:
        """Write the logits for draft `number`, of these rows, one a slot, to the sampler's."""

    # ---- the calls

    def _plan(self, bounds: StepBounds, hidden: Any) -> ChainPlan:
        substeps = [self._substep(number, bounds, hidden) for number in range(self._drafts)]
        return ChainPlan(self._head(bounds), substeps, self._tail(bounds))

    def _tail(self, bounds: StepBounds) -> list[Call]:
        args = self._state.args("draft_model_postprocess", {"B": bounds.slots})
        return [self._backend.bind("draft_model_postprocess", **args)]

    def _launch(self, plan: ChainPlan, stream: int, draws: bool) -> Any:
        for call in plan.head:
            call(stream)
        for substep in plan.substeps if draws else plan.substeps[:1]:
            if not self._goes_on():
                break
            for call in (*substep.read, *(substep.draw if draws else ()), *substep.take):
                call(stream)
        for call in plan.tail:
            call(stream)
        return self._sampler.probs

    def _goes_on(self) -> bool:
        """Whether any slot continues drafting; True if the host does not know."""
        return True

    def _any_drafts(self) -> bool:
        """Whether any slot may draft; True if the host does not know."""
        return True

    def _substep(self, number: int, bounds: StepBounds, hidden: Any) -> Substep:
        slots, tokens = bounds.slots, bounds.tokens if number == 0 else bounds.slots
        sizes = {"B": slots, "T_cap": tokens, "R_cap": slots}
        last, ranked = self._last[:slots], self._ranked[:slots]
        scattered = {"is_speculative": False, "token_order": TokenOrder.SLOT}
        return Substep(
            self._read(number, bounds, sizes, hidden),
            [
                self._bind("gather_next_token", sizes, self._given[:tokens], out=last, **scattered),
                *self._logits(number, last),
                lambda stream: self._sampler.draw(number, slots, stream),
                self._pack(sizes, ranked),
            ],
            [self._bind("draft_model_update", sizes, ranked, substep=number)],
        )

    def _pack(self, sizes: dict[str, int], ranked: Any) -> Call:
        """The tokens of active slots, by their rank."""
        slots = sizes["B"]
        return self._bind(
            "eagle_get_self_hidden_states", sizes, self._sampler.tokens[:slots, None],
            cu_seqlens_q=self._every_slot[: slots + 1], last_hidden=ranked,
        )  # fmt: skip

    def _bind(self, op: str, sizes: dict[str, int], *args: Any, **kwargs: Any) -> Call:
        return self._backend.bind(op, *args, **{**self._tensors.args(op, sizes), **kwargs})

    def _rows(self, count: int) -> Any:
        width, dtype = self._shape
        return self._device.zeros((count, width), dtype)

    def _batch(self, bounds: StepBounds, sizes: dict[str, int], query: int, positions: Any) -> DeviceBatch:
        """The batch for a model over device tensors. `query`: most tokens per slot; `positions`: of its first token."""
        return DeviceBatch(
            token_ids=self._tensors.part("ids_remove_padding", sizes),
            batch_id_per_token=self._tensors.part("batch_id_per_token", sizes),
            cu_seqlens_q=self._tensors.part("cu_seqlens_q", sizes),
            seq_lens_decoder=positions,
            block_tables=self._state["block_tables"],
            max_seq_len=bounds.context,
            max_query_len=min(query, sizes["T_cap"]),
        )
