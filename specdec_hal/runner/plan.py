"""What a decode step launches: ops bound once to memory for the largest step, launched again every step.

A :class:`StepPlan` holds the bound calls of one bucket: a number of output rows and what its requests need. Plans are
made on first use and kept; a step that has its plan validates nothing and allocates no tensor of an op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specdec_hal.backend import Backend, BoundOp
from specdec_hal.config.schema import SpeculativeSettings
from specdec_hal.models.protocol import FINAL_NORM, ModelConfig
from specdec_hal.ops import Strategy
from specdec_hal.runner.metrics import StepRecord
from specdec_hal.state import DecodeState

Calls = tuple[BoundOp, ...]


@dataclass(frozen=True)
class StepNeeds:
    """What the requests of this step ask for beyond tokens. `logprobs`: most alternatives wanted, None for none."""

    penalties: bool
    logprobs: int | None

    def bucket(self, vocab_size: int) -> StepNeeds:
        """The needs that a plan is made for: alternatives are rounded up to a power of two, so that plans are few."""
        if not self.logprobs:
            return self
        return StepNeeds(self.penalties, min(1 << (self.logprobs - 1).bit_length(), vocab_size - 1))


@dataclass(frozen=True)
class StepPlan:
    """A step with `rows` output rows: its tensors between model and ops, and the bound calls around the model's two.

    The caller copies the model's hidden states into `inputs` and runs `gather`, then copies the logits into `logits`
    (and into `raw`, which log-probabilities are taken from where penalties change `logits`) and runs `stages`.
    """

    rows: int
    inputs: Mapping[int, Any]
    """Hidden states of every input token by layer, [T_cap, D]."""
    hidden_states: Mapping[int, Any]
    """Those of the output rows, [rows, D]."""
    gather: Calls
    logits: Any
    raw: Any
    stages: tuple[tuple[str, Calls], ...]
    """The calls from the logits to what was emitted, in order, by the stage that they are counted under."""
    scores: Mapping[str, Any] = field(default_factory=dict)
    """`ids`, `logprobs`, `ranks` of the accepted tokens, if needed."""


def launch(calls: Iterable[BoundOp], stream: int) -> None:
    """Launch one call after the other."""
    for call in calls:
        call(stream)


def launch_stages(stages: Iterable[tuple[str, Calls]], stream: int, record: StepRecord) -> None:
    """Launch stage by stage, each counted under its name."""
    for name, calls in stages:
        with record.stage(name):
            launch(calls, stream)


class StepPlans:
    """The plans of a runner, and the memory that they share."""

    def __init__(
        self,
        backend: Backend,
        state: DecodeState,
        model: ModelConfig,
        settings: SpeculativeSettings,
        hidden_layers: Iterable[int] = (),
    ) -> None:
        self._backend, self._state, self._settings = backend, state, settings
        self._vocab_size = model.vocab_size
        t_cap, r_cap = state.symbols["T_cap"], state.symbols["R_cap"]
        device = state.device
        layers = dict.fromkeys((FINAL_NORM, *hidden_layers))
        self.inputs = {layer: device.zeros((t_cap, model.hidden_size), "float32") for layer in layers}
        self._outputs = {layer: device.zeros((r_cap, model.hidden_size), "float32") for layer in layers}
        self._logits = state.allocate("logits", V=model.vocab_size)
        self._raw: Any = None
        self._scores: dict[int, dict[str, Any]] = {}
        self._judge_buffers = self._allocate_judge_buffers()
        self._draft_probs: Any = None
        self._plans: dict[tuple[int, StepNeeds], StepPlan] = {}
        self.model_ids = state.allocate("ids_remove_padding")
        prepare = backend.bind("prepare_inputs", **state.args("prepare_inputs"))
        ids = state["ids_remove_padding"]
        adjust = backend.bind("adjust_batch", ids, out=self.model_ids, **state.args("adjust_batch"))
        self.prepare: Calls = (prepare, adjust)
        self.update: Calls = (backend.bind("update_model_status", **state.args("update_model_status")),)
        self._spread_params = backend.bind("build_sampling_params", **state.args("build_sampling_params"))

    def get(self, rows: int, needs: StepNeeds) -> StepPlan:
        """The plan of a step."""
        key = rows, needs.bucket(self._vocab_size)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make(*key)
        return plan

    def use_draft_probs(self, draft_probs: Any) -> None:
        """Hold the next step's drafts against this tensor (None: drafts are certain); another one unbinds all plans."""
        if draft_probs is not self._draft_probs:
            self._draft_probs = draft_probs
            self._plans.clear()

    def _make(self, rows: int, needs: StepNeeds) -> StepPlan:
        backend, state = self._backend, self._state
        hidden_states = {layer: tensor[:rows] for layer, tensor in self._outputs.items()}
        args = state.args("gather_next_token", rows)
        gather = tuple(
            backend.bind("gather_next_token", self.inputs[layer], out=out, is_speculative=True, **args)
            for layer, out in hidden_states.items()
        )
        logits = self._logits[:rows]
        raw = self._raw_logits()[:rows] if needs.penalties and needs.logprobs is not None else None
        stages: list[tuple[str, Calls]] = []
        if needs.penalties:
            args = state.args("apply_penalties", rows)
            stages.append(("penalties", (backend.bind("apply_penalties", logits, **args),)))
        sampling, judged_by = self._judge(logits, rows)
        stages += [("sample", (self._spread_params, *sampling)), ("verify", (self._verify(judged_by),))]
        scores: dict[str, Any] = {}
        if needs.logprobs is not None:
            scored, scores = self._score(logits if raw is None else raw, rows, needs.logprobs + 1)
            stages.append(("logprobs", scored))
        return StepPlan(rows, self.inputs, hidden_states, gather, logits, raw, tuple(stages), scores)

    def _allocate_judge_buffers(self) -> dict[str, Any]:
        """What the strategy needs between logits and verification beyond the state's tensors, for all rows."""
        state, strategy = self._state, self._settings.verify_strategy
        if strategy not in (Strategy.REJECTION, Strategy.TOPP):
            return {}
        buffers = {"probs": state.allocate("probs", V=self._vocab_size)}
        if strategy is Strategy.TOPP:
            c = min(self._settings.candidates, self._vocab_size)
            names = ("candidate_ids", "candidate_scores", "candidate_lens")
            buffers |= {name: state.allocate(name, C=c) for name in names}
            # TOPP applies top_p when it picks candidates.
            buffers["row_top_p"] = state.device.upload(np.ones(state.symbols["R_cap"], np.float32))
        return buffers

    def _judge(self, logits: Any, rows: int) -> tuple[Calls, dict[str, Any]]:
        """The calls that make what drafts are compared with, and the arguments of verify_draft_tokens for it."""
        backend, state, strategy = self._backend, self._state, self._settings.verify_strategy
        if strategy in (Strategy.GREEDY, Strategy.TARGET_MATCH):
            args = state.args("sample_target", rows)
            return (backend.bind("sample_target", logits, **args),), {"target_tokens": args["target_tokens"]}
        buffers = {name: tensor[:rows] for name, tensor in self._judge_buffers.items()}
        probs = buffers.pop("probs")
        args = state.args("processed_probs", rows)
        if strategy is Strategy.REJECTION:
            call = backend.bind("processed_probs", logits, probs=probs, **args)
            return (call,), {"target_probs": probs, "draft_probs": self._draft_probs}
        args["row_top_p"] = buffers.pop("row_top_p")
        calls = (
            backend.bind("processed_probs", logits, probs=probs, **args),
            backend.bind("top_p_candidates", probs, **buffers, **state.args("top_p_candidates", rows)),
        )
        return calls, {**buffers, "top_p": state["top_p"]}

    def _verify(self, judged_by: Mapping[str, Any]) -> BoundOp:
        settings = self._settings
        args = {**self._state.args("verify_draft_tokens"), "target_tokens": None, "top_p": None, **judged_by}
        return self._backend.bind(
            "verify_draft_tokens", **args, strategy=settings.verify_strategy, verify_window=settings.verify_window
        )

    def _score(self, logits: Any, rows: int, n: int) -> tuple[Calls, dict[str, Any]]:
        """The calls that give log-probabilities of what was accepted, and where these end up."""
        backend, state = self._backend, self._state
        if n not in self._scores:
            names = ("token_ids", "rows", "ids", "logprobs", "ranks")
            self._scores[n] = {name: state.allocate(name, A_cap=state.symbols["R_cap"], N=n) for name in names}
        buffers = {name: tensor[:rows] for name, tensor in self._scores[n].items()}
        packed = {name: buffers.pop(name) for name in ("token_ids", "rows")}
        offsets = state["cu_batch_token_offset"]
        calls = (
            backend.bind("gather_accepted", logits, **packed, **state.args("gather_accepted")),
            backend.bind("token_logprobs", logits, **packed, cu_batch_token_offset=offsets, **buffers),
        )
        return calls, buffers

    def _raw_logits(self) -> Any:
        if self._raw is None:
            self._raw = self._state.allocate("logits", V=self._vocab_size)
        return self._raw
