"""ModelRunner: requests in, tokens out."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

from specdec_hal.backend import Backend
from specdec_hal.config.schema import Config
from specdec_hal.device import get_device
from specdec_hal.errors import EngineDeadError, RequestError, UnsupportedError
from specdec_hal.models import TargetModel, Tokenizer, load_model
from specdec_hal.models.protocol import DeviceModel
from specdec_hal.proposers.protocol import Proposer, ProposerContext, SlotView
from specdec_hal.registry import Registry, or_default
from specdec_hal.runner.admission import MAX_BAD_TOKENS, MAX_STOP_SEQUENCES, RequestRules
from specdec_hal.runner.blocks import BlockPool
from specdec_hal.runner.metrics import Metrics, StepRecord
from specdec_hal.runner.plan import Needs, Planner, StepPlan
from specdec_hal.runner.recovery import Trials
from specdec_hal.runner.report import StepReport
from specdec_hal.runner.request import Request, RequestOutput, StreamDelta
from specdec_hal.runner.scheduler import Schedule, Scheduler, Work
from specdec_hal.runner.sequence import Sequence
from specdec_hal.staging import Fetched
from specdec_hal.state import DecodeState

_log = logging.getLogger("specdec_hal")


@dataclass
class _Launched:
    """A step under way: what it does, and how to get what it did."""

    schedule: Schedule
    record: StepRecord
    plan: StepPlan
    report: Fetched
    logprobs: Fetched | None


Gain = tuple[Sequence, StreamDelta]

_cache_owners: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Which runner each model's KV cache belongs to, by the runner's id."""


class ModelRunner:
    """Decodes many requests at once, more than there are slots if need be, speculatively or not.

    ``runner.add_request(Request("a", ids)); outputs = runner.run()``. With a fixed seed a request's tokens do not
    depend on drafts, slot, batch, chunking, preemption or overlap (strategy TARGET_MATCH or GREEDY), as far as the
    model's logits do not. With overlap a step is launched before the step before it is read; what only the host knows
    takes effect a step later, and tokens beyond it are dropped. Not thread-safe: one thread adds, steps and cancels;
    callbacks run on it and may add or cancel.
    """

    def __init__(
        self,
        config: Config,
        backend: Backend,
        model: TargetModel,
        tokenizer: Tokenizer | None = None,
        *,
        registry: Registry | None = None,
    ) -> None:
        speculative, settings = config.speculative, config.runner
        self._registry = or_default(registry)
        spec = self._registry.get_proposer(speculative.method)
        if spec.settings is not None and speculative.settings is None:
            raise config.error(f"speculative.{spec.name}", "not checked; parse it with the runner's registry")
        k, slots = speculative.num_speculative_tokens, settings.max_num_seqs
        headroom = k if self._registry.pads_drafts(spec.name, speculative.settings) else 0
        longest = model.config.max_position_embeddings - headroom
        max_model_len = longest if settings.max_model_len is None else settings.max_model_len
        if not 1 <= max_model_len <= longest:
            raise config.error("runner.max_model_len", f"expected 1..{longest} for this model, got {max_model_len}")
        self.config, self.backend, self.model, self.tokenizer = config, backend, model, tokenizer
        self.max_model_len = max_model_len
        self.metrics = Metrics()
        self.end_tokens = frozenset(model.config.eos_token_ids)
        self._headroom = headroom
        pool = self._allocate_cache()
        _cache_owners[model] = id(self)
        chunk = min(settings.prefill_chunk, max_model_len)
        self.state = DecodeState(
            max_num_seqs=slots,
            num_speculative_tokens=k,
            max_model_len=max_model_len,
            prefill_chunk=chunk,
            end_tokens=self.end_tokens,
            max_bad_tokens=MAX_BAD_TOKENS,
            max_num_batched_tokens=settings.max_num_batched_tokens or slots * (k + 1) + chunk,
            max_stop_sequences=MAX_STOP_SEQUENCES,
            max_blocks=0 if pool is None else pool.needed(max_model_len + headroom),
            device=get_device(backend.place, model.framework),
        )
        if self.state.symbols["T_cap"] < slots * (k + 1) + 1:
            expected = f"expected at least {slots * (k + 1) + 1}: a decode step of every slot, and a prompt token"
            raise config.error("runner.max_num_batched_tokens", f"{expected}, got {settings.max_num_batched_tokens}")
        self._proposer = self._build_proposer()
        alone = model.capabilities.device_lengths and self._proposer.runs_on == "device"
        asynchronous = alone and backend.asynchronous and not backend.debug
        self.overlap = asynchronous if settings.overlap is None else settings.overlap
        if self.overlap and self._proposer.runs_on == "host":
            raise config.error("runner.overlap", f"the proposer '{speculative.method}' works on the host; set false")
        captured = asynchronous and model.capabilities.static_shapes and settings.graph is not False
        self._planner = Planner(backend, model, self.state, self._proposer, speculative, captured=captured)
        self._planner.check()
        self._scheduler = Scheduler(self.state, pool, headroom)
        room = None if pool is None else pool.num_blocks * pool.block_size - headroom
        missing = frozenset(status.op for status in backend.explain() if not status.available)
        self._rules = RequestRules(model.config.vocab_size, max_model_len, speculative, room, missing)
        self._launched: deque[_Launched] = deque()
        self._trials = Trials()
        self._finished: dict[str, RequestOutput] = {}

    def _allocate_cache(self) -> BlockPool | None:
        """The model's KV cache: blocks of one pool where it has them, else room for every slot."""
        config, model = self.config.runner, self.model
        positions = self.max_model_len + self._headroom
        if not model.capabilities.device_lengths:
            model.allocate(config.max_num_seqs, positions)
            return None
        whole = config.max_num_seqs * -(-positions // config.block_size)
        blocks = whole if config.num_kv_blocks is None else config.num_kv_blocks
        cast(DeviceModel, model).allocate_blocks(blocks, config.block_size, positions)
        return BlockPool(blocks, config.block_size)

    def _build_proposer(self) -> Proposer:
        """The configured proposer; UnsupportedError for one that needs what the model cannot do."""
        config, model, registry = self.config, self.model, self._registry
        method = config.speculative.method
        load = partial(load_model, framework=config.model.framework, registry=registry, device=self.backend.place)
        settings = config.speculative.settings
        context = ProposerContext(self.backend, self.state, model, self.tokenizer, settings, config, load)
        proposer = registry.build_proposer(method, context)
        offered = model.capabilities.hidden_layers
        missing = [layer for layer in proposer.hidden_layers if layer not in offered]
        if missing:
            raise UnsupportedError(
                f"speculative.method '{method}' asks for hidden states of the layers {missing}, the model gives those "
                f"of {sorted(offered)} (-1: the final norm); choose another method or another model"
            )
        return proposer

    # ---- requests

    def add_request(self, request: Request) -> None:
        """Queue a request. RequestError, with nothing changed, if it cannot be served as asked."""
        if self._scheduler.find(request.request_id) is not None or request.request_id in self._finished:
            name = f"request '{request.request_id}'"
            raise RequestError(f"{name}: the id is in use; choose another, or take the finished output first")
        limit = self._rules.check(request, self.tokenizer)
        detokenizer = self.tokenizer.detokenizer() if self.tokenizer is not None else None
        self._scheduler.add(Sequence(request, limit, detokenizer))

    def cancel(self, request_id: str) -> bool:
        """End a waiting or running request with what it has; False if there is none of that id.

        Its callback gets a last delta, with the text that was held back.
        """
        sequence = self._scheduler.find(request_id)
        if sequence is None:
            return False
        sequence.finish("cancelled")
        self._retire(sequence)
        delta = sequence.delta()
        self._deliver([] if delta is None else [(sequence, delta)])
        return True

    @property
    def has_requests(self) -> bool:
        """Whether anything waits or runs."""
        return self._scheduler.live > 0

    def run(self) -> dict[str, RequestOutput]:
        """Step until nothing is left; every finished output not taken before, by request id."""
        while self.has_requests:
            self.step()
        return self.take_finished()

    def take_finished(self) -> dict[str, RequestOutput]:
        """The outputs finished since the last call; their ids are free again."""
        finished, self._finished = self._finished, {}
        return finished

    def summary(self) -> dict[str, Any]:
        """The metrics, with preemptions, captured graphs, and what fell back to another backend."""
        return {
            **self.metrics.summary(),
            "preemptions": self._scheduler.preemptions,
            "graphs": self._planner.captures,
            "graph_failures": self._planner.capture_failures,
            "fallback_calls": dict(self.backend.fallback_calls),
        }

    # ---- one step

    def step(self) -> list[StreamDelta]:
        """Launch a step, and read the one that is due; what each request gained. Callbacks have been called.

        Without overlap the two are the same step. A step that fails is taken apart (:mod:`.recovery`), and is not
        raised.
        """
        with self.state.device.working():
            scheduled = self._launch()
            gains = self._read_down_to(int(self.overlap and scheduled))
        self._deliver(gains)
        return [delta for _, delta in gains]

    def _read_down_to(self, under_way: int) -> list[Gain]:
        gains: list[Gain] = []
        while len(self._launched) > under_way:
            gains += self._read(self._launched.popleft())
        return gains

    def _launch(self) -> bool:
        """Schedule and launch the next step; False if there is nothing to do before older ones are read."""
        self._trials.passed()
        if _cache_owners.get(self.model) != id(self):
            raise EngineDeadError(
                "expected a model whose KV cache is this runner's, got one that a later runner took over; give each "
                "runner a model of its own, or finish with one before you make the next"
            )
        schedule = self._scheduler.schedule(self._trials.on_trial)
        if schedule is None:
            return False
        record = StepRecord()
        try:
            plan, logprobs = self._enqueue(schedule, record)
            report = self.state.report.fetch()
        except Exception as error:
            self._failed(schedule, error)
            return False
        for work in schedule.work.values():
            work.sequence.in_flight += 1
        self._launched.append(_Launched(schedule, record, plan, report, logprobs))
        return True

    def _enqueue(self, schedule: Schedule, record: StepRecord) -> tuple[StepPlan, Fetched | None]:
        if schedule.filled:
            self._proposer.reset(schedule.filled)
        params = [work.sequence.request.params for work in schedule.work.values()]
        wanted = max((p.logprobs for p in params if p.logprobs is not None), default=None)
        columns = 0 if wanted is None else 1 + min(_power_of_two(wanted), self.model.config.vocab_size - 1)
        stops = any(work.sequence.stop_sequences for work in schedule.work.values())
        needs = Needs(any(p.penalised for p in params), stops, columns)
        bucket = self._planner.bucket(schedule.slots, schedule.tokens, schedule.context, schedule.chunked, needs)
        return self._planner.launch(bucket, record)

    def _read(self, step: _Launched) -> list[Gain]:
        """Take over what a step did."""
        record = step.record
        with record.stage("wait"):
            report = StepReport(step.report(), None if step.logprobs is None else step.logprobs())
        with record.stage("host"):
            gains, drafted, accepted = [], list[int](), list[int]()
            for slot, work in step.schedule.work.items():
                sequence, before = work.sequence, work.sequence.accepted
                sequence.in_flight -= 1
                delta = self._take(slot, work, report, record)
                if delta is not None:
                    gains.append((sequence, delta))
                    if not work.chunk:
                        drafted.append(report.fed(slot) - 1)
                        accepted.append(sequence.accepted - before)
            record.count_drafts(drafted, accepted)
        if self._proposer.runs_on == "host":
            with record.stage("propose"):
                self._draft(step.plan, report, record)
        self.metrics.add(record)
        self._registry.step_finished(record)
        return gains

    def _take(self, slot: int, work: Work, report: StepReport, record: StepRecord) -> StreamDelta | None:
        """What one slot's request gained; None if it has ended meanwhile, or gained nothing to show."""
        sequence, fed = work.sequence, report.fed(slot)
        record.input_tokens += fed
        record.output_rows += min(fed, 1) if work.chunk else fed
        record.prefill_slots += bool(work.chunk)
        if sequence.finish_reason is not None or not work.emits:
            return None
        tokens = report.tokens(slot)
        flags = [False] * len(tokens) if work.chunk else report.from_draft(slot, tokens)
        before, top = len(sequence.token_ids), sequence.request.params.logprobs
        logprobs = [] if top is None else report.logprobs(slot, len(tokens), top)
        sequence.extend(tokens, flags, logprobs, self.end_tokens)
        gained = len(sequence.token_ids) - before
        record.emitted += gained
        if not work.chunk:
            sequence.steps += 1
            sequence.drafted += fed - 1
            sequence.accepted += sum(flags)
            record.decode_slots += 1
            record.decode_tokens += gained
        delta = sequence.delta()
        if sequence.finish_reason is not None:
            self._retire(sequence)
        return delta

    def _failed(self, schedule: Schedule, error: Exception) -> None:
        """A step could not be launched: read what is under way, send everybody back, and find out whose fault it is."""
        _log.exception("a step of %d requests failed; they are computed again", len(schedule.work))
        self.metrics.failed_steps += 1
        gains = self._read_down_to(0)
        for sequence in reversed(list(self._scheduler.running.values())):
            self._scheduler.preempt(sequence)
        suspects = [work.sequence for work in schedule.work.values() if work.sequence.finish_reason is None]
        culprit = self._trials.failed(suspects) if suspects else None
        if culprit is not None:
            culprit.finish("error", f"its step raised {type(error).__name__}: {error}")
            self._retire(culprit)
        self._deliver(gains)

    def _draft(self, plan: StepPlan, report: StepReport, record: StepRecord) -> None:
        """Drafts of a proposer on the host, for the requests that go on and have their whole prompt in the cache."""
        k = self.config.speculative.num_speculative_tokens
        views = []
        for slot, sequence in self._scheduler.running.items():
            if sequence.prefilling or not sequence.token_ids:
                continue
            request = sequence.request
            wanted = request.params.num_speculative_tokens
            left = sequence.max_new_tokens - len(sequence.token_ids) - 1
            most = max(min(k, k if wanted is None else wanted, left), 0)
            views.append(
                SlotView(
                    slot, request.request_id, request.prompt_token_ids, sequence.token_ids, report.tokens(slot), most
                )
            )
        view = plan.view(self.state.device.stream())
        view.slots, view.vocab_size = views, self.model.config.vocab_size
        self._planner.propose(view)
        record.dropped_drafts += view.dropped

    def _retire(self, sequence: Sequence) -> None:
        assert sequence.finish_reason is not None
        self._scheduler.release(sequence)
        self._finished[sequence.request.request_id] = sequence.output()
        self.metrics.requests[sequence.finish_reason] += 1

    def _deliver(self, gains: list[Gain]) -> None:
        for sequence, delta in gains:
            if sequence.request.callback is None:
                continue
            try:
                sequence.request.callback(delta)
            except Exception as error:
                _log.exception("request '%s': its callback failed; the request is ended", delta.request_id)
                if sequence.finish_reason is None:
                    sequence.finish("error", f"its callback raised {type(error).__name__}: {error}")
                    self._retire(sequence)


def _power_of_two(value: int) -> int:
    """The smallest power of two that is >= `value`; 0 for 0."""
    return 1 << (value - 1).bit_length() if value else 0
