"""Drafts of the checkpoint's multi-token-prediction (MTP) module, which reads the target's hidden states.

The module sees every token that the target was fed: the chunks of prompts, and what each step accepted. Behind the last
of them it predicts the first draft, and behind each draft the next. (DeepSeek-V3, arXiv:2412.19437, section 2.2, trains
a module for one prediction; chaining it is how serving engines draft more.) Its KV cache has a row for every row of the
target's; rejected drafts are overwritten by the next step, as they are there. A request that wants no drafts in a step
(`draft_token_num` 0) costs nothing: the module is not fed, and its cache lacks those rows if drafts are wanted again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import numpy as np

from specdec_hal.device import download
from specdec_hal.errors import UnsupportedError
from specdec_hal.models.protocol import FINAL_NORM, DeviceBatch, ForwardBatch, MTPModel, Segment
from specdec_hal.ops import TokenOrder
from specdec_hal.proposers.draft_sampler import DraftSampler
from specdec_hal.proposers.protocol import ProposerContext, RunsOn, StepBounds, StepView

Call = Callable[[int], None]

_log = logging.getLogger("specdec_hal")

_OWN = (
    "token_ids_all",
    "input_ids",
    "draft_tokens",
    "seq_lens_this_time",
    "seq_lens_encoder",
    "seq_lens_decoder",
    "step_idx",
    "stop_flags",
    "is_block_step",
    "has_running",
    "ids_remove_padding",
    "batch_id_per_token",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "cu_seqlens_q_output",
    "num_tokens",
    "output_token_num",
)
"""What the module has for itself, as the target has its own."""


@dataclass(frozen=True)
class _Plan:
    """The calls of a step: what comes first, each substep, what comes last."""

    head: list[Call]
    substeps: list[list[Call]]
    tail: Call


@cache
def mention_training(method: str, drafts: int) -> None:
    """Say that a module is asked for more than it was trained for; once in a process."""
    _log.warning(
        "speculative.method '%s': the MTP module was trained for one draft a step; of %d, the others are predicted "
        "from its own hidden states and are accepted less often", method, drafts,
    )  # fmt: skip


class MTPProposer:
    """Chains the module: a draft of every slot is a substep."""

    runs_on: RunsOn = "device"
    hidden_layers: tuple[int, ...] = (FINAL_NORM,)

    def __init__(self, context: ProposerContext, drafts: int | None = None, *, certain: bool = False) -> None:
        """`drafts`: at most so many a step; None: K. `certain`: see :class:`DraftSampler`."""
        state, model = context.state, context.model
        self._backend, self._state, self._device = context.backend, state, state.device
        capabilities, method = model.capabilities, context.config.speculative.method
        if capabilities.mtp_modules < 1:
            path = context.config.model.path
            raise UnsupportedError(
                f"speculative.method '{method}' drafts with a multi-token-prediction module, and the model"
                f"{f' {path}' if path else ''} has none (num_nextn_predict_layers in config.json); use a checkpoint "
                "with one, or another method"
            )
        size = state.symbols
        k = size["S"] - 1
        self._drafts = k if drafts is None else min(drafts, k)
        if self._drafts > 1:
            mention_training(method, self._drafts)
        self._static = capabilities.device_lengths
        self.draft_positions = max(self._drafts - 1, 0)
        self._module = cast(MTPModel, model).mtp_module()
        own = {name: state.allocate(name) for name in _OWN}
        own["batch_id_per_token_output"] = state.allocate("batch_id_per_token_output", R_cap=size["M"])
        self._device.write(own["stop_flags"], slice(None), True)
        self._tensors = state.of_draft_model(own)

        def rows(count: int) -> Any:
            return self._device.zeros((count, model.config.hidden_size), capabilities.hidden_dtype)

        # The target's rows; those the module is fed, and gives; the last one of each slot; those of slots that go on.
        self._raw, self._hidden = (rows(0 if self._static else size["T_cap"]) for _ in range(2))
        self._fed, self._given = rows(size["T_cap"]), rows(size["T_cap"])
        self._last, self._next = rows(size["M"]), rows(size["M"])
        self._sampler = DraftSampler(context, certain=certain)
        self.gives_draft_probs = self._sampler.probs is not None
        self._ranked = self._device.zeros((size["M"], 1), "int64")
        self._every_slot = self._device.upload(np.arange(size["M"] + 1, dtype=np.int32))
        self._plans: dict[StepBounds, _Plan] = {}
        if not self._static:
            self._every = StepBounds(size["M"], size["T_cap"], size["I_cap"], size["L"])
            self._plans[self._every] = self._plan(self._every, self._hidden)

    def reset(self, slots: list[int]) -> None:
        """The module's text is the request's from its second token on: row p goes with the token at p + 1."""
        for slot in slots:
            own, text = (tensors["token_ids_all"][slot] for tensors in (self._tensors, self._state))
            self._device.assign(own[:-1], text[1:])

    def propose(self, step: StepView) -> Any:
        """Feed the module what the step accepted, then its own drafts."""
        hidden = step.input_hidden_states[FINAL_NORM]
        if self._static:
            plan = self._plans.get(step.bounds)
            if plan is None:
                self._plans[step.bounds] = plan = self._plan(step.bounds, hidden)
        else:
            plan = self._plans[self._every]
            self._device.assign(self._raw[: len(hidden)], hidden)
        for call in plan.head:
            call(step.stream)
        for calls in plan.substeps:
            if not self._static and not self._read("has_running")[0]:
                break
            for call in calls:
                call(step.stream)
        plan.tail(step.stream)
        return self._sampler.probs

    # ---- the calls

    def _plan(self, bounds: StepBounds, hidden: Any) -> _Plan:
        """`hidden`: the target's rows of a step of these bounds, in slot order once the head has run."""
        sizes = {"B": bounds.slots}
        head = [self._bind("schedule_slots", sizes)]
        if not self._static:
            head.append(self._in_slot_order())
        head.append(self._bind("draft_model_preprocess", sizes))
        substeps = [self._substep(number, bounds, hidden) for number in range(self._drafts)]
        args = self._state.args("draft_model_postprocess", sizes)
        return _Plan(head, substeps, self._backend.bind("draft_model_postprocess", **args))

    def _bind(self, op: str, sizes: dict[str, int], *args: Any, **kwargs: Any) -> Call:
        return self._backend.bind(op, *args, **{**self._tensors.args(op, sizes), **kwargs})

    def _in_slot_order(self) -> Call:
        if self._backend.token_order is TokenOrder.SLOT:
            return lambda stream: self._device.assign(self._hidden, self._raw)
        # Of the target's step: its chunks are the module's, of all slots until some are found to draft nothing.
        starts, lengths = self._state["cu_seqlens_q"], self._state.allocate("seq_lens_this_time")
        encoder = self._tensors["seq_lens_encoder"]
        recover = self._backend.bind(
            "recover_batch", self._raw, starts, lengths, encoder, out=self._hidden,
            token_order=TokenOrder.PREFILL_FIRST,
        )  # fmt: skip

        def call(stream: int) -> None:
            # The target's own lengths are 0 by now for a slot that was fed after it had stopped.
            self._device.write(lengths, slice(None), np.diff(self._device.download(starts)))
            recover(stream)

        return call

    def _substep(self, number: int, bounds: StepBounds, hidden: Any) -> list[Call]:
        slots, tokens = bounds.slots, bounds.tokens if number == 0 else bounds.slots
        sizes = {"B": slots, "T_cap": tokens, "R_cap": slots}
        given, last = self._given[:tokens], self._last[:slots]
        prepare = self._bind("prepare_inputs", sizes)
        if number == 0:
            fed = self._fed[:tokens]
            calls = [prepare, self._bind("eagle_get_hidden_states", sizes, hidden, out=fed)]
        else:
            before, fed = bounds.tokens if number == 1 else slots, self._next[:slots]
            go_on = self._bind("eagle_get_self_hidden_states", sizes, self._given[:before], last_hidden=fed)
            calls = [go_on, prepare]
        scattered = {"is_speculative": False, "token_order": TokenOrder.SLOT}
        ranked = self._ranked[:slots]
        return [
            *calls,
            self._forward_on_device(bounds, sizes, fed, given) if self._static else partial(self._forward, fed),
            self._bind("gather_next_token", sizes, given, out=last, **scattered),
            self._logits_on_device(last) if self._static else self._compute_logits,
            *self._draw(number, sizes, ranked),
            self._bind("draft_model_update", sizes, ranked, substep=number),
        ]

    def _draw(self, number: int, sizes: dict[str, int], ranked: Any) -> list[Call]:
        """A token for each slot, and those of active slots by their rank."""
        slots = sizes["B"]
        tokens = self._sampler.tokens[:slots]
        pack = self._bind(
            "eagle_get_self_hidden_states", sizes, tokens[:, None], cu_seqlens_q=self._every_slot[: slots + 1],
            last_hidden=ranked,
        )  # fmt: skip
        return [lambda stream: self._sampler.draw(number, slots, stream), pack]

    # ---- modules that take device tensors

    def _forward_on_device(self, bounds: StepBounds, sizes: dict[str, int], fed: Any, given: Any) -> Call:
        batch = DeviceBatch(
            token_ids=self._tensors.part("ids_remove_padding", sizes),
            batch_id_per_token=self._tensors.part("batch_id_per_token", sizes),
            cu_seqlens_q=self._tensors.part("cu_seqlens_q", sizes),
            seq_lens_decoder=self._tensors["seq_lens_decoder"],
            block_tables=self._state["block_tables"],
            max_seq_len=bounds.context,
            max_query_len=min(bounds.query, sizes["T_cap"]) if fed is not self._next else 1,
        )
        return lambda stream: self._module.forward_device(batch, fed, given)

    def _logits_on_device(self, last: Any) -> Call:
        logits = self._sampler.logits[: len(last)]
        return lambda stream: self._module.compute_logits_device(last, logits)

    # ---- modules that take lists

    def _read(self, name: str) -> Any:
        return self._device.download(self._tensors[name])

    def _forward(self, fed: Any, stream: int) -> None:
        names = ("seq_lens_this_time", "seq_lens_decoder")
        lens, positions = (self._read(name).tolist() for name in names)
        segments, end = [], 0
        for slot, length in enumerate(lens):
            if length > 0:
                segments.append(Segment(slot, end, length, positions[slot]))
                end += length
        ids = self._read("ids_remove_padding")[:end, 0]
        self._device.assign(self._given[:end], self._module.forward(ForwardBatch(ids, segments), fed[:end]))

    def _compute_logits(self, stream: int) -> None:
        slots = np.flatnonzero(self._read("seq_lens_this_time") > 0)
        logits = self._module.compute_logits(self._last[slots])
        self._device.write(self._sampler.logits, slots, download(logits))
