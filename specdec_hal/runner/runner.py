"""ModelRunner: requests in, tokens out."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

from specdec_hal.backend import Backend
from specdec_hal.config.schema import Config
from specdec_hal.device import get_device
from specdec_hal.errors import PluginError, RequestError, UnsupportedError
from specdec_hal.models import TargetModel, Tokenizer, load_model
from specdec_hal.ops import Strategy
from specdec_hal.proposers.protocol import Proposer, ProposerContext, SlotView, StepView
from specdec_hal.registry import Registry, or_default
from specdec_hal.runner.metrics import Metrics, StepRecord
from specdec_hal.runner.plan import StepNeeds
from specdec_hal.runner.request import Request, RequestOutput, StreamDelta
from specdec_hal.runner.scheduler import Scheduler
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.step import DecodeStep, StepResult
from specdec_hal.state import DecodeState

MAX_BAD_TOKENS = 64
"""Bad tokens a request may name: the width of the slot tensor."""

_log = logging.getLogger("specdec_hal")


class ModelRunner:
    """Decodes many requests at once, more than there are slots if need be, speculatively or not.

    ``runner.add_request(Request("a", ids)); outputs = runner.run()``. With a fixed seed a request's tokens do not
    depend on drafts, slot, batch or chunking (strategy TARGET_MATCH or GREEDY), as far as the model's logits do not.
    Not thread-safe: one thread adds, steps and cancels; callbacks run on it and may add or cancel.
    :meth:`specdec_hal.runtime.Runtime.runner` builds one from a configuration alone. `registry` (None: that of this
    process) is the one that the configuration was checked against: proposer and observers are looked up in it.
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
        k = speculative.num_speculative_tokens
        headroom = k if self._registry.pads_drafts(spec.name, speculative.settings) else 0
        longest = model.config.max_position_embeddings - headroom
        max_model_len = longest if settings.max_model_len is None else settings.max_model_len
        if not 1 <= max_model_len <= longest:
            raise config.error("runner.max_model_len", f"expected 1..{longest} for this model, got {max_model_len}")
        self.config, self.backend, self.model, self.tokenizer = config, backend, model, tokenizer
        self.max_model_len = max_model_len
        self.metrics = Metrics()
        self.end_tokens = frozenset(model.config.eos_token_ids)
        self.state = DecodeState(
            max_num_seqs=settings.max_num_seqs,
            num_speculative_tokens=k,
            max_model_len=max_model_len,
            prefill_chunk=min(settings.prefill_chunk, max_model_len),
            end_tokens=self.end_tokens,
            max_bad_tokens=MAX_BAD_TOKENS,
            device=get_device(backend.place, model.framework),
        )
        model.allocate(settings.max_num_seqs, max_model_len + headroom)
        self._proposer = self._build_proposer()
        self._step = DecodeStep(backend, model, self.state, speculative, self._proposer.hidden_layers)
        self._scheduler = Scheduler(self.state)
        self._finished: dict[str, RequestOutput] = {}

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

    def add_request(self, request: Request) -> None:
        """Queue a request. RequestError, with nothing changed, if it cannot be served as asked."""
        name = f"request '{request.request_id}'"
        params, prompt = request.params, request.prompt_token_ids
        vocabulary = self.model.config.vocab_size
        if self._scheduler.find(request.request_id) is not None or request.request_id in self._finished:
            raise RequestError(f"{name}: the id is in use; choose another, or take the finished output first")
        if len(prompt) == 0:
            raise RequestError(f"{name}: empty prompt; give at least one token (the model's bos token, say)")
        if len(prompt) >= self.max_model_len:
            raise RequestError(
                f"{name}: prompt of {len(prompt)} tokens leaves no room in a context of {self.max_model_len}; "
                "shorten it or raise runner.max_model_len"
            )
        named = {"prompt": prompt, "stop_token_ids": params.stop_token_ids, "bad_token_ids": params.bad_token_ids}
        for what, ids in named.items():
            wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
            if wrong is not None:
                raise RequestError(f"{name}: {what}: token {wrong} is outside the vocabulary [0, {vocabulary})")
        if len(params.bad_token_ids) > MAX_BAD_TOKENS:
            raise RequestError(f"{name}: at most {MAX_BAD_TOKENS} bad_token_ids, got {len(params.bad_token_ids)}")
        if params.stop and self.tokenizer is None:
            raise RequestError(f"{name}: stop strings need a tokenizer; give the runner one, or use stop_token_ids")
        if params.temperature > 0 and self.config.speculative.verify_strategy is Strategy.GREEDY:
            raise RequestError(
                f"{name}: temperature {params.temperature} with strategy greedy; use verify_strategy target_match, or "
                "temperature 0"
            )
        k = self.config.speculative.num_speculative_tokens
        if params.num_speculative_tokens is not None and params.num_speculative_tokens > k:
            raise RequestError(
                f"{name}: num_speculative_tokens {params.num_speculative_tokens} exceeds the runner's {k}; raise "
                "speculative.num_speculative_tokens"
            )
        limit = min(params.max_new_tokens, self.max_model_len - len(prompt))
        detokenizer = self.tokenizer.detokenizer() if self.tokenizer is not None else None
        self._scheduler.waiting.append(Sequence(request, limit, detokenizer))

    def cancel(self, request_id: str) -> bool:
        """End a waiting or running request with what it has; False if there is none of that id."""
        sequence = self._scheduler.find(request_id)
        if sequence is None:
            return False
        sequence.finish("cancelled")
        self._retire(sequence)
        return True

    @property
    def has_requests(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._scheduler.waiting or self._scheduler.running)

    def step(self) -> list[StreamDelta]:
        """One decode step for every running request; what each gained. Callbacks have been called."""
        filled = self._scheduler.admit()
        if filled:
            self._proposer.reset(filled)
        running = dict(self._scheduler.running)
        if not running:
            return []
        record = StepRecord()
        params = [sequence.request.params for sequence in running.values()]
        wanted = [p.logprobs for p in params if p.logprobs is not None]
        needs = StepNeeds(any(p.penalised for p in params), max(wanted, default=None))
        result = self._step.run(needs, record)
        with record.stage("host"):
            deltas = self._collect(running, result, record)
            self._scheduler.schedule_chunks()
        with record.stage("propose"):
            self._propose(result, record)
        self.metrics.add(record)
        self._registry.step_finished(record)
        self._deliver(running, deltas)
        return deltas

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
        """The metrics, with what fell back to another backend."""
        return {**self.metrics.summary(), "fallback_calls": dict(self.backend.fallback_calls)}

    def _collect(self, running: dict[int, Sequence], result: StepResult, record: StepRecord) -> list[StreamDelta]:
        deltas = []
        for slot, sequence in running.items():
            emitted, flags = result.tokens[slot], result.from_draft[slot]
            drafted, accepted = int(result.drafted[slot]), sum(flags)
            before = len(sequence.token_ids)
            top = sequence.request.params.logprobs
            entries = [] if top is None else result.logprobs[slot]
            logprobs = [replace(entry, top=entry.top[:top]) for entry in entries]
            sequence.extend(emitted, flags, logprobs, self.end_tokens)
            gained = len(sequence.token_ids) - before
            record.emitted += gained
            if result.prefill[slot]:
                record.prefill_slots += 1
            else:
                sequence.steps += 1
                sequence.drafted += drafted
                sequence.accepted += accepted
                record.decode_slots += 1
                record.decode_tokens += gained
                record.drafted.update(range(drafted))
                record.accepted.update(range(accepted))
            delta = sequence.delta()
            if delta is not None:
                deltas.append(delta)
            if sequence.finish_reason is not None:
                self._retire(sequence)
        return deltas

    def _propose(self, result: StepResult, record: StepRecord) -> None:
        """Drafts for the next step, and the distributions that they were drawn from."""
        proposer, speculative = self._proposer, self.config.speculative
        view = StepView(
            self.state,
            result.stream,
            result.hidden_states,
            result.input_hidden_states,
            self._slot_views(result) if proposer.runs_on == "host" else (),
            self.model.config.vocab_size,
        )
        draft_probs = proposer.propose(view)
        record.dropped_drafts += view.dropped
        if draft_probs is not None and not proposer.gives_draft_probs:
            raise PluginError(
                f"proposer '{speculative.method}' returned draft probabilities and declares gives_draft_probs = False; "
                "let it say True"
            )
        if speculative.verify_strategy is Strategy.REJECTION:
            self._step.plans.use_draft_probs(draft_probs)

    def _slot_views(self, result: StepResult) -> list[SlotView]:
        """The requests that go on and have their whole prompt in the KV cache: those with a token."""
        k = self.config.speculative.num_speculative_tokens
        views = []
        for slot, sequence in self._scheduler.running.items():
            if sequence.token_ids:
                request = sequence.request
                wanted = request.params.num_speculative_tokens
                left = sequence.max_new_tokens - len(sequence.token_ids) - 1
                most = max(min(k, k if wanted is None else wanted, left), 0)
                tokens = sequence.token_ids, result.tokens[slot]
                views.append(SlotView(slot, request.request_id, request.prompt_token_ids, *tokens, most))
        return views

    def _retire(self, sequence: Sequence) -> None:
        assert sequence.finish_reason is not None
        self._scheduler.release(sequence)
        self._finished[sequence.request.request_id] = sequence.output()
        self.metrics.requests[sequence.finish_reason] += 1

    def _deliver(self, running: dict[int, Sequence], deltas: list[StreamDelta]) -> None:
        by_id = {sequence.request.request_id: sequence for sequence in running.values()}
        for delta in deltas:
            sequence = by_id[delta.request_id]
            if sequence.request.callback is None:
                continue
            try:
                sequence.request.callback(delta)
            except Exception as error:
                _log.exception("request '%s': its callback failed; the request is ended", delta.request_id)
                if sequence.finish_reason is None:
                    sequence.finish("error", f"its callback raised {type(error).__name__}: {error}")
                    self._retire(sequence)
