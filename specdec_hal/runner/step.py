"""One decode step: the ops of the contract in their order, around two calls of the model.

prepare_inputs -> adjust_batch -> model -> gather_next_token -> logits -> penalties -> sampling parameters -> target
tokens, candidates or probabilities -> verify_draft_tokens -> log-probabilities -> update_model_status. Plain decoding
is the same path with one token a slot. Nothing here asks what hardware it runs on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backend import Backend
from specdec_hal.config.schema import SpeculativeSettings
from specdec_hal.models.protocol import FINAL_NORM, ForwardBatch, Segment, TargetModel
from specdec_hal.ops import TokenOrder
from specdec_hal.runner.metrics import StepRecord
from specdec_hal.runner.plan import StepNeeds, StepPlans, launch, launch_stages
from specdec_hal.runner.request import TokenLogprobs
from specdec_hal.state import DecodeState


@dataclass
class StepResult:
    """What a step emitted, by slot; slots that emitted nothing have empty lists.

    `hidden_states`, `input_hidden_states`: as a proposer gets them (:class:`specdec_hal.proposers.protocol.StepView`).
    """

    stream: int
    tokens: list[list[int]]
    from_draft: list[list[bool]]
    drafted: NDArray[np.int64]
    prefill: NDArray[np.bool_]
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    hidden_states: dict[int, Any] = field(default_factory=dict)
    input_hidden_states: dict[int, Any] = field(default_factory=dict)


class DecodeStep:
    """Runs the plans of a runner. `hidden_layers`: those that the proposer asks for."""

    def __init__(
        self,
        backend: Backend,
        model: TargetModel,
        state: DecodeState,
        settings: SpeculativeSettings,
        hidden_layers: Iterable[int] = (),
    ) -> None:
        self.backend, self.model, self.state = backend, model, state
        self.hidden_layers = tuple(hidden_layers)
        self.plans = StepPlans(backend, state, model.config, settings, self.hidden_layers)

    def run(self, needs: StepNeeds, record: StepRecord) -> StepResult:
        """Advance every active slot."""
        state, plans, device = self.state, self.plans, self.state.device
        stream = device.stream()
        with record.stage("prepare"):
            launch(plans.prepare, stream)
            tokens, rows = (int(n) for n in state.read("num_tokens"))
            ids = device.download(plans.model_ids[:tokens])[:, 0]
            batch = ForwardBatch(ids, self._segments(), self.hidden_layers)
            plan = plans.get(rows, needs)
        record.input_tokens, record.output_rows = tokens, rows
        with record.stage("forward"):
            hidden = self.model.forward(batch)
        with record.stage("gather"):
            for layer, tensor in plan.inputs.items():
                device.assign(tensor[:tokens], hidden[layer])
            launch(plan.gather, stream)
        with record.stage("logits"):
            logits = self.model.compute_logits(plan.hidden_states[FINAL_NORM])
            for tensor in (plan.logits, plan.raw):
                if tensor is not None:
                    device.assign(tensor, logits)
        launch_stages(plan.stages, stream, record)
        result = self._result(stream)
        if plan.scores:
            with record.stage("logprobs"):
                result.logprobs = self._logprobs(plan.scores)
        result.hidden_states = {layer: plan.hidden_states[layer] for layer in self.hidden_layers}
        result.input_hidden_states = {layer: plan.inputs[layer][:tokens] for layer in self.hidden_layers}
        with record.stage("update"):
            launch(plans.update, stream)
        return result

    def _segments(self) -> list[Segment]:
        """Which slot each stretch of the packed tokens belongs to, in the backend's order."""
        names = ("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder")
        lens, encoder, decoder = (self.state.read(name).tolist() for name in names)
        slots = [b for b, length in enumerate(lens) if length > 0]
        if self.backend.token_order is TokenOrder.PREFILL_FIRST:
            slots.sort(key=lambda b: encoder[b] == 0)
        segments = []
        start = 0
        for b in slots:
            segments.append(Segment(b, start, lens[b], decoder[b]))
            start += lens[b]
        return segments

    def _result(self, stream: int) -> StepResult:
        """Copy what was emitted, before update_model_status moves on."""
        state = self.state
        drafts, lens = state.read("draft_tokens"), state.read("seq_lens_this_time")
        accepted, counts = state.read("accept_tokens"), state.read("accept_num")
        prefill = state.read("seq_lens_encoder") > 0
        drafted = np.where(prefill, 0, np.maximum(lens - 1, 0)).astype(np.int64)
        tokens = [row[:count].tolist() for row, count in zip(accepted, counts, strict=True)]
        from_draft = [
            [i < drafted[b] and token == drafts[b, i + 1] for i, token in enumerate(emitted)]
            for b, emitted in enumerate(tokens)
        ]
        return StepResult(stream, tokens, [[bool(flag) for flag in flags] for flags in from_draft], drafted, prefill)

    def _logprobs(self, scores: Mapping[str, Any]) -> dict[int, list[TokenLogprobs]]:
        state = self.state
        ids, values, ranks = (state.device.download(scores[name]).tolist() for name in ("ids", "logprobs", "ranks"))
        entries = [
            TokenLogprobs(value[0], rank, tuple(zip(id_[1:], value[1:], strict=True)))
            for id_, value, rank in zip(ids, values, ranks, strict=True)
        ]
        ends = state.read("cu_batch_token_offset").tolist()
        return {b: entries[ends[b] : ends[b + 1]] for b in range(len(ends) - 1)}
