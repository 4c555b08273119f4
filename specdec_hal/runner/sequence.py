"""A running request: output, slot and scheduled work.

The device ends a request at an end token, a stop sequence or its length limit; other stop rules are in :mod:`.stream`.
"""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec_hal.config.schema import INT32_MAX
from specdec_hal.output.text import READING, MakeDetokenizer, OutputStream, TokenText
from specdec_hal.request import Request, TokenLogprobs
from specdec_hal.runner.slot_table import SlotTable
from specdec_hal.structured.state import GrammarState


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


class Sequence(OutputStream):
    """A running request. In a slot, its newest tokens and its counts are in the runner's :class:`.SlotTable`."""

    lazy = True

    def __init__(
        self,
        request: Request,
        max_new_tokens: int,
        detokenizer: MakeDetokenizer | None,
        prompt: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(request, len(request.prompt_token_ids), max_new_tokens, detokenizer)
        params = request.params
        self.prompt = np.array(request.prompt_token_ids, np.int64) if prompt is None else prompt
        """A copy of the prompt's tokens for the device."""
        top = -1 if params.logprobs is None else params.logprobs
        stops, bias = bool(self.stop_sequences), len(params.logit_bias)
        thinks, allowed = params.limits_thinking, params.limits_tokens
        masked, answer = params.forbids_sequences or params.structured is not None, params.constrains_answer
        wants = Wants(params.penalised, stops, thinks, answer, top, bias, allowed, masked)
        self.wants = _WANTS.setdefault(wants, wants)
        self.grammar: GrammarState | None = None
        """Its state in its grammar, if any."""
        looked_at = thinks or params.return_drafts or params.structured is not None
        self._stops = not isinstance(self.written, TokenText)
        self._speaks = (
            detokenizer is not None and params.skip_special_tokens and (self._stops or bool(request.callback))
        )
        """Whether its texts are made with those of other requests, if the tokenizer allows that."""
        self._plain = top < 0 and not looked_at and self._speaks >= self._stops
        """Whether the host needs nothing of a step but its tokens, and their text."""
        self.limit_status = 0
        """Where it is in thinking, the text that ends it, or its answer, after the tokens that the host knows."""
        self.slot: int | None = None
        self._table: SlotTable | None = None
        """Where it is in a slot."""
        self._ahead: SlotTable | None = None
        """The same, if it has tokens there that `_token_ids` lacks."""
        self._copied = 0
        """How many of `_token_ids` are there."""
        self.shown = False
        """Whether a step's deltas are made where its tokens are taken over."""
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
        self.arrived_s = time.monotonic() if request.arrived_s is None else request.arrived_s
        self.in_flight = 0
        """Its launched but unread steps, out of a slot."""
        self.left_once = False
        """Whether a step has deferred it."""
        self.failures = 0
        """Steps that failed with it alone."""

    # ---- in a slot

    def take(self, slot: int, table: SlotTable, shown: bool) -> None:
        """It gets a slot. `shown`: a step's tokens are reported where they are taken over."""
        table.tokens[slot, : self.prompt_len], self._copied = self.prompt, 0
        table.length[slot], table.end[slot] = self.length, self.prompt_len + self.max_new_tokens
        table.used[slot] = table.prefilling[slot] = True
        table.plain[slot], table.heard[slot] = self._plain, self.request.callback is not None
        table.speaks[slot], table.stops[slot] = self._speaks, self._stops
        table.shares_at[slot], table.counts[:, slot] = INT32_MAX, 0
        self.slot, self._table, self._ahead, self.shown = slot, table, table if self._plain else None, shown
        self._fill_slot()

    def leave(self) -> None:
        """It loses its slot."""
        table, slot = self._table, self.slot
        assert table is not None and slot is not None
        with READING:
            self._catch_up()
            self.in_flight, self.counts = int(table.in_flight[slot]), self.counts
            self.slot = self._table = self._ahead = None
        table.used[slot] = table.plain[slot] = table.prefilling[slot] = False
        table.room[slot] = table.in_flight[slot] = 0
        table.owner[slot] += 1

    @property
    def generated(self) -> int:
        """Number of generated tokens."""
        return self.length - self.prompt_len

    @property
    def token_ids(self) -> list[int]:
        """All generated tokens, with the newest of its slot."""
        self._catch_up()
        return self._token_ids

    def _catch_up(self) -> None:
        """Take over the newest tokens of its slot."""
        table, slot = self._ahead, self.slot
        if table is not None and slot is not None and self.prompt_len + len(self._token_ids) < table.length[slot]:
            with READING:
                self._take_over()

    def _take_over(self) -> None:
        table = self._ahead
        if table is None:
            return
        known, end = self.prompt_len + len(self._token_ids), int(table.length[self.slot])
        if known >= end:  # the runner's thread was here first
            return
        if isinstance(self.written, TokenText):
            self.written.extend(end - known)
        self._copied = end - self.prompt_len
        if self.shown:
            self.reported = self._copied
        self._accepted_draft += table.from_draft[self.slot, known:end].tolist()
        # At last, as who finds them here needs no lock.
        self._token_ids += table.tokens[self.slot, known:end].tolist()

    @property
    def accepted_draft(self) -> list[bool]:
        """Whether each came from a draft."""
        self._catch_up()
        return self._accepted_draft

    def extend(
        self,
        token_ids: list[int],
        from_draft: list[bool],
        logprobs: list[TokenLogprobs],
        end_tokens: AbstractSet[int],
    ) -> None:
        """Append a step's tokens up to the request's end."""
        super().extend(token_ids, from_draft, logprobs, end_tokens)
        if self._table is not None:
            self._table.length[self.slot] = self.prompt_len + len(self._token_ids)
            if self._ahead is not None:
                self._fill_slot()

    # ----

    @property
    def length(self) -> int:
        """Number of tokens of prompt and output known to the host."""
        if self._ahead is not None:
            return int(self._ahead.length[self.slot])
        return self.prompt_len + len(self._token_ids)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """See OutputStream.counts."""
        own = super().counts
        if self._table is None:
            return own
        steps, drafted, accepted, num_drafts = self._table.counts[:, self.slot].tolist()
        return own[0] + steps, own[1] + drafted, own[2] + accepted, own[3] + num_drafts

    @counts.setter
    def counts(self, counts: tuple[int, int, int, int]) -> None:
        self._counts = list(counts)

    @property
    def context(self) -> NDArray[np.int64]:
        """Prompt and generated tokens; in a slot, with more after them."""
        if self._table is not None:
            self._fill_slot()
            return self._table.tokens[self.slot]
        return np.concatenate([self.prompt, np.array(self._token_ids, np.int64)]) if self._token_ids else self.prompt

    def _fill_slot(self) -> None:
        """Write its newest tokens into its slot."""
        table, start, new = self._table, self._copied, self._token_ids
        if table is not None and start < len(new):
            table.tokens[self.slot, self.prompt_len + start : self.prompt_len + len(new)] = new[start:]
            self._copied = len(new)

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

    def resume(self) -> None:
        """It takes a slot next: all its tokens go through prefill."""
        self.cached, self.target = 0, self.length
