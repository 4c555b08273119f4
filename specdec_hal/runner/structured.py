"""Requests with a grammar, between the scheduler and the sampler.

Steps in which one of them draws a token do not overlap, since the host needs its tokens and drafts: it removes refused
drafts, adds forced ones, and writes the rows' masks while the model computes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from specdec_hal.config.schema import ModelSettings, StructuredSettings
from specdec_hal.errors import RequestError
from specdec_hal.runner.request import SamplingParams
from specdec_hal.runner.row_masks import RowMasks
from specdec_hal.runner.scheduler import Schedule, Work
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.state import DecodeState
from specdec_hal.structured.backend import GrammarFailedError, Vocabulary
from specdec_hal.structured.compiler import Grammars
from specdec_hal.structured.state import GrammarState, MarkedThought, Thought

_log = logging.getLogger("specdec_hal")

_MARKED = 8
"""Pairs of texts around thoughts whose tokens are kept."""
Failed = Callable[[Sequence, str], None]
"""Ends a request whose grammar failed."""


@dataclass
class MaskedStep:
    """A step's drafts and first output rows of requests with a grammar. `forced`: slots with drafts from the grammar.
    `known`: redrawn tokens of resumed requests, with their rows, which a proposer continues.
    """

    rows: list[tuple[Sequence, list[int], int]] = field(default_factory=list)
    known: list[tuple[int, int]] = field(default_factory=list)
    forced: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.rows or self.known)


def draws(work: Work) -> bool:
    """Whether a slot draws a token with a grammar."""
    sequence = work.sequence
    return sequence.grammar is not None and (work.emits or sequence.cached >= sequence.prompt_len)


class StructuredRequests:
    """Requests with grammars of one runner."""

    def __init__(
        self,
        settings: StructuredSettings,
        state: DecodeState,
        model: ModelSettings,
        tokenizer: Any,
        vocab_size: int,
        end_tokens: frozenset[int],
    ) -> None:
        self._state, self._model, self._ends, self._vocab_size = state, model, end_tokens, vocab_size
        self._tokenizer = tokenizer
        self._marked = lru_cache(_MARKED)(self._thought_between)
        self.grammars = Grammars(settings, partial(Vocabulary.of, tokenizer, vocab_size, end_tokens))

    def begin(self, params: SamplingParams, name: str) -> GrammarState | None:
        """The grammar state of a new request, if any. RequestError if unsupported."""
        wanted = params.structured
        if wanted is None:
            return None
        if self._tokenizer is None:
            raise RequestError(f"{name}: structured: a grammar needs a tokenizer; give the runner one")
        if params.limits_thinking and params.thinking is not None and not params.thinking.enabled:
            raise RequestError(f"{name}: structured: expected no limits of thinking where thinking.enabled is false")
        thought: Thought | MarkedThought | None = None
        if wanted.think_end is not None and not params.limits_thinking:
            thought = self._marked(wanted.think_start or "", wanted.think_end, params.skip_special_tokens)
        elif wanted.after_thinking or (params.thinking is not None and params.thinking.enabled):
            end, most = self._model.think_end_id, params.thinking_limits[0]
            if end is None:
                raise RequestError(
                    f"{name}: structured: the model has no token that ends thinking; set model.think_end_id"
                )
            thought = Thought(
                end, tuple(self._model.think_end_text or (end,)), most, params.limits_thinking, self._ends
            )
        grammar = self.grammars.get(wanted)
        matcher = grammar.matcher()
        first = np.zeros(-(-self._vocab_size // 32), np.int32)
        matcher.mask(first)
        begins = np.unpackbits(first.view(np.uint8), bitorder="little")[: self._vocab_size]
        if not begins.any():
            raise RequestError(
                f"{name}: structured.{wanted.kind[0]}: the tokenizer has no token that begins such a text"
            )
        if thought is None and params.allowed_token_ids is not None and not begins[params.allowed_token_ids].any():
            raise RequestError(f"{name}: structured.{wanted.kind[0]}: no allowed_token_ids begin such a text")
        ends = self._ends.difference(params.bad_token_ids, *(one for one in params.bad_sequences if len(one) == 1))
        if params.allowed_token_ids is not None:
            ends &= set(params.allowed_token_ids)
        banned = not ends
        least = params.min_new_tokens
        direct = grammar.matcher() if isinstance(thought, MarkedThought) and wanted.think_start else None
        return GrammarState(
            matcher, thought, len(first), self._ends, lambda position: not banned and position >= least, direct
        )

    def _thought_between(self, start: str, end: str, skip_special_tokens: bool) -> MarkedThought:
        """`skip_special_tokens`: these have no text."""
        vocabulary = self.grammars.vocabulary
        silent = self._tokenizer.special_ids if skip_special_tokens else ()
        tokens = [b"" if token in silent else data for token, data in enumerate(vocabulary.tokens)]
        return MarkedThought(start.encode(), end.encode(), tokens, self._vocab_size, self._ends)

    def plan(self, schedule: Schedule, exact_drafts: bool, failed: Failed) -> MaskedStep:
        """Update the grammars of a step and adapt its drafts. No step may be running.

        `exact_drafts`: keep refused drafts, which are then rejected, since under verification by distribution the
        choice of drafts must not depend on their values.
        """
        step, changed, first = MaskedStep(), dict[int, list[int]](), 0
        if not any(map(draws, schedule.work.values())):
            return step
        lens, ids = self._state.read("seq_lens_this_time"), self._state.read("draft_tokens")
        for slot in sorted(schedule.work):
            work = schedule.work[slot]
            sequence, grammar, rows = work.sequence, work.sequence.grammar, 1 if work.chunk else int(lens[slot])
            if grammar is not None and not work.emits and draws(work):
                step.known.append((sequence.token_ids[sequence.cached - sequence.prompt_len], first))
            if grammar is not None and work.emits and rows:
                drafts = [] if work.chunk else ids[slot, 1:rows].tolist()
                try:
                    grammar.commit(sequence.token_ids, sequence.limit_status)
                    wanted = drafts if work.chunk else self._wanted(sequence, grammar, drafts, exact_drafts)
                except GrammarFailedError as error:
                    failed(sequence, str(error))
                else:
                    step.rows.append((sequence, wanted, first))
                    if wanted != drafts:
                        changed[slot] = wanted
                        rows = 1 + len(wanted)
                        if wanted != drafts[: len(wanted)]:
                            step.forced.add(slot)
            first += rows
        self._write(changed)
        return step

    def _wanted(self, sequence: Sequence, grammar: GrammarState, drafts: list[int], exact_drafts: bool) -> list[int]:
        params = sequence.request.params
        if exact_drafts:
            return drafts if grammar.end_always_allowed(len(sequence.token_ids)) else []
        most = self._state.symbols["S"] - 1
        if params.num_speculative_tokens is not None:
            most = min(most, params.num_speculative_tokens)
        left = sequence.max_new_tokens - len(sequence.token_ids) - 1
        return grammar.plan(drafts, max(min(most, left), 0), forced=True)

    def _write(self, drafts: dict[int, list[int]]) -> None:
        if not drafts:
            return
        slots = list(drafts)
        rows = np.zeros((len(slots), self._state.symbols["S"] - 1), np.int64)
        for at, tokens in enumerate(drafts.values()):
            rows[at, : len(tokens)] = tokens
        lens = np.array([1 + len(tokens) for tokens in drafts.values()], np.int32)
        self._state.write("seq_lens_this_time", slots, lens)
        if rows.size:
            self._state.write("draft_tokens", (slots, slice(1, None)), rows)

    def fill(self, step: MaskedStep, masks: RowMasks, failed: Failed) -> None:
        """Write the grammars' masks of a step's rows while the model computes."""
        for sequence, drafts, first in step.rows:
            if sequence.grammar is None or sequence.finish_reason is not None:
                continue
            try:
                sequence.grammar.fill(drafts, lambda at, first=first: masks.row(first + at))  # type: ignore[misc]
            except GrammarFailedError as error:
                failed(sequence, str(error))
        for token, at in step.known:
            row = masks.row(at)
            row[:] = 0
            row.view(np.uint32)[token // 32] = 1 << token % 32
