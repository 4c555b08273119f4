"""ModelRunner: requests in, tokens out."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from specdec_hal.config.schema import Config
from specdec_hal.errors import EngineDeadError, JournalError, PluginError, RequestError
from specdec_hal.models import Tokenizer
from specdec_hal.models.detokenizer import KnownTexts
from specdec_hal.output.text import PROMPT_TAIL, TextStream, detokenizer_for
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.model import TargetModel
from specdec_hal.plugin.registry import Registry
from specdec_hal.request import (
    Drafts,
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
    StreamDelta,
    TokenLogprobs,
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
from specdec_hal.runner.metrics import Counts, Load, Metrics, TimedStep
from specdec_hal.runner.plan import CompiledStep, Features, LaunchedStep
from specdec_hal.runner.prefill_budget import PrefillBudget
from specdec_hal.runner.prompt_logprobs import chunks_of
from specdec_hal.runner.recovery import Bisection
from specdec_hal.runner.report import StepReport, StepSink
from specdec_hal.runner.scheduler import Schedule, Work
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.slot_table import Bools, Ints
from specdec_hal.runner.structured import MaskedStep
from specdec_hal.runner.watchdog import Activity
from specdec_hal.structured.backend import Grammar
from specdec_hal.structured.compiler import Grammars
from specdec_hal.text import describe, short

_log = logging.getLogger("specdec_hal")


class ModelRunner:
    """Decodes many requests at once, even more than there are slots, with or without speculation.

    :func:`build_runner` makes one; ``runner.add_request(Request("a", ids)); outputs = runner.run()``. With a fixed seed
    a request's tokens do not depend on drafts, slot, batch, chunking, preemption or overlap (strategy TARGET_MATCH or
    GREEDY), as far as the model's logits do not. With overlap a step is launched before the previous one is read; what
    only the host knows takes effect a step later, and tokens beyond it are dropped. Not thread-safe: one thread adds,
    steps and cancels; callbacks run on it and may add or cancel. RunnerBusyError for a step inside a callback, or on
    another thread.
    """

    def __init__(self, parts: RunnerParts) -> None:
        self._registry, self._hook = parts.registry, parts.hook
        self.config, self.backend, self.model = parts.config, parts.backend, parts.model
        self.tokenizer = parts.tokenizer
        self.state, self.max_model_len, self.overlap = parts.state, parts.max_model_len, parts.overlap
        self.kv_cache_bytes = parts.kv_cache_bytes
        """Bytes of the pool of KV blocks; 0 for a cache that grows with its contexts."""
        self.proposer, self.compiler, self.scheduler = parts.proposer, parts.compiler, parts.scheduler
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
        self._known_texts: KnownTexts | None = getattr(parts.tokenizer, "known_texts", None)
        self._gap_from: float | None = None
        """When the last call of :meth:`step` ended, if requests ran."""
        self._features: Features | None = None
        """Those of the last step."""
        self.bisection = Bisection()
        self._finished: dict[str, Sequence] = {}
        self._guard = Guard()
        self.resources = ExitStack()
        """Resources released by :meth:`close`."""
        self._delivery = Delivery(partial(self._end, "error"))
        self.sink: StepSink | None = None
        """Receiver of steps that makes text and checks stop strings elsewhere; the runner then needs no tokenizer."""
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
        self.scheduler.add(sequence)
        self._deadlines.watch(sequence)
        self._masked += sequence.wants.masked

    def _sequence(self, request: Request) -> Sequence:
        copy, prompt, limit = self._rules.check(request, self.tokenizer or self.sink)
        copy = bad_words.spelled(copy, self.tokenizer, self._vocab_size)
        if self.find(copy.request_id) is not None:
            raise _in_use(copy)
        tokenizer = self.tokenizer if self.sink is None and copy.detokenize else None
        tail = copy.prompt_token_ids[-PROMPT_TAIL:]
        detokenizer = None if tokenizer is None else detokenizer_for(tokenizer.detokenizer, copy.params, tail)
        sequence = Sequence(copy, limit, detokenizer, prompt)
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
        self._delivery.run()
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
        return {name: self._finished.pop(name).output() for name in names}

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
                self._retire(sequence)

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
        """Compile and capture all steps of requests with the defaults of the section `sampling`, without options, and
        with a grammar if a library is installed.

        Other options (log-probabilities, penalties, ...) are bound on first use, counted by `late` of :meth:`summary`.
        Nothing to do without device launches. `progress(done, all)` is called before each step and at the end; raising
        ends the warm-up. RequestError while requests are live.
        """
        with self._guard.driving("warm_up"), self.state.device.working():
            self._read_down_to(0)
            if self.has_requests:
                raise RequestError(f"warm_up(): expected no requests, got {self.scheduler.live}; call it before")
            if not self._launches:
                return
            self.scheduler.idle()
            asked = (self.default_params, SamplingParams(), SamplingParams(temperature=1.0, top_p=0.9))
            masked = (False, True) if self.tokenizer is not None and self.grammars.names else (False,)
            features = [
                self.compiler.features([Sequence(Request("", [0], one), 1, None)], with_masks)
                for with_masks in masked
                for one in asked
            ]
            self.compiler.warm_up(dict.fromkeys(features), progress)

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
        :mod:`.recovery` and does not raise. With a :attr:`sink`, only requests with a callback have deltas.
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
            self._delivery.run()
            if self.prefill_budget is not None:
                self._time_gap(self.prefill_budget, due)
            if self._journal is not None:
                self._journal.step(self.snapshot, idle=not self.has_requests)
            self._hook.stepped(self.metrics.steps)
            return self._delivery.take()

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
        self.scheduler.shows_steps = self.sink is None
        check_cache(self.model, self.state)
        schedule = self.scheduler.schedule(self.bisection.on_trial)
        if schedule is None:
            return False
        record = TimedStep(activity=self._activity, method=self.method)
        try:
            step = self._enqueue(schedule, record)
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
            failed = self._reset_proposer(schedule.filled)
            for slot in self._undrafted.intersection(schedule.filled):
                schedule.work[slot].sequence.draft_rows = False
            self._limit_new(schedule.filled, failed=failed)
        masked = self._plan_masks(schedule)
        features = self._features
        if features is None or not schedule.steady or self._masked:
            features = self.compiler.features([work.sequence for work in schedule.work.values()], masked is not None)
            self._features = features
        bucket = self.compiler.bucket(schedule.slots, schedule.tokens, schedule.context, schedule.chunked, features)
        record.bucket = bucket.slots, bucket.tokens, bucket.context
        chunks, before = chunks_of(schedule) if schedule.chunked else [], self.compiler.failed_proposals
        fill = None if masked is None else partial(self._fill_masks, masked)
        plan, report = self.compiler.launch(bucket, record, chunks, fill)
        if self.compiler.failed_proposals != before:
            for work in schedule.work.values():
                work.sequence.draft_rows = False
        prompts = self.compiler.score_prompts(chunks, record) if chunks else None
        return LaunchedStep(schedule, record, plan, report, prompts, () if masked is None else masked.forced)

    def _plan_masks(self, schedule: Schedule) -> MaskedStep | None:
        """Write masks of bad words, and return the grammars' part; None without masks."""
        if not self._masked or not any(work.sequence.wants.masked for work in schedule.work.values()):
            return None
        self._masks.forget()
        step = self._structured.plan(schedule, self.compiler.exact_drafts, self._grammar_failed)
        forbidden = bad_words.forbid(self._masks, self.state, schedule)
        return step if forbidden or step else None

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
                step.prompts.read(self._send_scored)
            report = StepReport(values, schedule.slots)
            self._hook.took(self.metrics.steps, schedule.work, report)
            usual, fresh = self._usual(schedule, report)
            slots, others = np.flatnonzero(usual), list[_Verified]()
            if len(slots) < len(schedule.work):
                taken = list[_Taken]()
                for slot in np.flatnonzero(schedule.takes_part[: schedule.slots] & ~usual).tolist():
                    work = schedule.work[slot]
                    work.sequence.in_flight -= not fresh[slot]
                    if (one := self._take(slot, work, report)) is not None:
                        taken.append(one)
                self._commit([one.sequence for one in taken])
                others = [verified for one in taken if (verified := self._verify(one, report, record)) is not None]
            if slots.size:
                self._take_usual(slots, report, record)
            fed = report.fed * schedule.takes_part[: schedule.slots]
            record.input_tokens = record.output_rows = int(fed.sum())
            if schedule.chunked:
                record.prefill_slots = len(schedule.chunks)
                record.output_rows -= int(np.maximum(fed[schedule.chunks] - 1, 0).sum())
            if self.state.symbols["S"] > 1:
                self._count_drafts(step, report, slots, others)
        preempted = self.scheduler.take_preempted()
        if self.sink is not None:
            with record.stage("output"):
                for sequence in preempted:
                    self.sink.resumes(sequence, failed=False)
                self.sink.stepped(report, slots, self.scheduler.table.length[slots])
        if self.proposer.runs_on == "host":
            with record.stage("propose"):
                longest = self._draft(step.plan, report, record)
            if isinstance(self.lengths, DraftLengths):
                self.lengths.proposed(longest, record.seconds["propose"])
        self.metrics.add(record)
        self._registry.step_finished(record)

    def _send_scored(self, sequence: Sequence, entries: list[TokenLogprobs]) -> None:
        if self.sink is not None:
            self.sink.scored(sequence, entries)

    def _usual(self, schedule: Schedule, report: StepReport) -> tuple[Bools, Bools]:
        """[B]: of which slots the host needs nothing but tokens, which end no request; whose request is still there."""
        table, own = self.scheduler.table, slice(schedule.slots)
        fresh = table.owner[own] == schedule.owner[own]
        table.in_flight[own] -= schedule.takes_part[own] & fresh
        usual = schedule.decodes[own] & fresh & table.plain[own] & ~report.stopped & report.goes_on(self._ordinary)
        usual &= table.length[own] + report.counts < table.end[own]
        if self._known_texts is not None and self.sink is None:
            self._speak(usual, report, self._known_texts)
        else:
            usual &= ~table.stops[own]
        return usual, fresh

    def _speak(self, usual: Bools, report: StepReport, known: KnownTexts) -> None:
        """Have the texts of these slots made together, and take out those where a stop string may end."""
        table = self.scheduler.table
        slots = np.flatnonzero(usual & table.speaks[: len(usual)])
        if not slots.size:
            return
        report.speak(known, slots, table.tokens[slots, table.length[slots] - 1])
        texts = [(slot, self.scheduler.running[slot].written) for slot in slots[table.stops[slots]].tolist()]
        usual[[slot for slot, text in texts if isinstance(text, TextStream) and not text.passes(report, slot)]] = False

    def _take_usual(self, slots: Ints, report: StepReport, record: TimedStep) -> None:
        """Process the tokens of such slots."""
        table = self.scheduler.table
        where = slice(len(slots)) if len(slots) == len(report.counts) else slots
        report.append_to(table, where)
        self.scheduler.computed(slots, table.length[where] - 1)
        gained = int(report.counts[where].sum())
        record.emitted += gained
        record.decode_slots += len(slots)
        record.decode_tokens += gained
        heard = slots if self.sink is None else slots[table.heard[slots]]
        if heard.size:
            before = table.length[heard] - report.counts[heard]
            self._delivery.extend(self._sequences(heard), report, heard.tolist(), before.tolist())

    def _count_drafts(self, step: LaunchedStep, report: StepReport, slots: Ints, others: list[_Verified]) -> None:
        """Count the drafts of a step, and adapt lengths to them: of `slots` with usual results, and of others."""
        record, drafted, accepted = step.record, report.drafted[slots], report.matched[slots]
        if others:
            drafted = np.append(drafted, [one.drafted for one in others])
            accepted = np.append(accepted, [one.kept for one in others])
        record.count_drafts(drafted, accepted)
        if self.lengths is not None and not record.prefill_slots:
            self._adapt(report, slots, [one for one in others if one.slot not in step.forced], record)

    def _adapt(self, report: StepReport, slots: Ints, others: list[_Verified], record: TimedStep) -> None:
        """Update every request's draft length after a pure decode step."""
        assert self.lengths is not None
        rows, drafted, accepted = self._length_rows[slots], report.drafted[slots], report.matched[slots]
        if others:
            rows = np.append(rows, self.lengths.rows(one.sequence for one in others))
            drafted = np.append(drafted, [one.drafted for one in others])
            accepted = np.append(accepted, [one.accepted for one in others])
        self.lengths.stepped(rows, drafted, accepted, float(record.seconds.total()))
        self._set_limits()

    def _sequences(self, slots: Ints) -> list[Sequence]:
        return list(map(self.scheduler.running.__getitem__, slots.tolist()))

    def _take(self, slot: int, work: Work, report: StepReport) -> _Taken | None:
        """Take over one slot's tokens; None after prefill, or if the request has ended."""
        sequence = work.sequence
        if sequence.finish_reason is not None:
            return None
        if not work.emits:
            self._computed(sequence, work.end)
            return None
        tokens, drafted = report.tokens(slot), None if work.chunk else report.drafted_of(slot)
        known, wants = sequence.token_ids, sequence.wants
        before = len(known)
        if report.largest >= self._vocab_size and max(tokens, default=0) >= self._vocab_size:
            vocabulary = f"the vocabulary [0, {self._vocab_size})"
            sequence.finish("error", f"backend '{self.backend.name}' emitted {max(tokens)}, outside {vocabulary}")
            return _Taken(slot, sequence, before, drafted, [])
        flags = [False] * len(tokens) if work.chunk else report.flags(slot)
        logprobs = [] if wants.top < 0 else report.logprobs(slot, len(tokens), wants.top)
        if self.sink is not None:
            self.sink.gained(sequence, slot, flags, drafted)
        sequence.extend(tokens, flags, logprobs, self.end_tokens)
        self._computed(sequence, sequence.prompt_len + len(known) - 1)
        if wants.thinking:
            sequence.limit_status = report.limit_status(slot)
        if sequence.finish_reason == "error" and min(tokens, default=0) < 0:
            sequence.error = self._structured.nothing_left(sequence) or sequence.error
        return _Taken(slot, sequence, before, drafted, flags)

    def _commit(self, sequences: list[Sequence]) -> None:
        """Advance the grammars of these requests by their new tokens, which may end them."""
        live = [one for one in sequences if one.grammar is not None and one.finish_reason is None]
        if live:
            for sequence in self._structured.commit(live, lambda one, error: one.finish("error", error)):
                sequence.finish("stop")

    def _verify(self, taken: _Taken, report: StepReport, record: TimedStep) -> _Verified | None:
        """Count a slot's tokens, and show them; None after prefill, or if the request has nothing to show."""
        slot, sequence, before, drafted, flags = taken
        gained = len(sequence.token_ids) - before
        record.emitted += gained
        verified = None
        if drafted is not None:
            accepted = sequence.count(before, drafted)
            if drafted and sequence.request.params.return_drafts:
                sequence.drafts.append(Drafts(before, report.drafts(slot), accepted))
            record.decode_slots += 1
            record.decode_tokens += gained
            if gained or sequence.finish_reason is not None:
                verified = _Verified(slot, sequence, drafted, flags.count(True), accepted)
        if sequence.finish_reason is not None:
            self._retire(sequence)
        else:
            self._show(sequence)
        return verified

    def _computed(self, sequence: Sequence, positions: int) -> None:
        """So many positions of a request's context are in the caches."""
        slot = sequence.slot
        if slot is not None and sequence.finish_reason != "error" and positions >= self.scheduler.table.shares_at[slot]:
            self.scheduler.computed(np.array([slot]), np.array([positions]))

    def _show(self, sequence: Sequence) -> None:
        """Queue a request's delta if it has a reader; a sink already has it."""
        if self.sink is None or sequence.request.callback is not None:
            self._delivery.add(sequence)

    def _failed(self, schedule: Schedule, error: Exception) -> None:
        """After a failed launch: read pending steps, requeue all requests, and find the faulty one."""
        _log.exception("a step of %d requests failed; retrying them", len(schedule.work))
        self.metrics.failed_steps += 1
        self._read_down_to(0)
        self.scheduler.forget_prefixes()  # its writes are unknown
        for sequence in reversed(list(self.scheduler.running.values())):
            self.scheduler.preempt(sequence)
            if self.sink is not None:
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
            limits = np.minimum(limits, self.lengths.limits(self._length_rows))
        if self.methods is not None:
            self.methods.send(self._length_rows, limits)
            self.scheduler.feed(self.methods.feeds)
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
        self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        """End a request: free its slot, keep its output, and send the last delta."""
        assert sequence.finish_reason is not None
        self.scheduler.release(sequence)
        self._masked -= sequence.wants.masked
        self._finished[sequence.request.request_id] = sequence
        self.metrics.requests[sequence.finish_reason] += 1
        self._deadlines.ended()
        if self.sink is not None:
            self.sink.ended(sequence)
        self._show(sequence)


class _Taken(NamedTuple):
    """A slot's new tokens, from token `before` of its request, with what was drafted; None for a prompt."""

    slot: int
    sequence: Sequence
    before: int
    drafted: int | None
    flags: list[bool]


class _Verified(NamedTuple):
    """A slot's drafts in a step: all, those accepted by the model, and those of them before the request's end."""

    slot: int
    sequence: Sequence
    drafted: int
    accepted: int
    kept: int


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
