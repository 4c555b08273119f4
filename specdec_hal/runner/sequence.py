"""A running request: tokens, slot and scheduled work.

The device ends a request at an end token, a stop sequence or its length limit, and the host finds the same end in the
tokens that it reads. Stop strings are no business of a runner: who makes its text ends it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec_hal.config.schema import INT32_MAX
from specdec_hal.request import (
    NO_COUNTS,
    Drafts,
    FinishReason,
    Request,
    RequestOutput,
    StreamDelta,
    TokenLogprobs,
)
from specdec_hal.runner.slot_table import SlotTable
from specdec_hal.structured.state import GrammarState

_READING = threading.RLock()
"""Held while tokens are taken out of a slot: any thread may read a request's."""


class Wants(NamedTuple):
    """A request's needs besides tokens. `top`: alternatives per log-probability, -1 without log-probabilities.

    `bias`: how many tokens' logits it changes. `answer`: whether its answer's first token is constrained. `allowed`:
    whether some tokens are forbidden wherever they would stand, `masked`: by the tokens before.
    """

    penalties: bool
    stops: bool
    thinking: bool
    answer: bool
    top: int
    bias: int
    allowed: bool
    masked: bool


_WANTS: dict[Wants, Wants] = {}
"""One object for equal ones, of which there are few."""


class Sequence:
    """A running request. In a slot, its tokens and its counts are in the runner's :class:`.SlotTable`."""

    def __init__(self, request: Request, max_new_tokens: int, prompt: NDArray[np.int64] | None = None) -> None:
        params = request.params
        self.request, self.max_new_tokens = request, max_new_tokens
        self.prompt_len = len(request.prompt_token_ids)
        self.prompt = np.array(request.prompt_token_ids, np.int64) if prompt is None else prompt
        """A copy of the prompt's tokens for the device."""
        self.stop_sequences = params.stop_token_sequences
        self.queue_s: float | None = None
        """Seconds until its first slot, or None."""
        self.num_cached_tokens = 0
        """Prompt tokens found in the KV cache at its first slot."""
        self._token_ids: list[int] = []
        self._accepted_draft: list[bool] = []
        """Both as far as they have been read from its slot."""
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs | None] = [] if params.prompt_logprobs is None else [None]
        """Of the prompt's tokens so far, None for the first; empty unless requested."""
        self.drafts: list[Drafts] = []
        """Verified drafts, if requested."""
        self.finish_reason: FinishReason | None = None
        self.error = ""
        self._counts = NO_COUNTS
        self._reported = 0
        top = -1 if params.logprobs is None else params.logprobs
        stops, bias = bool(self.stop_sequences), len(params.logit_bias)
        thinks, allowed = params.limits_thinking, params.limits_tokens
        masked, answer = params.forbids_sequences or params.structured is not None, params.constrains_answer
        wants = Wants(params.penalised, stops, thinks, answer, top, bias, allowed, masked)
        self.wants = _WANTS.setdefault(wants, wants)
        self.grammar: GrammarState | None = None
        """Its state in its grammar, if any."""
        self.alone = top >= 0 or thinks or params.return_drafts or params.structured is not None
        """Whether a step has more for it than tokens."""
        self.limit_status = 0
        """Where it is in thinking, the text that ends it, or its answer, after the tokens that the host knows."""
        self.slot: int | None = None
        self._table: SlotTable | None = None
        """Where it is in a slot."""
        self.blocks: list[int] = []
        self.block_keys: list[bytes] = []
        """Keys of its full blocks, see :func:`specdec_hal.runner.blocks.block_keys`."""
        self.registered = 0
        """Number of its full blocks registered for sharing."""
        self.draft_rows = False
        """Whether the drafter has all rows of the computed context."""
        self.cached = 0
        """Tokens of its context that chunks have been scheduled for since it took its slot."""
        self.target = 0
        """Tokens of its context when it took its slot: where prefill ends and decoding begins."""
        self.long = False
        """Whether its context has the frequencies of texts beyond the model's `rope_switch`."""
        self.stay = max_new_tokens
        """Tokens that it generates at most before it leaves its slot: it ends, or resumes as a long text."""
        self.arrived_s = time.monotonic() if request.arrived_s is None else request.arrived_s
        self.in_flight = 0
        """Its launched but unread steps, out of a slot."""
        self.left_once = False
        """Whether a step has deferred it."""
        self.failures = 0
        """Steps that failed with it alone."""

    # ---- in a slot

    def take(self, slot: int, table: SlotTable) -> None:
        """It gets a slot."""
        length = table.length[slot] = self.length
        table.tokens[slot, : self.prompt_len] = self.prompt
        table.tokens[slot, self.prompt_len : length] = self._token_ids
        table.end[slot] = self.prompt_len + self.stay
        table.used[slot] = table.prefilling[slot] = True
        table.alone[slot], table.stops[slot] = self.alone, bool(self.stop_sequences)
        table.shares_at[slot], table.counts[:, slot], table.reported[slot] = INT32_MAX, 0, self._reported
        self.slot, self._table = slot, table

    def leave(self) -> None:
        """It loses its slot."""
        table, slot = self._table, self.slot
        assert table is not None and slot is not None
        with _READING:
            self._catch_up()
            self.in_flight, self._counts = int(table.in_flight[slot]), self.counts
            self._reported = self.reported
            self.slot = self._table = None
        table.used[slot] = table.alone[slot] = table.prefilling[slot] = False
        table.room[slot] = table.in_flight[slot] = 0
        table.owner[slot] += 1

    @property
    def token_ids(self) -> list[int]:
        """All generated tokens."""
        self._catch_up()
        return self._token_ids

    @property
    def accepted_draft(self) -> list[bool]:
        """Whether each came from a draft."""
        self._catch_up()
        return self._accepted_draft

    def _catch_up(self) -> None:
        """Read the newest tokens from its slot."""
        table, slot = self._table, self.slot
        if table is None or slot is None or self.prompt_len + len(self._token_ids) >= table.length[slot]:
            return
        with _READING:
            known = self.prompt_len + len(self._token_ids)
            if self._table is not None and known < (end := int(table.length[slot])):  # else another thread has
                self._accepted_draft += table.from_draft[slot, known:end].tolist()
                # At last, as who finds them here needs no lock.
                self._token_ids += table.tokens[slot, known:end].tolist()

    @property
    def length(self) -> int:
        """Number of tokens of prompt and output known to the host."""
        if self._table is not None:
            return int(self._table.length[self.slot])
        return self.prompt_len + len(self._token_ids)

    @property
    def generated(self) -> int:
        """Number of generated tokens."""
        return self.length - self.prompt_len

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Decode steps, drafted and accepted tokens, and the steps that had drafts."""
        steps, drafted, accepted, num_drafts = self._counts
        if self._table is not None:
            more = self._table.counts[:, self.slot].tolist()
            return steps + more[0], drafted + more[1], accepted + more[2], num_drafts + more[3]
        return steps, drafted, accepted, num_drafts

    @counts.setter
    def counts(self, counts: tuple[int, int, int, int]) -> None:
        self._counts = counts

    @property
    def reported(self) -> int:
        """How many of its tokens deltas have had."""
        return self._reported if self._table is None else int(self._table.reported[self.slot])

    @property
    def context(self) -> NDArray[np.int64]:
        """Prompt and generated tokens; in a slot, with more after them."""
        if self._table is not None:
            return self._table.tokens[self.slot]
        return np.concatenate([self.prompt, np.array(self._token_ids, np.int64)]) if self._token_ids else self.prompt

    # ---- its tokens

    def limit_status_at(self, end: int, text: list[int]) -> int:
        """What `limit_status` was after `end` tokens of prompt and output. `text`: what ends thinking at its limit."""
        status, size = self.limit_status - (self.length - end), max(1, len(text))  # each token adds one after thinking
        start = end - self.prompt_len + 1 - status
        known = self.token_ids[start : start + size] if start >= 0 else [-1]
        return status if status > size or (status > 1 and known == text[: len(known)]) else 0

    def until_end(self, token_ids: list[int], end_tokens: AbstractSet[int]) -> int:
        """How many of a step's tokens it takes, and its end if it ends with them; with `ignore_eos` no token of
        `end_tokens` ends it.
        """
        known, params = self.token_ids, self.request.params
        for at, token in enumerate(token_ids, 1):
            if token < 0:
                self.finish("error", "the model gave no distribution for the next token (NaN, or all logits -inf)")
                return at - 1
            if token in end_tokens and not params.ignore_eos:
                self.finish("stop")
            elif self.stop_sequences and len(known) + at >= params.min_new_tokens:
                longest = max(map(len, self.stop_sequences))
                text = [*known[-longest:], *token_ids[:at]]
                if any(text[-len(tokens) :] == tokens for tokens in self.stop_sequences):
                    self.finish("stop")
            if self.finish_reason is None and len(known) + at >= self.max_new_tokens:
                self.finish("length")
            if self.finish_reason is not None:
                return at
        return len(token_ids)

    def extend(self, token_ids: list[int], from_draft: list[bool]) -> None:
        """Append a step's tokens, out of a slot."""
        assert self._table is None
        self._accepted_draft += from_draft
        self._token_ids += token_ids

    def finish(self, reason: FinishReason, error: str = "") -> None:
        """End the request."""
        self.finish_reason, self.error = reason, error

    def _scored_prompt(self) -> tuple[TokenLogprobs | None, ...]:
        """After the whole prompt was processed."""
        return tuple(self.prompt_logprobs) if len(self.prompt_logprobs) == self.prompt_len else ()

    def delta(self) -> StreamDelta | None:
        """The tokens since the last call, and its end; or None."""
        tokens, start = self.token_ids, self.reported
        self._reported = len(tokens)
        if self._table is not None:
            self._table.reported[self.slot] = len(tokens)
        if start == len(tokens) and self.finish_reason is None:
            return None
        return StreamDelta(
            self.request.request_id,
            tuple(tokens[start:]),
            tuple(self._accepted_draft[start:]),
            (),
            self.finish_reason,
            tuple(self.logprobs[start:]) if self.logprobs else (),
            () if start else self._scored_prompt(),
            tuple([one for one in self.drafts if one.start >= start]) if self.drafts else (),
            self.counts if self.request.params.stop else NO_COUNTS,
        )

    def output(self) -> RequestOutput:
        """The finished request, without text."""
        assert self.finish_reason is not None
        steps, drafted, accepted, num_drafts = self.counts
        return RequestOutput(
            self.request.request_id, self.prompt_len, tuple(self.token_ids), tuple(self.accepted_draft), "",
            self.finish_reason, self.error, tuple(self.logprobs), steps, drafted, accepted, self.queue_s,
            self._scored_prompt(), tuple(self.drafts), self.request.params.seed, num_drafts, self.num_cached_tokens,
        )  # fmt: skip

    # ----

    @property
    def prefilling(self) -> bool:
        """Whether part of its context has not been scheduled."""
        return self.cached < self.target

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of its prompt are still to be computed."""
        return self.request.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len

    def leave_once(self, long: int) -> bool:
        """Whether a step should defer it: once, for `long` or more tokens."""
        leave = not self.left_once and self.prompt_len >= long
        self.left_once = True
        return leave

    def resume(self, rope_switch: int | None = None) -> None:
        """It takes a slot next: all its tokens go through prefill. `rope_switch`: the model's."""
        self.cached, self.target = 0, self.length
        if rope_switch is None:
            return
        if self.length > rope_switch and not self.long:
            self.long, self.block_keys = True, []
        # The last token of a short text is that after `rope_switch` others.
        least = self.max_new_tokens if self.long else rope_switch + 1 - self.prompt_len
        self.stay = min(self.max_new_tokens, least)

    @property
    def leaves(self) -> bool:
        """Whether it has to leave its slot, to resume as a long text."""
        return self.slot is not None and self.stay <= self.generated < self.max_new_tokens
