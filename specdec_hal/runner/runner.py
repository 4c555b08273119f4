"""ModelRunner: requests in, tokens out."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from specdec_hal.config.schema import Config
from specdec_hal.errors import EngineDeadError, JournalError, PluginError, RequestError
from specdec_hal.models import Tokenizer
from specdec_hal.output.processor import TextProcessor
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.model import LongRopeModel, RecurrentModel, TargetModel
from specdec_hal.plugin.registry import Registry
from specdec_hal.request import (
    Drafts,
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
    StreamDelta,
)
from specdec_hal.runner import bad_words
from specdec_hal.runner.build import RunnerHook, RunnerParts, build_parts
from specdec_hal.runner.deadlines import Deadlines
from specdec_hal.runner.delivery import Delivery
from specdec_hal.runner.draft_length import DraftLengths
from specdec_hal.runner.guard import Guard, check_cache
from specdec_hal.runner.host_drafts import propose, slot_views
from specdec_hal.runner.journal import Journal, Record, record_of, revive
from specdec_hal.runner.method import DraftMethods
from specdec_hal.runner.metrics import Counts, Load, Metrics, TimedStep, clock
from specdec_hal.runner.plan import LOGPROBS, CompiledStep, Features, LaunchedStep
from specdec_hal.runner.prefill_budget import PrefillBudget
from specdec_hal.runner.prompt_logprobs import chunks_of
from specdec_hal.runner.recovery import Bisection
from specdec_hal.runner.report import StepReport, StepSink
from specdec_hal.runner.scheduler import Schedule, Work
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.slot_table import Ints
from specdec_hal.runner.slot_writer import SlotWriter
from specdec_hal.runner.structured import MaskedStep
from specdec_hal.runner.watchdog import Activity
from specdec_hal.structured.backend import Grammar
from specdec_hal.structured.compiler import Grammars
from specdec_hal.text import describe, short

_log = logging.getLogger("specdec_hal")


class ModelRunner:
    """Decodes many requests at once, even more than there are slots, with or without speculation.

    :func:`build_runner` makes one, of its `parts`; ``runner.add_request(Request("a", ids)); outputs = runner.run()``.
    With a fixed seed a request's tokens do not depend on drafts, slot, batch, chunking, preemption or overlap (strategy
    TARGET_MATCH or GREEDY), as far as the model's logits do not. With overlap a step is launched before the previous
    one is read; what only the host knows takes effect a step later, and tokens beyond it are dropped. Not thread-safe:
    one thread adds, steps and cancels; callbacks run on it and may add or cancel. RunnerBusyError for a step inside a
    callback, or on another thread.
    """

    def __init__(self, parts: RunnerParts) -> None:
        self._registry, self._hook = parts.registry, parts.hook
        self.config, self.backend, self.model = parts.config, parts.backend, parts.model
        self.tokenizer = parts.tokenizer
        self.state, self.max_model_len, self.overlap = parts.state, parts.max_model_len, parts.overlap
        self.kv_cache_bytes = parts.kv_cache_bytes
        """Bytes of the pool of KV blocks; 0 for a cache that grows with its contexts."""
        self.state_bytes = parts.state_bytes
        """Bytes of recurrent states, all slots; 0 for a model without any."""
        self.proposer, self.compiler, self.scheduler = parts.proposer, parts.compiler, parts.scheduler
        self._slots = SlotWriter(parts.state)
        self._rules, self._structured, self._masks = parts.rules, parts.structured, parts.masks
        self.lengths, self._launches = parts.lengths, parts.launches
        self.methods = parts.lengths if isinstance(parts.lengths, DraftMethods) else None
        """The choice of a method while decoding, if the method is "auto" and there are several."""
        config, settings = parts.config, parts.config.runner
        self.default_params = SamplingParams.default(config)
        self.metrics = Metrics()
        self._vocab_size = parts.model.config.vocab_size
        self.end_tokens = frozenset(parts.model.config.eos_token_ids)
        self._ordinary = np.arange(self._vocab_size + 1) < self._vocab_size
        self._ordinary[[token for token in self.end_tokens if token < self._vocab_size]] = False
        self._undrafted = set[int]()
        """Slots whose request the proposer refused."""
        self._drafting = self._drafted = True
        """Whether a request may draft in the next step, and whether one might in the last."""
        self._prepared = 0
        """The compiler's, when the last step was read."""
        self._most_drafts, self._length_rows = np.zeros((2, parts.state.symbols["M"]), np.int64)
        """By slot: the most drafts of its last request without adaptation, and its row in :attr:`lengths`."""
        self._launched: deque[LaunchedStep] = deque()
        self._masked = 0
        """Live requests with masks in some rows."""
        self.prefill_budget: PrefillBudget | None = None
        """Limits the prompts of steps in which requests decode, if wanted."""
        if (ratio := settings.mixed_step_ratio) is not None:
            self.prefill_budget = PrefillBudget(ratio, parts.compiler.padded, parts.state.symbols["S"])
            self.scheduler.prompt_limit = self.prefill_budget.limit
        self.scheduler.rope_switch = parts.model.capabilities.rope_switch
        self._gap_from: float | None = None
        """When the last call of :meth:`step` ended, if requests ran."""
        self._read_at: float | None = None
        """When the last step was read, if requests ran."""
        self._features: Features | None = None
        """Those of the last step."""
        self.bisection = Bisection()
        self._finished: dict[str, Sequence] = {}
        self._guard = Guard()
        self.resources = ExitStack()
        """Resources released by :meth:`close`."""
        make, known = getattr(parts.tokenizer, "detokenizer", None), getattr(parts.tokenizer, "known_texts", None)
        texts = TextProcessor(make, self.end_tokens, known)
        self._delivery = Delivery(texts, parts.state.symbols["M"], partial(self._end, "error"))
        self.sink: StepSink = self._delivery
        """Receiver of steps. Another one makes texts and finds stop strings elsewhere, and deltas are its own."""
        self._journal = None if settings.journal is None else Journal(settings.journal, settings.journal_interval)
        self._deadlines = Deadlines(settings, time.monotonic)
        names = {"forward": "model", "logits": "model", "propose": f"proposer '{config.speculative.method}'"}
        self._activity = Activity(settings.watchdog_s, {**names, "wait": "a step on the device"})

    def attach(self, sink: StepSink) -> None:
        """Send the results of steps to `sink`, which makes text and checks stop strings."""
        self.sink = sink

    # ---- requests

    def add_request(self, request: Request) -> None:
        """Queue a copy of a request.

        RequestError, with nothing changed, if it cannot be served; QueueFullError if too many wait.
        """
        self.add_requests([request])

    def add_requests(self, requests: Iterable[Request]) -> None:
        """Queue copies of requests as :meth:`add_request` does, all or none.

        They count as one in the queue: `n` choices of a prompt are admitted together.
        """
        self._guard.check("add_request")
        sequences: dict[str, Sequence] = {}
        for request in requests:
            sequence = self._sequence(request)
            if sequences.setdefault(sequence.request.request_id, sequence) is not sequence:
                raise _in_use(sequence.request)
        if sequences and not self.scheduler.has_room:
            self._deadlines.admit(f"request '{next(iter(sequences))}'", self.scheduler.line)
        for sequence in sequences.values():
            self._admit(sequence)

    def compile_grammars(self, requests: Iterable[Request]) -> list[Grammar]:
        """Compile the grammars of requests (`structured`) before :meth:`add_requests`, on any thread.

        Hold the result until they are added. RequestError for an invalid or too large grammar.
        """
        wanted = (request.params.structured for request in requests)
        return [self._structured.compiled(one) for one in wanted if one is not None]

    def _admit(self, sequence: Sequence) -> None:
        self.sink.begun(sequence)
        self.scheduler.add(sequence)
        self._deadlines.watch(sequence)
        self._masked += sequence.wants.masked

    def _sequence(self, request: Request) -> Sequence:
        reads = self.tokenizer is not None or self.sink is not self._delivery
        copy, prompt, limit = self._rules.check(request, reads)
        copy = bad_words.spelled(copy, self.tokenizer, self._vocab_size)
        if self.find(copy.request_id) is not None:
            raise _in_use(copy)
        sequence = Sequence(copy, limit, prompt)
        sequence.grammar = self._structured.begin(copy.params, f"request {short(copy.request_id)}")
        return sequence

    def cancel(self, request_id: str, reason: FinishReason = "cancelled", error: str = "") -> bool:
        """End a live request with its output so far; False for an unknown id.

        Its callback gets a last delta with held-back text: at once or, if a callback cancels, after that returns.
        """
        self._guard.check("cancel")
        sequence = self.scheduler.find(request_id)
        if sequence is None:
            return False
        self._end(reason, sequence, error)
        self.sink.deliver()
        return True

    @property
    def has_requests(self) -> bool:
        """Whether anything is waiting, running or undelivered."""
        return self.scheduler.live > 0 or len(self._delivery) > 0

    def run(self) -> dict[str, RequestOutput]:
        """Step until idle; returns untaken finished outputs by request id."""
        self._guard.outside("run")
        while self.has_requests:
            self.step()
        return self.take_finished()

    def take_finished(self, request_ids: Collection[str] | None = None) -> dict[str, RequestOutput]:
        """Take finished outputs, all or the named ones; their ids become free."""
        names = list(self._finished) if request_ids is None else [n for n in request_ids if n in self._finished]
        return {name: self.sink.finished(self._finished.pop(name)) for name in names}

    def find(self, request_id: str) -> Sequence | None:
        """The live or finished request of that id, if its output was not taken."""
        return self.scheduler.find(request_id) or self._finished.get(request_id)

    @property
    def streams(self) -> list[Sequence]:
        """All requests with untaken outputs: finished ones, then the others, oldest first."""
        return [*self._finished.values(), *self.scheduler.sequences]

    def snapshot(self) -> list[Record]:
        """Records to resume all :attr:`streams`; see :mod:`.journal`."""
        return [record_of(sequence) for sequence in self.streams]

    def restore(self, records: list[Record]) -> None:
        """Resume the requests of a :meth:`snapshot` or a file (:func:`specdec_hal.runner.journal.read`).

        Each streams from its first token. JournalError or RequestError, with nothing changed, if one cannot be served.
        """
        self._guard.outside("restore")
        sequences = revive(records, self._sequence, self.end_tokens, self._vocab_size)
        twice = [name for name, times in Counter(s.request.request_id for s in sequences).items() if times > 1]
        if twice:
            raise JournalError(f"request {short(twice[0])} is in the journal twice; give a file of runner.journal")
        for sequence in sequences:
            self._admit(sequence)
            if sequence.finish_reason is not None:
                self._took(sequence)

    @property
    def cache_config(self) -> dict[str, str]:
        """Of the KV cache: its block size and number of blocks, if it has any, and whether prefixes are shared."""
        pool, shares = self.scheduler.pool, str(self.scheduler.shares_prefixes)
        blocks = {} if pool is None else {"block_size": str(pool.block_size), "num_gpu_blocks": str(pool.num_blocks)}
        return {**blocks, "enable_prefix_caching": shares}

    def load(self) -> Load:
        """Its current load. Thread-safe."""
        scheduler, pool = self.scheduler, self.scheduler.pool
        running = len(scheduler.running)
        usage = running / self.state.symbols["M"] if pool is None else 1 - pool.free / pool.num_blocks
        return Load(
            running, len(scheduler.waiting), usage, scheduler.preemptions, scheduler.prefix_queries,
            scheduler.prefix_hits,
        )  # fmt: skip

    def counts(self) -> Counts:
        """Its counts so far. Thread-safe."""
        return Counts.of(self.metrics, self.load(), self.backend.fallback_calls, self.compiler.late)

    def summary(self) -> dict[str, Any]:
        """The metrics, with preemptions, captured graphs and fallbacks."""
        return {
            **self.metrics.summary(),
            "failed_proposals": self.metrics.failed_proposals + self.compiler.failed_proposals,
            "preemptions": self.scheduler.preemptions,
            "prefix_cache_queries": self.scheduler.prefix_queries,
            "prefix_cache_hits": self.scheduler.prefix_hits,
            "graphs": self.compiler.captures,
            "graph_failures": self.compiler.capture_failures,
            "journal_failures": 0 if self._journal is None else self._journal.failures,
            "late": self.compiler.late,
            "fallback_calls": dict(self.backend.fallback_calls),
            "shadow": None if self.backend.shadow is None else self.backend.shadow.summary(),
        }

    def forget(self) -> None:
        """Forget finished requests: metrics, acceptance, the proposer's cached responses, and prefixes in the KV cache.

        Compiled and captured steps and their measured cost are kept, so benchmarks of a warm runner start here.
        RequestError while requests are live or outputs untaken.
        """
        with self._guard.driving("forget"), self.state.device.working():
            self._read_down_to(0)  # a step launched before the last request's end was known
        if self.has_requests or self._finished:
            found = f"{self.scheduler.live} live and {len(self._finished)} finished ones"
            raise RequestError(
                f"forget(): expected no requests, got {found}; run() them first, which takes the outputs"
            )
        self.metrics = Metrics()
        if self.lengths is not None:
            self.lengths.forget()
        self.proposer.forget()
        self.scheduler.forget_prefixes()
        self._hook.forget()

    def warm_up(self, progress: Callable[[int, int], None] = lambda done, steps: None) -> None:
        """Compile and capture all steps of requests with the defaults of the section `sampling`, of those without
        options, and of both with penalties, stop tokens, log-probabilities, and a grammar if a library is installed.

        Other options (`logit_bias`, `allowed_token_ids`, limits of thinking) are bound on first use, counted by `late`
        of :meth:`summary`. Nothing to do without device launches. `progress(done, all)` is called before each step and
        at the end; raising ends the warm-up. RequestError while requests are live.
        """
        with self._guard.driving("warm_up"), self.state.device.working():
            self._read_down_to(0)
            if self.has_requests:
                raise RequestError(f"warm_up(): expected no requests, got {self.scheduler.live}; call it before")
            if not self._launches:
                return
            self._slots.apply(self.scheduler.idle())
            asked = (self.default_params, SamplingParams(), SamplingParams(temperature=1.0, top_p=0.9))
            own = [Sequence(Request("", [0], one), 1) for one in asked]
            penalised = Sequence(Request("", [0], SamplingParams(presence_penalty=1.0)), 1)
            scored = [Sequence(Request("", [0], SamplingParams(logprobs=top)), 1) for top in LOGPROBS[1:]]
            masked = (False, True) if self.tokenizer is not None and self.grammars.names else (False,)
            features = dict.fromkeys(self.compiler.features([one]) for one in own)
            others = dict.fromkeys(
                self.compiler.features([one, *penalties, *scores], with_masks)
                for with_masks in masked
                for one in own
                for penalties in ([], [penalised])
                for scores in ([], *([one] for one in scored))
            )
            self.compiler.warm_up(features, others, progress)

    @property
    def method(self) -> str:
        """The method that drafts now; without a choice, the configured one. Any thread may ask."""
        return self.config.speculative.method if self.methods is None else self.methods.in_use

    @property
    def device_wait_s(self) -> float:
        """How long this process has waited for its device. Any thread may ask."""
        doing = self._activity.doing
        return 0.0 if doing is None or doing[0] not in ("wait", "replay") else time.perf_counter() - doing[2]

    @property
    def late(self) -> str:
        """That a step has not returned within `runner.watchdog_s`, or "". Any thread may ask."""
        return self._activity.late

    @property
    def grammars(self) -> Grammars:
        """What requests have as `structured`, compiled."""
        return self._structured.grammars

    def when_lost(self, ended: Callable[[EngineDeadError], None]) -> None:
        """Register `ended`, called from any thread when the runner's ranks are lost, even if a step hangs. Never called
        within one process.
        """

    def close(self) -> None:
        """Free captured steps and :attr:`resources`. No more steps; outputs can still be taken. Idempotent."""
        if self._guard.close():
            self.compiler.release()
        self.resources.close()

    # ---- one step

    def step(self) -> list[StreamDelta]:
        """Launch a step and read the due one; returns deltas since the last call.

        Callbacks have been called. Without overlap the two are the same step. A failed step is handled by
        :mod:`.recovery` and does not raise. With another :attr:`sink` there are no deltas.
        """
        with self._guard.driving("step"), self._activity.step():
            for sequence, late in self._deadlines.passed():
                self._end("timeout", sequence, late)
            with self.state.device.working():
                if self._masked:  # the next masks need the previous step's tokens
                    self._read_down_to(0)
                scheduled = self._launch()
                due = self._launched[0].schedule if len(self._launched) == 1 + self.overlap else None
                self._read_down_to(int(self.overlap and scheduled and not self._masked))
            self.sink.deliver()
            if self.prefill_budget is not None:
                self._time_gap(self.prefill_budget, due)
            if self._journal is not None:
                self._journal.step(self.snapshot, idle=not self.has_requests)
            self._hook.stepped(self.metrics.steps)
            return self.sink.take()

    def _time_gap(self, budget: PrefillBudget, read: Schedule | None) -> None:
        """Count the time between the tokens of the step that this call has read and those of the last call."""
        now, before = time.perf_counter(), self._gap_from
        self._gap_from = now if self.scheduler.running else None
        if read is not None and before is not None and (decoding := int(read.decodes.sum())):
            prompts = sum(read.work[slot].chunk for slot in read.chunks)
            budget.stepped(decoding, prompts, now - before)

    def _read_down_to(self, under_way: int) -> None:
        while len(self._launched) > under_way:
            self._read(self._launched.popleft())

    def _launch(self) -> bool:
        """Schedule and launch the next step; False if there is nothing to do before older ones are read."""
        self.bisection.passed()
        check_cache(self.model, self.state)
        schedule = self.scheduler.schedule(self.bisection.on_trial)
        if schedule is None:
            return False
        self._slots.apply(schedule)
        record = TimedStep(activity=self._activity, method=self.method)
        recurrent = cast(RecurrentModel, self.model)
        try:
            if self.scheduler.rope_switch is not None:
                for slot, sequence in schedule.filled.items():
                    cast(LongRopeModel, self.model).set_long(slot, sequence.long)
            for slot, (entry, position) in schedule.resumed.items():
                recurrent.resume_prefix(entry, slot, position)
            step = self._enqueue(schedule, record)
            for slot, (entry, position) in schedule.kept.items():
                recurrent.keep_prefix(slot, position, entry)
        except (EngineDeadError, PluginError):
            raise  # no request is at fault
        except Exception as error:
            self._failed(schedule, error)
            return False
        self.scheduler.launched(schedule)
        self._launched.append(step)
        return True

    def _enqueue(self, schedule: Schedule, record: TimedStep) -> LaunchedStep:
        if schedule.filled:
            failed = self._reset_proposer(list(schedule.filled))
            for slot in self._undrafted.intersection(schedule.filled):
                schedule.work[slot].sequence.draft_rows = False
            self._limit_new(list(schedule.filled), failed=failed)
        masked = self._plan_masks(schedule)
        features = self._features
        if features is None or not schedule.steady or self._masked:
            features = self.compiler.features([work.sequence for work in schedule.work.values()], masked is not None)
            self._features = features
        bucket = self.compiler.bucket(
            schedule.slots, schedule.tokens, schedule.context, schedule.chunked, features, self._drafted
        )
        self._drafted = self._drafting
        record.bucket = bucket.slots, bucket.tokens, bucket.context
        chunks, before = chunks_of(schedule) if schedule.chunked else [], self.compiler.failed_proposals
        fill = None if masked is None else partial(self._fill_masks, masked)
        plan, report = self.compiler.launch(bucket, record, chunks, fill)
        if self.compiler.failed_proposals != before:
            for work in schedule.work.values():
                work.sequence.draft_rows = False
        prompts = self.compiler.score_prompts(chunks, record) if chunks else None
        forced, narrow = () if masked is None else masked.forced, self.compiler.static and bucket.query == 1
        return LaunchedStep(schedule, record, plan, report, prompts, forced, narrow)

    def _plan_masks(self, schedule: Schedule) -> MaskedStep | None:
        """Write masks of bad words, and return the grammars' part; None without masks."""
        if not self._masked or not any(work.sequence.wants.masked for work in schedule.work.values()):
            return None
        self._masks.forget()
        step = self._structured.plan(schedule, self.compiler.exact_drafts, self._grammar_failed)
        forbidden = bad_words.forbid(self._masks, self.state, schedule)
        return step if forbidden or step.rows else None

    def _fill_masks(self, step: MaskedStep) -> None:
        self._structured.fill(step, self._masks, self._grammar_failed)
        self._masks.upload()

    def _grammar_failed(self, sequence: Sequence, error: str) -> None:
        self._end("error", sequence, error)

    def _reset_proposer(self, slots: list[int]) -> bool:
        """Pass new requests to the proposer; those that it fails on continue without drafts. Returns whether there are
        any.
        """
        try:
            self.proposer.reset(slots)
        except PluginError:
            raise
        except Exception:
            self.metrics.failed_proposals += 1
            _log.exception("the proposer failed to take new requests in the slots %s", slots)
            if len(slots) > 1:
                return any([self._reset_proposer([slot]) for slot in slots])
            self._undrafted.update(slots)
            return True
        self._undrafted.difference_update(slots)
        return False

    def _read(self, step: LaunchedStep) -> None:
        """Process a step's results."""
        record, schedule = step.record, step.schedule
        with record.stage("wait"):
            values = step.report()
        with record.stage("host"):
            if step.prompts is not None:
                step.prompts.read(self.sink.scored)
            report = StepReport(values, schedule.slots, 1 if step.narrow else None)
            self._hook.took(self.metrics.steps, schedule.work, report)
            self._take(step, report)
        self._read_at = clock() if self.scheduler.running else None
        if self.proposer.runs_on == "host":
            with record.stage("propose"):
                longest = self._draft(step.plan, report, record)
            self._drafted = longest > 0
            if isinstance(self.lengths, DraftLengths):
                self.lengths.proposed(longest, record.seconds["propose"])
        self.metrics.add(record)
        self._registry.step_finished(record)

    def _take(self, step: LaunchedStep, report: StepReport) -> None:
        """Take over a step's tokens, of all slots at once, and have the sink show them.

        Some are also looked at alone: where a request ends or has left its slot, prompts, and what needs more of a step
        than tokens.
        """
        schedule, table, own = step.schedule, self.scheduler.table, slice(step.schedule.slots)
        part, fresh = schedule.takes_part[own], table.owner[own] == schedule.owner[own]
        table.in_flight[own] -= part & fresh
        takes = decodes = schedule.decodes[own] & fresh
        if schedule.chunked:
            report.matches[schedule.chunks] = False
            takes = takes.copy()
            takes[schedule.chunks] = fresh[schedule.chunks] & [schedule.work[slot].emits for slot in schedule.chunks]
        goes_on = takes & ~report.stopped & ~table.stops[own] & report.goes_on(self._ordinary)
        goes_on &= table.length[own] + report.counts < table.end[own]
        together, verified = goes_on & decodes & ~table.alone[own], np.flatnonzero(decodes & (report.counts > 0))
        taken, kept = list[_Taken](), dict[int, int]()
        for slot in np.flatnonzero(part & ~together).tolist():
            work = schedule.work[slot]
            work.sequence.in_flight -= not fresh[slot]
            if work.sequence.finish_reason is None and (one := self._gained(slot, work, report, goes_on[slot])):
                taken.append(one)
                kept[slot] = len(one.flags)
        if taken:
            report.cut(kept)
        slots, decoding = np.flatnonzero(takes), np.flatnonzero(decodes)
        if len(decoding) == schedule.slots:
            report.append_to(table, own, own)  # slices are faster
        else:
            report.append_to(table, slots, decoding)
        self.scheduler.computed(slots, table.length[slots] - 1)
        for one in taken:
            self._look_at(one, report, stays=bool(fresh[one.slot]))
        self._commit([one.sequence for one in taken])
        for at, one in enumerate(taken):
            if (end := self._took(one.sequence)) is not None:
                taken[at] = one._replace(flags=one.flags[: end - one.before])
                report.cut({one.slot: len(taken[at].flags)})
        for sequence in self.scheduler.take_preempted():
            self.sink.resumes(sequence, failed=False)
        ended = self.sink.stepped(report, np.flatnonzero(together), table, self.scheduler.running)
        if ended:
            report.cut(ended)
        for slot in ended:
            self._retire(self.scheduler.running[slot], "stop")
        self._count(step, report, slots, decoding, verified, [one for one in taken if not fresh[one.slot]])
        for one in taken:
            if one.sequence.leaves and one.sequence.finish_reason is None:
                self.scheduler.preempt(one.sequence)
                self.sink.resumes(one.sequence, failed=False)

    def _gained(self, slot: int, work: Work, report: StepReport, goes_on: bool) -> _Taken | None:
        """What a slot got, up to its request's end; None inside a prompt."""
        sequence = work.sequence
        if not work.emits:
            if sequence.slot is not None:
                self.scheduler.computed(np.array([slot]), np.array([work.end]))
            return None
        tokens, drafted = report.tokens(slot), None if work.chunk else report.drafted_of(slot)
        kept = len(tokens)
        if report.largest >= self._vocab_size and max(tokens, default=0) >= self._vocab_size:
            vocabulary = f"the vocabulary [0, {self._vocab_size})"
            sequence.finish("error", f"backend '{self.backend.name}' emitted {max(tokens)}, outside {vocabulary}")
            kept = 0
        elif not goes_on:
            kept = sequence.until_end(tokens, self.end_tokens)
        flags = report.flags(slot)[:kept]
        self.sink.gained(sequence, slot, flags, drafted)
        return _Taken(slot, sequence, sequence.generated, drafted, flags)

    def _look_at(self, taken: _Taken, report: StepReport, *, stays: bool) -> None:
        """Take over what a slot has besides tokens; and these, if its request has left it."""
        slot, sequence, before, drafted, flags = taken
        wants = sequence.wants
        if not stays:
            sequence.extend(report.tokens(slot), flags)
            if drafted is not None:
                more = 1, drafted, sum(flags), int(drafted > 0)
                steps, *others = map(sum, zip(sequence.counts, more, strict=True))
                sequence.counts = steps, others[0], others[1], others[2]
        if wants.top >= 0:
            sequence.logprobs += report.logprobs(slot, len(flags), wants.top)
        if drafted and sequence.request.params.return_drafts:
            sequence.drafts.append(Drafts(before, report.drafts(slot), sum(flags)))
        if wants.thinking:
            sequence.limit_status = report.limit_status(slot)
        if sequence.finish_reason == "error" and report.emitted[slot].min(initial=0) < 0:
            sequence.error = self._structured.nothing_left(sequence) or sequence.error

    def _commit(self, sequences: list[Sequence]) -> None:
        """Advance the grammars of these requests by their new tokens, which may end them."""
        live = [one for one in sequences if one.grammar is not None and one.finish_reason is None]
        if live:
            for sequence in self._structured.commit(live, lambda one, error: one.finish("error", error)):
                sequence.finish("stop")

    def _count(
        self, step: LaunchedStep, report: StepReport, slots: Ints, decoding: Ints, verified: Ints, gone: list[_Taken]
    ) -> None:
        """Count a step's tokens and drafts, and adapt the lengths of drafts.

        `slots` got tokens, those `decoding` not from a prompt; drafts were `verified`. `gone`: from slots that their
        requests have left.
        """
        record, schedule = step.record, step.schedule
        lost = [one for one in gone if one.drafted is not None]
        record.emitted += int(report.counts[slots].sum()) + sum(len(one.flags) for one in gone)
        record.decode_slots += len(decoding) + len(lost)
        record.decode_tokens += int(report.counts[decoding].sum()) + sum(len(one.flags) for one in lost)
        fed = report.fed * schedule.takes_part[: schedule.slots]
        record.input_tokens = record.output_rows = int(fed.sum())
        if schedule.chunked:
            record.prefill_slots = len(schedule.chunks)
            record.output_rows -= int(np.maximum(fed[schedule.chunks] - 1, 0).sum())
        if self.state.symbols["S"] == 1:
            return
        drafted, accepted = report.drafted[verified], report.matched[verified]
        if lost:
            drafted = np.append(drafted, [one.drafted or 0 for one in lost])
            accepted = np.append(accepted, [sum(one.flags) for one in lost])
        record.count_drafts(drafted, accepted)
        prepared, self._prepared = self._prepared, self.compiler.prepared
        # After a pure decode step, whose time is not that of preparing another.
        if self.lengths is not None and not schedule.chunked and prepared == self._prepared:
            own = verified if not step.forced else np.setdiff1d(verified, list(step.forced))
            rows, seconds = self._length_rows[own], self._seconds_of(record)
            narrow = step.narrow if self.compiler.static else None
            if self.lengths.stepped(rows, report.drafted[own], report.accepted[own], seconds, narrow=narrow):
                self._set_limits()

    def _seconds_of(self, record: TimedStep) -> float:
        """Of a step that is being read: since the last one was, which includes callbacks and what else its caller does;
        where a host proposer drafts in between, those of its stages so far.
        """
        if self._read_at is None or self.proposer.runs_on == "host":
            return float(record.seconds.total())
        return clock() - self._read_at

    def _took(self, sequence: Sequence) -> int | None:
        """Have the sink show what a request got, and retire it if it has ended.

        Returns after how many tokens its text ends it, if it does.
        """
        end = self.sink.took(sequence)
        reason = sequence.finish_reason if end is None else "stop"
        if reason is not None:
            self._retire(sequence, reason, sequence.error if end is None else "")
        return end

    def _failed(self, schedule: Schedule, error: Exception) -> None:
        """After a failed launch: read pending steps, requeue all requests, and find the faulty one."""
        _log.exception("a step of %d requests failed; retrying them", len(schedule.work))
        self.metrics.failed_steps += 1
        self._read_down_to(0)
        self.scheduler.forget_prefixes()  # its writes are unknown
        for sequence in reversed(list(self.scheduler.running.values())):
            self.scheduler.preempt(sequence)
            self.sink.resumes(sequence, failed=True)
        suspects = [work.sequence for work in schedule.work.values() if work.sequence.finish_reason is None]
        suspect = self.bisection.failed(suspects) if suspects else None
        if suspect is not None:
            self._end("error", suspect, f"its step raised {describe(error)}")

    def _limit_new(self, slots: list[int], *, failed: bool) -> None:
        """Limit the drafts of new requests. `failed`: the proposer refused some of them."""
        self._most_drafts[slots] = self.state.request.host["draft_token_num"][slots]
        if failed:
            self._most_drafts[list(self._undrafted)] = 0
        if self.lengths is not None:
            self._length_rows[slots] = self.lengths.begin(map(self.scheduler.running.__getitem__, slots))
        if failed or self.lengths is not None:
            self._set_limits()

    def _set_limits(self) -> None:
        """Send a device proposer the most drafts of every slot."""
        limits, wanted = self._most_drafts, self.state.request.host["draft_token_num"]
        if self.lengths is not None:
            limits = np.minimum(limits, self.lengths.limits(self._length_rows)) * self.scheduler.table.used
            self._drafting = bool(limits.any())
        if self.methods is not None:
            self.methods.send(self._length_rows, limits)
            self.scheduler.feed(self.methods.feeds)
        elif self.lengths is not None:
            self.proposer.mode = "propose" if self._drafting else self.proposer.modes[-1]
        if (wanted != limits).any():
            wanted[:] = limits
            self.state.request.upload()

    def _draft(self, plan: CompiledStep, report: StepReport, record: TimedStep) -> int:
        """Drafts of a host proposer. Returns the largest limit."""
        views = slot_views(self.scheduler.running, report, self.state.request.host["draft_token_num"].tolist())
        self.metrics.failed_proposals += propose(self.compiler, plan, views, record)
        return max((view.max_drafts for view in views), default=0)

    def _end(self, reason: FinishReason, sequence: Sequence, error: str = "") -> None:
        sequence.finish(reason, error)
        self._took(sequence)

    def _retire(self, sequence: Sequence, reason: FinishReason, error: str = "") -> None:
        """An ended request frees its slot; its output is kept."""
        sequence.finish(reason, error)
        self.scheduler.release(sequence)
        self._masked -= sequence.wants.masked
        self._finished[sequence.request.request_id] = sequence
        self.metrics.requests[reason] += 1
        self._deadlines.ended()


class _Taken(NamedTuple):
    """What a slot got: which tokens are accepted drafts, of those until its request's end. `before`: generated tokens
    before; `drafted`: how many drafts there were, None for a prompt.
    """

    slot: int
    sequence: Sequence
    before: int
    drafted: int | None
    flags: list[bool]


def _in_use(request: Request) -> RequestError:
    return RequestError(
        f"request '{request.request_id}': the id is in use; choose another, or take the finished output first"
    )


def build_runner(
    config: Config,
    backend: Backend,
    model: TargetModel,
    tokenizer: Tokenizer | None = None,
    *,
    registry: Registry | None = None,
    hook: RunnerHook | None = None,
) -> ModelRunner:
    """A runner of a model on a backend. ConfigError, UnsupportedError or InsufficientMemoryError if they do not fit.

    `tokenizer`: for text, stop strings and grammars. `registry`: where plug-ins are found; None: that of this process.
    `hook`: what ranks of one model add. Runners that share a model take turns: each takes over its KV cache.
    """
    return ModelRunner(build_parts(config, backend, model, tokenizer, registry=registry, hook=hook))
