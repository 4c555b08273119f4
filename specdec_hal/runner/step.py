"""One decode step: the ops of the contract in their order, around two calls of the model.

prepare_inputs -> adjust_batch -> model -> gather_next_token -> logits -> penalties -> sampling parameters -> target
tokens, candidates or probabilities -> verify_draft_tokens -> log-probabilities -> update_model_status. Plain decoding
is the same path with one token a slot. Nothing here asks what hardware it runs on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backend import Backend
from specdec_hal.config import SpeculativeSettings
from specdec_hal.models import ForwardBatch, Segment, TargetModel
from specdec_hal.ops import Strategy, TokenOrder
from specdec_hal.runner.metrics import StepRecord
from specdec_hal.runner.request import TokenLogprobs
from specdec_hal.state import DecodeState


@dataclass(frozen=True)
class StepNeeds:
    """What the requests of this step ask for beyond tokens. `logprobs`: most alternatives wanted, None for none."""

    penalties: bool
    logprobs: int | None


@dataclass
class StepResult:
    """What a step emitted, by slot; slots that emitted nothing have empty lists."""

    tokens: list[list[int]]
    from_draft: list[list[bool]]
    drafted: NDArray[np.int64]
    prefill: NDArray[np.bool_]
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)


class DecodeStep:
    """The bound ops of a runner."""

    def __init__(self, backend: Backend, model: TargetModel, state: DecodeState, settings: SpeculativeSettings) -> None:
        self.backend, self.model, self.state, self.settings = backend, model, state, settings
        r_cap = state.symbols["R_cap"]
        self._model_ids = state.allocate("ids_remove_padding")
        self._hidden = state.device.zeros((r_cap, model.config.hidden_size), "float32")
        self._no_top_p = state.device.upload(np.ones(r_cap, np.float32))
        self._prepare = backend.bind("prepare_inputs", **state.args("prepare_inputs"))
        self._adjust = backend.bind(
            "adjust_batch", state["ids_remove_padding"], out=self._model_ids, **state.args("adjust_batch")
        )
        self._spread_params = backend.bind("build_sampling_params", **state.args("build_sampling_params"))
        self._update = backend.bind("update_model_status", **state.args("update_model_status"))

    def run(self, needs: StepNeeds, record: StepRecord) -> StepResult:
        """Advance every active slot."""
        state = self.state
        with record.stage("prepare"):
            self._prepare()
            self._adjust()
            tokens, rows = (int(n) for n in state.read("num_tokens"))
            batch = ForwardBatch(state.device.download(self._model_ids[:tokens])[:, 0], self._segments())
        record.input_tokens, record.output_rows = tokens, rows
        with record.stage("forward"):
            hidden = self.model.forward(batch)
        with record.stage("gather"):
            picked = self._hidden[:rows]
            args = state.args("gather_next_token", rows)
            self.backend.gather_next_token(hidden, out=picked, is_speculative=True, **args)
        with record.stage("logits"):
            logits = self.model.compute_logits(picked)
        raw = logits
        if needs.penalties:
            with record.stage("penalties"):
                if needs.logprobs is not None:
                    raw = state.device.copy(logits)
                self.backend.apply_penalties(logits, **state.args("apply_penalties", rows))
        with record.stage("sample"):
            self._spread_params()
            judged_by = self._judge(logits, rows)
        with record.stage("verify"):
            strategy, window = self.settings.verify_strategy, self.settings.verify_window
            self.backend.verify_draft_tokens(
                **{**state.args("verify_draft_tokens"), "target_tokens": None, "top_p": None, **judged_by},
                strategy=strategy,
                verify_window=window,
            )
        result = self._result()
        if needs.logprobs is not None:
            with record.stage("logprobs"):
                result.logprobs = self._logprobs(raw, rows, needs.logprobs)
        with record.stage("update"):
            self._update()
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

    def _judge(self, logits: Any, rows: int) -> dict[str, Any]:
        """What the strategy compares drafts with: arguments of verify_draft_tokens."""
        state, strategy = self.state, self.settings.verify_strategy
        if strategy in (Strategy.GREEDY, Strategy.TARGET_MATCH):
            args = state.args("sample_target", rows)
            self.backend.sample_target(logits, **args)
            return {"target_tokens": args["target_tokens"]}
        vocabulary = self.model.config.vocab_size
        probs = state.allocate("probs", R_cap=rows, V=vocabulary)
        args = state.args("processed_probs", rows)
        if strategy is Strategy.REJECTION:
            self.backend.processed_probs(logits, probs=probs, **args)
            return {"target_probs": probs}
        # TOPP applies top_p when it picks candidates.
        args["row_top_p"] = self._no_top_p[:rows]
        self.backend.processed_probs(logits, probs=probs, **args)
        shape = {"R_cap": rows, "C": min(self.settings.candidates, vocabulary)}
        names = ("candidate_ids", "candidate_scores", "candidate_lens")
        candidates = {name: state.allocate(name, **shape) for name in names}
        self.backend.top_p_candidates(probs, **candidates, **state.args("top_p_candidates", rows))
        return {**candidates, "top_p": state["top_p"]}

    def _result(self) -> StepResult:
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
        return StepResult(tokens, [[bool(flag) for flag in flags] for flags in from_draft], drafted, prefill)

    def _logprobs(self, logits: Any, rows: int, top: int) -> dict[int, list[TokenLogprobs]]:
        state = self.state
        shape = {"A_cap": rows, "N": min(top, self.model.config.vocab_size - 1) + 1}
        buffers = {name: state.allocate(name, **shape) for name in ("token_ids", "rows", "ids", "logprobs", "ranks")}
        packed = {name: buffers[name] for name in ("token_ids", "rows")}
        offsets = state["cu_batch_token_offset"]
        self.backend.gather_accepted(logits, **packed, **state.args("gather_accepted"))
        scores = {name: buffers[name] for name in ("ids", "logprobs", "ranks")}
        self.backend.token_logprobs(logits, **packed, cu_batch_token_offset=offsets, **scores)
        ids, values, ranks = (state.device.download(scores[name]).tolist() for name in ("ids", "logprobs", "ranks"))
        entries = [
            TokenLogprobs(value[0], rank, tuple(zip(id_[1:], value[1:], strict=True)))
            for id_, value, rank in zip(ids, values, ranks, strict=True)
        ]
        ends = state.read("cu_batch_token_offset").tolist()
        return {b: entries[ends[b] : ends[b + 1]] for b in range(len(ends) - 1)}
