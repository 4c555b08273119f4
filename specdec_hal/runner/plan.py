"""One decode step as a plan: the ops of the contract in their order, around two calls of the model, bound once.

schedule_slots -> prepare_inputs -> adjust_batch -> model -> gather_next_token -> logits -> bias, penalties,
reasoning_constraint, apply_token_bitmask -> sampling parameters -> target tokens, candidates or probabilities ->
verify_draft_tokens -> limit_thinking -> log-probabilities -> set_stop_sequences -> update_model_status -> proposer.
Plain decoding is the same path with one token a slot.

A plan is made for a :class:`Bucket`, sizes and needs that a step fits into, and kept. Where backend and model declare
that they can, it reads no device value, so that it is captured as a device graph; elsewhere it is a list of calls. A
proposer on the device is the plan's last call. One on the host drafts between two launches, when the host has read what
the first of them accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from specdec_hal.config.schema import ModelSettings, SpeculativeSettings
from specdec_hal.errors import PluginError
from specdec_hal.ops import MatchPolicy, Strategy, TokenOrder
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, DeviceModel, ForwardBatch, Segment, TargetModel
from specdec_hal.plugin.proposer import Proposer, StepBounds, StepView
from specdec_hal.runner.admission import MAX_LOGIT_BIAS
from specdec_hal.runner.metrics import TimedStep
from specdec_hal.runner.prompt_logprobs import PromptChunk, PromptScorer, ScoredPrompts
from specdec_hal.runner.row_masks import RowMasks
from specdec_hal.runner.scheduler import Schedule
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.state import REPORT, ROW_SCORES, DecodeState
from specdec_hal.tensors.device import DeviceGraph
from specdec_hal.tensors.transfer import Fetched, Outputs

_log = logging.getLogger("specdec_hal")

LOGPROBS = (-1, 0, 5, 20)
"""Alternatives, -1 without log-probabilities, to which a step's are rounded up; more become powers of two. OpenAI's API
has at most 5 and 20.
"""

Call = Callable[[int], None]
"""A part of a step; takes the stream."""


class Features(NamedTuple):
    """What a step's requests need besides tokens.

    `logprobs`: N, columns of log-probabilities; 0 for none. `bias`: most biased tokens of a request. `allowed`: a
    request is restricted to some tokens. `masked`: rows are restricted by masks that the host writes while the model
    computes.
    """

    penalties: bool = False
    stops: bool = False
    thinking: bool = False
    answer: bool = False
    logprobs: int = 0
    bias: int = 0
    allowed: bool = False
    masked: bool = False

    @classmethod
    def of(cls, sequences: Iterable[Sequence], vocab_size: int, masked: bool = False) -> Features:
        """The combined needs, rounded up to powers of two for few plans."""
        wanted = {id(one.wants): one.wants for one in sequences}.values()  # equal ones are the same
        top = max((one.top for one in wanted), default=-1)
        biased = max((one.bias for one in wanted), default=0)
        return cls(
            penalties=any(one.penalties for one in wanted),
            stops=any(one.stops for one in wanted),
            thinking=any(one.thinking for one in wanted),
            answer=any(one.answer for one in wanted),
            logprobs=_columns(top, vocab_size),
            bias=_round_up(biased, 1, MAX_LOGIT_BIAS) if biased else 0,
            allowed=any(one.allowed for one in wanted),
            masked=masked,
        )

    @property
    def changes_logits(self) -> bool:
        """Whether tokens are drawn from other logits than the model's."""
        return bool(self.bias) or self.penalties or self.answer or self.allowed or self.masked


class Bucket(NamedTuple):
    """Capacities for a step: slots, packed tokens, output rows, tokens per slot (1: no slot has drafts), context."""

    slots: int
    tokens: int
    rows: int
    query: int
    context: int
    features: Features


@dataclass
class Part:
    """Calls that are captured together. `masked`: they need row masks. `wanted`: whether a step has them. `launched`:
    they ran once, so that what they need is compiled and allocated.
    """

    calls: list[tuple[str, Call]]
    masked: bool = False
    wanted: Callable[[], bool] = lambda: True
    launched: bool = False
    replay: DeviceGraph | None = None


@dataclass
class CompiledStep:
    """The calls of a step, by stage. `report`: tensors read by the host. `logprobs`: outputs of `token_logprobs`."""

    parts: list[Part]
    report: tuple[str, ...] = REPORT
    logprobs: Outputs | None = None
    view: Callable[[int], StepView] = field(init=False)

    @property
    def replays(self) -> list[DeviceGraph]:
        """The captured parts."""
        return [part.replay for part in self.parts if part.replay is not None]

    @property
    def captured(self) -> bool:
        """Whether all parts are."""
        return all(part.replay is not None for part in self.parts)

    @property
    def launched(self) -> bool:
        """Whether all parts were."""
        return all(part.launched for part in self.parts)

    def begin(self, step: StepBuilder, **options: Any) -> None:
        """Collect the next calls of `step` in a new part."""
        self.parts.append(Part([], **options))
        step.calls = self.parts[-1].calls

    def run(
        self, stream: int, record: TimedStep, make_masks: Callable[[], None] | None = None, every: bool = False
    ) -> None:
        """Launch the wanted parts, or `every` one, captured or call by call and timed by stage.

        `make_masks` runs before one with row masks.
        """
        for part in self.parts:
            if not (every or part.wanted()):
                continue
            if part.masked:
                assert make_masks is not None
                with record.stage("mask"):
                    make_masks()
            if part.replay is not None:
                with record.stage("replay"):
                    part.replay()
            else:
                run_calls(part.calls, stream, record)
                part.launched = True

    def fetch(self, report: Outputs) -> Fetched:
        """Start copying a launch's results to the host."""
        fetched = report.fetch(self.report)
        if self.logprobs is None:
            return fetched
        scores = self.logprobs.fetch()
        return lambda: {**fetched(), **scores()}


class StepBuilder:
    """Collects the calls of a step, by stage. `sizes`: extents of the contract's symbols that lead shapes."""

    def __init__(self, backend: Backend, state: DecodeState, sizes: Mapping[str, int]) -> None:
        self.backend, self.state, self.sizes = backend, state, sizes
        self.calls: list[tuple[str, Call]] = []

    def add(self, stage: str, op: str, *tensors: Any, **operands: Any) -> None:
        """Bind an op to `tensors`, `operands` and what else of it the state holds."""
        self.call(stage, self.backend.bind(op, *tensors, **self.state.args(op, self.sizes, **operands)))

    def call(self, stage: str, call: Call) -> None:
        """Add another call."""
        self.calls.append((stage, call))


def run_calls(calls: Iterable[tuple[str, Call]], stream: int, record: TimedStep) -> None:
    """Launch calls, timed by stage."""
    for stage, call in calls:
        with record.stage(stage, call):
            call(stream)


@dataclass
class LaunchedStep:
    """A running step and its pending results. `forced`: slots with drafts from a grammar. `narrow`: no slot has any."""

    schedule: Schedule
    record: TimedStep
    plan: CompiledStep
    report: Fetched
    prompts: ScoredPrompts | None
    forced: Collection[int] = ()
    narrow: bool = False


@dataclass
class Buffers:
    """Shared buffers of a runner's plans, at full capacity; a plan uses the first rows.

    `hidden` [T_cap, D] and `picked` [R_cap, D] are by layer.
    """

    hidden: dict[int, Any]
    picked: dict[int, Any]
    logits: Any
    extra: dict[str, Any] = field(default_factory=dict)


class StepCompiler:
    """Makes and keeps the plans of one runner.

    `static`: the model takes device tensors of fixed capacity, so that no call reads a device value. `captured`: plans
    become device graphs; one that cannot be captured is launched call by call, which is logged once. `parts`: this
    rank's part of the vocabulary. `named`: the model's thinking tokens. `masks`: row masks.
    """

    def __init__(
        self,
        backend: Backend,
        model: TargetModel,
        state: DecodeState,
        proposer: Proposer,
        settings: SpeculativeSettings,
        *,
        captured: bool,
        named: ModelSettings,
        masks: RowMasks,
    ) -> None:
        self._named, self._masks = named, masks
        self.backend, self.model, self.state, self.proposer, self.settings = backend, model, state, proposer, settings
        self.static = model.capabilities.device_lengths
        # Models over device tensors need slot order, by `batch_id_per_token`.
        self._order = TokenOrder.SLOT if self.static else backend.token_order
        self.captured = captured
        self._compiled = self._compilations()
        self.captures = self.capture_failures = self.failed_proposals = 0
        self._capturing, self._warming = False, True
        self._late = {"bind": 0, "capture": 0}
        self._no_drafts: Call | None = None
        self.plans: dict[Bucket, CompiledStep] = {}
        self._whole = {Features()}
        """Features of steps whose plans are captured in as few parts as possible. Plans of others, and of steps with
        prompts, share parts."""
        self._parts: dict[tuple[Any, ...], CompiledStep] = {}
        """Shared parts: those that sample by slots and features, and those before and after by the other sizes."""
        self._heads: dict[tuple[int, int], list[tuple[str, Call]]] = {}
        self._model_ids: Any = None
        self._fed = 0
        self._scored: set[int] = set()
        self._starts: dict[int, int] = {}
        self._prompts: PromptScorer | None = None
        size, config, device = state.symbols, model.config, state.device
        self._layers = tuple(dict.fromkeys((FINAL_NORM, *proposer.hidden_layers)))
        dtype = model.capabilities.hidden_dtype
        self._draft_probs: Any = None
        self._buffers = Buffers(
            hidden={layer: device.zeros((size["T_cap"], config.hidden_size), dtype) for layer in self._layers},
            picked={layer: device.zeros((size["R_cap"], config.hidden_size), dtype) for layer in self._layers},
            logits=device.zeros((size["R_cap"], config.vocab_size), "float32"),
        )

    def check(self) -> None:
        """Bind the ops of every step, so that a backend without one is refused before any request."""
        bucket = self.bucket(1, 1, 1, False, Features())
        if self.static:
            self.plans[bucket] = self._plan(bucket)
        else:
            self._bind_head(bucket)
            bucket = bucket._replace(rows=1)
            self.plans[bucket] = self._plan(bucket)
        self._warming = False

    # ---- choosing a plan

    def features(self, sequences: Collection[Sequence], masked: bool = False) -> Features:
        """The needs of a step, and more if fewer plans have to be prepared then. `masked`: whether rows have masks."""
        found = Features.of(sequences, self.model.config.vocab_size, masked)
        return found if not self.static or found in self._whole else found._replace(stops=True)

    def bucket(
        self, slots: int, tokens: int, context: int, chunked: bool, features: Features, drafts: bool = True
    ) -> Bucket:
        """The smallest bucket for a step; sizes are powers of two, for few buckets. `drafts`: a slot may have some."""
        size, s = self.state.symbols, self.state.symbols["S"]
        if not self.static:  # exact: every size that the model sees is computed
            return Bucket(size["M"], size["T_cap"], 0, size["I_cap"], size["L"], features)
        slots = _round_up(slots, 1, size["M"])
        if self.settings.adaptive and not (drafts or chunked) and features in self._whole:
            s = 1
        packed = _round_up(tokens, 128, size["T_cap"]) if chunked else slots * s
        query = max(s, size["I_cap"]) if chunked else s
        return Bucket(slots, max(packed, slots * s), slots * s, query, _round_up(context, 512, size["L"]), features)

    def padded(self, slots: int) -> list[int]:
        """Numbers of tokens, ascending, to which steps with prompts are padded in which so many slots decode; if none
        is padded, some sizes.
        """
        size, rows = self.state.symbols, _round_up(slots, 1, self.state.symbols["M"]) * self.state.symbols["S"]
        if not self.static:
            return _sizes(rows + 16, size["T_cap"])
        return sorted({max(one, rows) for one in _sizes(128, size["T_cap"])})

    def warm_up(
        self, features: Collection[Features], others: Iterable[Features], progress: Callable[[int, int], None]
    ) -> None:
        """Bind, launch and capture the plans of all steps with these needs, and the parts of those of `others`.

        All slots are idle, so nothing is computed. `progress(done, all)` may raise, which ends it.
        """
        if not self.static:
            return
        self._whole.update(features)
        more = dict.fromkeys(one._replace(stops=True) for one in (*features, *others))
        shared = [one for one in more if one not in self._whole]
        own = [bucket for wanted in features for bucket in self._buckets(wanted)]
        # Others have rows for drafts, and share all parts but what samples, which depends on the number of slots alone.
        wide = [bucket for bucket in own if bucket.query >= self.state.symbols["S"]]
        sizes = dict.fromkeys(bucket._replace(features=Features()) for bucket in wide if not self._chunked(bucket))
        smallest = {bucket.slots: bucket for bucket in wide}.values()
        needed = [(one, smallest if at else sizes) for at, one in enumerate(shared)]
        buckets = [*own, *(bucket._replace(features=one) for one, some in needed for bucket in some)]
        self._warming = True
        try:
            if (compiling := getattr(self.model, "compiling", None)) is not None:
                with compiling():  # only collects the model's kernels, to compile them in parallel
                    for bucket in own:
                        for part in self._bound(bucket).parts:
                            run_calls(part.calls, self.state.device.stream(), TimedStep())
            for done, bucket in enumerate(buckets):
                progress(done, len(buckets))
                while not self._warm(bucket):
                    _, fetched = self.launch(bucket, TimedStep(), (), _no_masks)
                    fetched()
            progress(len(buckets), len(buckets))
        finally:
            self._warming = False
            self._compiled = self._compilations()

    def _warm(self, bucket: Bucket) -> bool:
        """Whether this bucket's plan is ready. Changed draft probabilities drop all plans."""
        plan = self._bound(bucket)
        return plan.captured if self.captured else plan.launched

    def _buckets(self, features: Features) -> list[Bucket]:
        """Every bucket of steps with these needs, large ones first: scratch memory that grows is never given back."""
        size, found = self.state.symbols, dict[Bucket, None]()
        width = max(size["S"], size["I_cap"])
        for context in reversed(_sizes(512, size["L"])):
            for slots in reversed(_sizes(1, size["M"])):
                before = [0, *_sizes(128, size["T_cap"])]
                for least, tokens in reversed(list(pairwise(before))):
                    if least < slots * width:
                        found[self.bucket(slots, tokens, context, True, features)] = None
                for drafts in (True, False):
                    found[self.bucket(slots, 0, context, False, features, drafts)] = None
        return list(found)

    def _chunked(self, bucket: Bucket) -> bool:
        """Whether steps may have chunks of prompts: they take long enough for a launch or two more."""
        return bucket.tokens != bucket.rows or bucket.query > self.state.symbols["S"]

    def _bound(self, bucket: Bucket) -> CompiledStep:
        plan = self.plans.get(bucket)
        if plan is None:
            self.plans[bucket] = plan = self._plan(bucket)
        return plan

    @property
    def late(self) -> dict[str, int]:
        """Counts of plans captured, of these or their parts bound, and of kernels compiled, while requests waited."""
        return {**self._late, "compile": self._compilations() - self._compiled}

    @property
    def prepared(self) -> int:
        """How many plans were bound or captured while requests waited."""
        return self._late["bind"] + self._late["capture"]

    def _compilations(self) -> int:
        return int(getattr(self.model, "compilations", 0))  # optional for models

    def launch(
        self,
        bucket: Bucket,
        record: TimedStep,
        chunks: Iterable[PromptChunk] = (),
        make_masks: Callable[[], None] | None = None,
    ) -> tuple[CompiledStep, Fetched]:
        """Enqueue a step. Returns its plan and pending results.

        `chunks`: of prompts, for :meth:`score_prompts`. `make_masks` fills the runner's
        :class:`~specdec_hal.runner.row_masks.RowMasks` for a step with masked rows, and is called after the model.
        """
        stream = self.state.device.stream()
        self._scored = {chunk.slot for chunk in chunks}
        if not self.static:
            bucket = self._read_rows(bucket, stream, record)
        plan = self._bound(bucket)
        if self.captured and (launched := [part for part in plan.parts if part.launched and part.replay is None]):
            self._capture(plan, launched)
        plan.run(stream, record, make_masks, every=self._warming)
        return plan, plan.fetch(self.state.report)

    def score_prompts(self, chunks: list[PromptChunk], record: TimedStep) -> ScoredPrompts:
        """Enqueue the log-probabilities of prompt tokens, after the :meth:`launch` of the step that they are of."""
        buffers = self._buffers
        if self._prompts is None:
            self._prompts = PromptScorer(self.backend, self.model, self.state, buffers.logits)
        top = max(chunk.sequence.request.params.prompt_logprobs or 0 for chunk in chunks)
        starts = None if self.static else self._starts
        columns = _columns(top, self.model.config.vocab_size)
        with record.stage("logprobs"):
            stream = self.state.device.stream()
            return self._prompts.launch(chunks, buffers.hidden[FINAL_NORM], starts, columns, stream)

    def _capture(self, plan: CompiledStep, parts: Iterable[Part]) -> None:
        """Capture parts of a plan after their first launch, which compiled and allocated."""
        device, self._capturing = self.state.device, True

        def launch(part: Part) -> None:
            run_calls(part.calls, device.stream(), TimedStep())  # the captured stream

        try:
            for part in parts:
                part.replay = device.capture(partial(launch, part))
        except Exception as error:
            self.captured = False
            self.capture_failures += 1
            _release(plan)
            _log.warning(
                "a step could not be captured (%s: %s); steps are launched op by op", type(error).__name__, error
            )
        else:
            self.captures += 1
        finally:
            self._capturing = False
            self._late["capture"] += not self._warming

    def release(self) -> None:
        """Free the captured steps."""
        for plan in (*self.plans.values(), *self._parts.values()):
            _release(plan)
        self.plans.clear()
        self._parts.clear()

    # ---- the calls

    def _plan(self, bucket: Bucket) -> CompiledStep:
        if self.static and (bucket.features not in self._whole or self._chunked(bucket)):
            return self._shared_plan(bucket)
        plan, step = self._new(bucket)
        self._first(bucket, plan, step)
        self._sample(bucket, plan, step)
        self._last(bucket, plan, step)
        return plan

    def _new(self, bucket: Bucket) -> tuple[CompiledStep, StepBuilder]:
        step = StepBuilder(self.backend, self.state, _extents(bucket))
        self._late["bind"] += self.static and not self._warming
        return CompiledStep([Part(step.calls)]), step

    def _shared_plan(self, bucket: Bucket) -> CompiledStep:
        """A plan of parts that other plans have too: to sample depends on the number of slots, not on other sizes."""
        first = self._part(bucket, self._first, "first", *bucket[:-1])
        sample = self._part(bucket, self._sample, "sample", bucket.rows, bucket.slots, bucket.features)
        last = self._part(bucket, self._last, "last", *bucket[:-1])
        parts = [part for some in (first, sample, last) for part in some.parts if part.calls]
        plan = CompiledStep(parts, sample.report, sample.logprobs)
        plan.view = last.view
        # What a plan with the same sizes has launched is compiled and allocated: nothing is launched before a capture.
        whole = (self.plans.get(bucket._replace(features=one)) for one in self._whole)
        if sample.captured and any(other is not None and other.launched for other in whole):
            for part in parts:
                part.launched = True
        return plan

    def _part(
        self, bucket: Bucket, add: Callable[[Bucket, CompiledStep, StepBuilder], None], *key: Any
    ) -> CompiledStep:
        if key not in self._parts:
            part, step = self._new(bucket)
            add(bucket, part, step)
            self._parts[key] = part
        return self._parts[key]

    def _first(self, bucket: Bucket, plan: CompiledStep, step: StepBuilder) -> None:
        """From the scheduler's decisions to logits."""
        if self.static:
            self._head(step)
            self._forward(bucket, step)
        buffers, rows = self._buffers, bucket.rows
        for layer, x in buffers.hidden.items():
            order = {"is_speculative": True, "token_order": self._order}
            step.add("gather", "gather_next_token", x[: bucket.tokens], out=buffers.picked[layer][:rows], **order)
        logits = self._logits(buffers.picked[FINAL_NORM][:rows], buffers.logits[:rows], bucket.slots)
        step.call("logits", logits)

    def _head(self, step: StepBuilder) -> None:
        """From the scheduler's decisions to the packed tokens of the step."""
        step.add("prepare", "schedule_slots")
        step.add("prepare", "prepare_inputs")
        packed = self._model_ids = self.state.part("ids_remove_padding", step.sizes)
        if self._order is not TokenOrder.SLOT:
            self._model_ids = self.state.allocate("ids_remove_padding", T_cap=step.sizes["T_cap"])
            step.add("prepare", "adjust_batch", packed, out=self._model_ids)

    def _forward(self, bucket: Bucket, step: StepBuilder) -> None:
        """The model over device tensors."""
        state, model = self.state, cast(DeviceModel, self.model)
        batch = DeviceBatch(
            token_ids=self._model_ids,
            batch_id_per_token=state.part("batch_id_per_token", step.sizes),
            cu_seqlens_q=state.part("cu_seqlens_q", step.sizes),
            seq_lens_decoder=state["seq_lens_decoder"],
            block_tables=state["block_tables"],
            max_seq_len=bucket.context,
            max_query_len=bucket.query,
            decode_len=min(bucket.query, state.symbols["S"]),
        )
        hidden = {layer: tensor[: bucket.tokens] for layer, tensor in self._buffers.hidden.items()}
        step.call("forward", lambda stream: model.forward_device(batch, hidden))

    def _sample(self, bucket: Bucket, plan: CompiledStep, step: StepBuilder) -> None:
        """From logits to the slots' new status."""
        state, features, rows = self.state, bucket.features, bucket.rows
        raw = logits = self._buffers.logits[:rows]
        if features.changes_logits and features.logprobs:
            raw = self._extra("logits", V=self.model.config.vocab_size)[:rows]
            step.call("penalties", lambda stream: state.device.assign(raw, logits))
        slots = state.part("batch_id_per_token_output", step.sizes)
        if features.bias:
            step.call("penalties", lambda stream: state.bias.add(logits, slots, features.bias))
        if features.penalties:
            step.add("penalties", "apply_penalties", logits)
        if features.answer:
            tokens = {"think_end_id": self._named.think_end_id, "line_break_id": self._named.line_break_id}
            step.add("penalties", "reasoning_constraint", logits, **tokens)
        if features.allowed:
            masks = {"bitmask": state.slot_masks.tensor, "bitmask_rows": slots}
            step.add("penalties", "apply_token_bitmask", logits, **masks)
        if features.masked:
            plan.begin(step, masked=True)
            operands = {name: tensor[:rows] for name, tensor in self._masks.tensors.items()}
            step.add("mask", "apply_token_bitmask", logits, **operands)
        step.add("sample", "build_sampling_params")
        scores = {}
        if self._sampling_scores(features):
            plan.report = (*REPORT, *ROW_SCORES)
            scores = {output: state.report.tensors[name][:rows] for name, output in ROW_SCORES.items()}
        verified_by = self._verify(logits, step, scores)
        strategy, window = self.settings.verify_strategy, self.settings.verify_window
        step.add("verify", "verify_draft_tokens", strategy=strategy, verify_window=window, **verified_by)
        if features.thinking:
            step.add("verify", "limit_thinking", think_end_id=self._named.think_end_id)
        if features.logprobs and not scores:
            plan.logprobs = self._logprobs(raw, bucket, step)
        if features.stops:
            step.add("verify", "set_stop_sequences")
        step.add("update", "update_model_status")

    def _last(self, bucket: Bucket, plan: CompiledStep, step: StepBuilder) -> None:
        """The drafts of the next step, if the device makes them."""
        buffers = self._buffers
        hidden = {layer: tensor[: bucket.tokens] for layer, tensor in buffers.hidden.items()}
        picked = {layer: tensor[: bucket.rows] for layer, tensor in buffers.picked.items()}
        bounds = StepBounds(bucket.slots, bucket.tokens, bucket.query, bucket.context)
        plan.view = partial(self._view, hidden, picked, bounds)
        if self.proposer.runs_on == "device":
            modes = self.proposer.modes if self.settings.adaptive else ("propose",)
            for mode in modes:
                if len(modes) > 1:
                    plan.begin(step, wanted=partial(self._in_mode, mode))
                step.call("propose", partial(self._propose, mode, plan))

    def _in_mode(self, mode: str) -> bool:
        return self.proposer.mode == mode

    def _view(self, hidden: dict[int, Any], picked: dict[int, Any], bounds: StepBounds, stream: int) -> StepView:
        layers = self.proposer.hidden_layers
        inputs = {layer: hidden[layer] if self.static else hidden[layer][: self._fed] for layer in layers}
        return StepView(self.state, stream, bounds, {layer: picked[layer] for layer in layers}, inputs)

    def _propose(self, mode: str, plan: CompiledStep, stream: int) -> None:
        """Let a device proposer draft; after an error the next step has no drafts."""
        view = plan.view(stream)
        try:
            self._drafted(getattr(self.proposer, mode)(view))
        except PluginError:
            raise
        except Exception:
            if self._capturing:
                raise
            self.failed_proposals += 1
            _log.exception("the proposer failed; the next step has no drafts")
            if self._no_drafts is None:
                self._no_drafts = self._bind_no_drafts()
            self._no_drafts(view.stream)

    def _bind_no_drafts(self) -> Call:
        """Sets the next step's lengths without drafts: a look-up with K = 0."""
        args = self.state.args("ngram_match")
        args["draft_token_num"] = self.state.allocate("draft_token_num")
        attrs = {"token_budget": self.state.symbols["T_cap"], "match_policy": MatchPolicy.LATEST}
        return self.backend.bind("ngram_match", max_ngram_size=1, **attrs, **args)

    def propose(self, view: StepView) -> None:
        """Let the proposer draft; rebuilds plans if its tensor of draft probabilities changes."""
        self._drafted(self.proposer.propose(view), [one.slot for one in view.slots])

    def _drafted(self, draft_probs: Any, slots: list[int] | slice = slice(None)) -> None:
        if self.backend.debug:
            self._check_drafts(slots)
        if draft_probs is not None and not self.proposer.gives_draft_probs:
            raise PluginError(
                f"proposer '{self.settings.method}' returned draft probabilities and declares gives_draft_probs = "
                "False; set it to True"
            )
        if draft_probs is self._draft_probs or self.settings.verify_strategy is not Strategy.REJECTION:
            return
        self._draft_probs = draft_probs
        self.plans.clear()
        self._parts.clear()

    def _check_drafts(self, slots: list[int] | slice) -> None:
        """PluginError if the next step's drafts or base tokens of these slots are outside the vocabulary."""
        state, vocabulary = self.state, self.model.config.vocab_size
        given = np.where(state.read("seq_lens_encoder") > 0, 0, state.read("seq_lens_this_time"))
        lens = np.zeros_like(given)
        lens[slots] = given[slots]
        width = state.symbols["S"]
        for slot in np.flatnonzero(lens > width):
            raise self._misbehaved(f"set {lens[slot]} input tokens for slot {slot}, expected at most {width}")
        ids = state.read("draft_tokens")
        wrong = ((ids < 0) | (ids >= vocabulary)) & (np.arange(width) < lens[:, None])
        wrong[:, 0] &= ids[:, 0] != -1  # a row without a distribution; its request ends when this step is read
        for slot, column in np.argwhere(wrong):
            what = f"draft_tokens[{slot}, {column}] = {ids[slot, column]}"
            raise self._misbehaved(f"left {what}, outside the vocabulary [0, {vocabulary})")

    @property
    def exact_drafts(self) -> bool:
        """Whether verification uses the drafts' distributions."""
        return self._draft_probs is not None

    def _misbehaved(self, what: str) -> PluginError:
        return PluginError(f"proposer '{self.settings.method}' {what}; fix it (found by runner.debug)")

    def _logits(self, picked: Any, logits: Any, slots: int) -> Call:
        device, model = self.state.device, self.model
        if not self.static:
            return lambda stream: device.assign(logits, model.compute_logits(picked))
        counted = self.state["cu_seqlens_q_output"][slots : slots + 1]
        num_rows = None if self.backend.debug else counted  # debug checks read every row
        compute = cast(DeviceModel, model).compute_logits_device
        return lambda stream: compute(picked, logits, num_rows)

    def _extra(self, name: str, **symbols: int) -> Any:
        """A buffer of this name at full capacity, shared by all plans."""
        if name not in self._buffers.extra:
            self._buffers.extra[name] = self.state.allocate(name, **symbols)
        return self._buffers.extra[name]

    def _sampling_scores(self, features: Features) -> bool:
        """Whether `sample_target` can report the log-probabilities: only of emitted tokens, all target tokens of their
        rows, from unmodified logits.
        """
        verified_by_token = self.settings.verify_strategy in (Strategy.GREEDY, Strategy.TARGET_MATCH)
        return features.logprobs == 1 and verified_by_token and not (features.changes_logits or features.thinking)

    def _verify(self, logits: Any, step: StepBuilder, scores: Mapping[str, Any]) -> dict[str, Any]:
        """Additional arguments of verify_draft_tokens for the strategy.

        `scores`: outputs of `sample_target` for the log-probabilities of its tokens.
        """
        state, strategy, rows = self.state, self.settings.verify_strategy, step.sizes["R_cap"]
        if strategy in (Strategy.GREEDY, Strategy.TARGET_MATCH):
            step.add("sample", "sample_target", logits, **scores)
            return {}
        vocabulary = self.model.config.vocab_size
        probs = self._extra("probs", V=vocabulary)[:rows]
        if strategy is Strategy.REJECTION:
            step.add("sample", "processed_probs", logits, probs=probs)
            return {"target_probs": probs, "draft_probs": self._draft_probs}
        # TOPP applies top_p when it picks candidates.
        if "row_top_p" not in self._buffers.extra:
            self._buffers.extra["row_top_p"] = state.device.upload(np.ones(state.symbols["R_cap"], np.float32))
        step.add("sample", "processed_probs", logits, probs=probs, row_top_p=self._buffers.extra["row_top_p"][:rows])
        width = min(self.settings.candidates, vocabulary)
        names = ("candidate_ids", "candidate_scores", "candidate_lens")
        candidates = {name: self._extra(name, C=width)[:rows] for name in names}
        step.add("sample", "top_p_candidates", probs, **candidates)
        return candidates

    def _logprobs(self, logits: Any, bucket: Bucket, step: StepBuilder) -> Outputs:
        state = self.state
        shape = {"A_cap": bucket.rows, "N": bucket.features.logprobs, "B": bucket.slots}
        names = ("ids", "logprobs", "ranks", "cu_batch_token_offset")
        outputs = state.device.outputs({name: state.field(name, **shape) for name in names})
        packed = {
            name: self._extra(name, A_cap=state.symbols["R_cap"])[: bucket.rows] for name in ("token_ids", "rows")
        }
        offsets = outputs.tensors["cu_batch_token_offset"]
        step.add("logprobs", "gather_accepted", logits, **packed, cu_batch_token_offset=offsets)
        step.call("logprobs", self.backend.bind("token_logprobs", logits, **packed, **outputs.tensors))
        return outputs

    # ---- models that take lists

    def _bind_head(self, bucket: Bucket) -> list[tuple[str, Call]]:
        step = StepBuilder(self.backend, self.state, _extents(bucket._replace(rows=self.state.symbols["R_cap"])))
        self._head(step)
        self._heads[bucket.slots, bucket.tokens] = step.calls
        return step.calls

    def _read_rows(self, bucket: Bucket, stream: int, record: TimedStep) -> Bucket:
        """Run the first part and the model of a step for a model with host batches; returns the bucket with its
        rows."""
        state, key = self.state, (bucket.slots, bucket.tokens)
        run_calls(self._heads.get(key) or self._bind_head(bucket), stream, record)
        with record.stage("prepare"):
            self._fed, rows = (int(n) for n in state.read("num_tokens"))
            tokens = self._fed
            ids = state.device.download(self._model_ids[:tokens])[:, 0]
            segments = self._segments()
            self._starts = {segment.slot: segment.start for segment in segments}
            ids = self._in_vocabulary(ids, segments, record)
            batch = ForwardBatch(ids, segments, self.proposer.hidden_layers)
        with record.stage("forward"):
            hidden = self.model.forward(batch)
        with record.stage("gather"):
            for layer, tensor in self._buffers.hidden.items():
                state.device.assign(tensor[:tokens], hidden[layer])
        return bucket._replace(rows=rows)

    def _in_vocabulary(self, ids: Any, segments: list[Segment], record: TimedStep) -> Any:
        """The ids with drafts outside the vocabulary replaced; no strategy accepts them."""
        wrong = (ids < 0) | (ids >= self.model.config.vocab_size)
        if not wrong.any():
            return ids
        record.dropped_drafts += sum(bool(wrong[one.start : one.start + one.length].any()) for one in segments)
        return np.where(wrong, 0, ids)

    def _segments(self) -> list[Segment]:
        """The slot of each run of packed tokens, in the backend's order."""
        names = ("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder")
        lens, encoder, decoder = (self.state.read(name).tolist() for name in names)
        slots = [b for b, length in enumerate(lens) if length > 0]
        if self._order is TokenOrder.PREFILL_FIRST:
            slots.sort(key=lambda b: encoder[b] == 0)
        segments, start = [], 0
        for b in slots:
            outputs = 1 if encoder[b] and b not in self._scored else lens[b]
            segments.append(Segment(b, start, lens[b], decoder[b], outputs))
            start += lens[b]
        return segments


def _extents(bucket: Bucket) -> dict[str, int]:
    return {"B": bucket.slots, "T_cap": bucket.tokens, "R_cap": bucket.rows}


def _no_masks() -> None:
    """No row has one."""


def _release(plan: CompiledStep) -> None:
    for part in plan.parts:
        if part.replay is not None:
            part.replay.release()
            part.replay = None


def _columns(top: int, vocab_size: int) -> int:
    """N for a number of alternatives (-1: no log-probabilities)."""
    few = [one for one in LOGPROBS if top <= one]
    return 1 + min(vocab_size - 1, few[0] if few else _round_up(top, 1, vocab_size - 1))


def _sizes(least: int, most: int) -> list[int]:
    """What :func:`_round_up` gives."""
    sizes = [min(least, most)]
    while sizes[-1] < most:
        sizes.append(_round_up(sizes[-1] + 1, least, most))
    return sizes


def _round_up(value: int, least: int, most: int) -> int:
    """The smallest power-of-two multiple of `least` that is >= value, at most `most`."""
    size = least
    while size < value:
        size *= 2
    return min(size, most)
