"""Requests with a grammar, between the scheduler and the sampler.

Steps in which one of them draws a token do not overlap, since the host needs its tokens and drafts: it removes refused
drafts, adds forced ones, and writes the rows' masks while the model computes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.config.schema import ModelSettings, StructuredOutput, StructuredSettings
from specdec_hal.errors import RequestError
from specdec_hal.request import SamplingParams
from specdec_hal.runner import bad_words
from specdec_hal.runner.bounded_calls import BoundedCalls, Call
from specdec_hal.runner.row_masks import RowMasks
from specdec_hal.runner.scheduler import Schedule, Work
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.state import DecodeState
from specdec_hal.structured.backend import (
    Grammar,
    GrammarFailedError,
    GrammarTimeoutError,
    TokenRefusedError,
    Vocabulary,
)
from specdec_hal.structured.compiler import Grammars
from specdec_hal.structured.state import GrammarState, MarkedThought, Thought

_log = logging.getLogger("specdec_hal")

_MARKED = 8
"""Pairs of texts around thoughts whose tokens are kept."""
Failed = Callable[[Sequence, str], None]
"""Ends a request whose grammar failed."""


@dataclass
class MaskedStep:
    """Drafts and first output rows of requests with a grammar. `forced`: slots with drafts from the grammar."""

    rows: list[tuple[Sequence, list[int], int]] = field(default_factory=list)
    forced: set[int] = field(default_factory=set)


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
        *,
        bounded: bool = True,
    ) -> None:
        self._state, self._model, self._ends, self._vocab_size = state, model, end_tokens, vocab_size
        self._tokenizer = tokenizer
        self._marked = lru_cache(_MARKED)(self._thought_between)
        self.grammars = Grammars(settings, partial(Vocabulary.of, tokenizer, vocab_size, end_tokens))
        self._calls = BoundedCalls(settings.mask_timeout_s if bounded else None)

    def compiled(self, wanted: StructuredOutput) -> Grammar:
        """The grammar, with its first mask. RequestError if it is invalid or too large."""
        grammar = self.grammars.get(wanted)
        try:
            grammar.first(self._vocab_size)
        except GrammarFailedError as error:
            raise RequestError(f"structured.{wanted.kind[0]}: {error}") from error
        return grammar

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
        grammar = self.compiled(wanted)
        first = grammar.first(self._vocab_size)
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
        banned = params.ignore_eos or not ends
        least = params.min_new_tokens
        between = [one for one in params.bad_sequences if len(one) > 1 and one[-1] in ends]
        if thought is None and not _may_begin(begins, params, self._ends, at_end=banned or bool(least)):
            raise RequestError(f"{name}: {_nothing_left(params)}")
        return GrammarState(
            grammar.matcher(),
            thought,
            len(first),
            self._ends,
            lambda position, text: (
                not banned and position >= least and not ends.issubset(bad_words.forbidden_next(text, between))
            ),
            grammar.matcher() if isinstance(thought, MarkedThought) and wanted.think_start else None,
            grammar.backend,
            max(map(len, between), default=0),
        )

    def _thought_between(self, start: str, end: str, skip_special_tokens: bool) -> MarkedThought:
        """`skip_special_tokens`: these have no text."""
        vocabulary = self.grammars.vocabulary
        silent = self._tokenizer.special_ids if skip_special_tokens else ()
        tokens = [b"" if token in silent else data for token, data in enumerate(vocabulary.tokens)]
        return MarkedThought(start.encode(), end.encode(), tokens, self._vocab_size, self._ends)

    def commit(self, sequences: list[Sequence], failed: Failed) -> list[Sequence]:
        """Advance the grammars of requests by their new tokens; returns the requests that may not go on."""
        states = [sequence.grammar for sequence in sequences]
        calls = [
            partial(state.commit, sequence.token_ids, sequence.limit_status)
            for sequence, state in zip(sequences, states, strict=True)
            if state is not None
        ]
        found = self._made(calls, sequences, failed)
        return [sequence for sequence, goes_on in found if not goes_on]

    def _made(self, calls: Tokens[Call], sequences: list[Sequence], failed: Failed) -> list[tuple[Sequence, Any]]:
        """The results of a call for each request, without those whose call failed."""
        results = list[tuple[Sequence, Any]]()
        for sequence, result in zip(sequences, self._calls.run(calls), strict=True):
            if isinstance(result, GrammarFailedError):
                failed(sequence, self._failure(sequence, result))
            elif isinstance(result, Exception):
                raise result
            else:
                results.append((sequence, result))
        return results

    def _failure(self, sequence: Sequence, error: GrammarFailedError) -> str:
        wanted, state = sequence.request.params.structured, sequence.grammar
        assert wanted is not None and state is not None
        if isinstance(error, TokenRefusedError):
            return str(error)
        slow = isinstance(error, GrammarTimeoutError)
        return f"structured.{wanted.kind[0]}: {self.grammars.too_slow(wanted, state.backend) if slow else error}"

    def nothing_left(self, sequence: Sequence) -> str:
        """Why a request that got no token can have none, if its restrictions forbid all; else ""."""
        params, tokens, state = sequence.request.params, sequence.token_ids, sequence.grammar
        allowed = np.full(-(-self._vocab_size // 32), -1, np.int32)
        if state is not None:
            found = self._calls.run([partial(_masks, state, tokens, sequence.limit_status, [], len(allowed))])[0]
            if isinstance(found, Exception):
                return ""
            allowed = found.get(0, allowed)
        bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")[: self._vocab_size]
        forbidden = [*params.bad_token_ids, *bad_words.forbidden_next(tokens, params.bad_sequences)]
        bits[[token for token in forbidden if token < len(bits)]] = 0
        if len(tokens) < params.min_new_tokens:
            bits[[token for token in self._ends if token < len(bits)]] = 0
        left = bits if params.allowed_token_ids is None else bits[params.allowed_token_ids]
        return "" if left.any() else _nothing_left(params, len(tokens))

    def plan(self, schedule: Schedule, exact_drafts: bool, failed: Failed) -> MaskedStep:
        """Update the grammars of a step and adapt its drafts. No step may be running.

        `exact_drafts`: keep refused drafts, which are then rejected, since under verification by distribution the
        choice of drafts must not depend on their values.
        """
        step, changed, first = MaskedStep(), dict[int, list[int]](), 0
        if not any(work.sequence.grammar is not None and work.emits for work in schedule.work.values()):
            return step
        lens, ids = self._state.read("seq_lens_this_time"), self._state.read("draft_tokens")
        rows = {slot: 1 if work.chunk else int(lens[slot]) for slot, work in schedule.work.items()}
        drafts, calls = dict[int, list[int]](), list[Call]()
        for slot, work in schedule.work.items():
            grammar = work.sequence.grammar
            if grammar is not None and work.emits and rows[slot]:
                drafts[slot] = [] if work.chunk else ids[slot, 1 : rows[slot]].tolist()
                calls.append(partial(self._planned, work, grammar, drafts[slot], exact_drafts))
        plans = self._made(calls, [schedule.work[slot].sequence for slot in drafts], failed)
        wanted = {sequence.slot: plan for sequence, plan in plans}
        for slot in sorted(schedule.work):
            work = schedule.work[slot]
            if (plan := wanted.get(slot)) is not None:
                step.rows.append((work.sequence, plan, first))
                if plan != drafts[slot]:
                    changed[slot] = plan
                    rows[slot] = 1 + len(plan)
                    if plan != drafts[slot][: len(plan)]:
                        step.forced.add(slot)
            first += rows[slot]
        self._write(changed)
        return step

    def _planned(self, work: Work, grammar: GrammarState, drafts: list[int], exact_drafts: bool) -> list[int]:
        """The drafts of a request's step. On another thread."""
        sequence = work.sequence
        grammar.commit(sequence.token_ids, sequence.limit_status)
        return drafts if work.chunk else self._wanted(sequence, grammar, drafts, exact_drafts)

    def _wanted(self, sequence: Sequence, grammar: GrammarState, drafts: list[int], exact_drafts: bool) -> list[int]:
        params = sequence.request.params
        if exact_drafts:
            return drafts if grammar.end_always_allowed(len(sequence.token_ids)) else []
        most = self._state.symbols["S"] - 1
        if params.num_speculative_tokens is not None:
            most = min(most, params.num_speculative_tokens)
        left = sequence.stay - len(sequence.token_ids) - 1
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
        rows = [one for one in step.rows if one[0].finish_reason is None]
        calls = [
            partial(_masks, sequence.grammar, sequence.token_ids, sequence.limit_status, drafts, masks.words)
            for sequence, drafts, _ in rows
            if sequence.grammar is not None
        ]
        firsts = {sequence.slot: first for sequence, _, first in rows}
        for sequence, found in self._made(calls, [sequence for sequence, _, _ in rows], failed):
            for at, allowed in found.items():
                mask = masks.row(firsts[sequence.slot] + at)
                mask &= allowed


def _masks(
    grammar: GrammarState, tokens: Tokens[int], limit_status: int, drafts: list[int], words: int
) -> dict[int, NDArray[Any]]:
    """The masks of a request's restricted rows after its tokens and drafts, each in its own memory."""
    rows = dict[int, NDArray[Any]]()

    def row(at: int) -> NDArray[Any]:
        rows[at] = np.full(words, -1, np.int32)
        return rows[at]

    grammar.commit(tokens, limit_status)
    grammar.fill(drafts, row)
    return rows


def _may_begin(begins: NDArray[Any], params: SamplingParams, ends: frozenset[int], *, at_end: bool) -> bool:
    """Whether a text may begin with a token that `params` allow. `at_end`: whether they forbid an end token there;
    a text that may be empty then ends before its first token.
    """
    size = len(begins)
    left = begins.copy()
    left[[token for token in (*params.bad_token_ids, *params.forbidden_token_ids) if token < size]] = 0
    if params.allowed_token_ids is not None:
        left[np.setdiff1d(np.arange(size), params.allowed_token_ids)] = 0
    only_end = [token for token in ends if token < size]
    text = begins.copy()
    text[only_end] = 0
    if at_end:
        left[only_end] = 0
    return bool(left.any()) or not text.any()


_RESTRICTIONS = ("allowed_token_ids", "bad_token_ids", "bad_sequences", "min_new_tokens")


def _nothing_left(params: SamplingParams, position: int = 0) -> str:
    """The message that nothing may follow `position` tokens."""
    names = [name for name in _RESTRICTIONS if getattr(params, name)]
    grammar = [] if params.structured is None else [f"structured.{params.structured.kind[0]}"]
    key, *more = [*grammar, *("bad_words" if name == "bad_sequences" else name for name in names)]
    where = f"after {position} tokens" if position else "at the beginning"
    return f"{key}: {where} it and {' and '.join(more)} leave no token; change one of them"
