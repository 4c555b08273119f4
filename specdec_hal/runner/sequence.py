"""A running request: output, slot and scheduled work.

The device ends a request at an end token, a stop sequence or its length limit; other stop rules are in :mod:`.stream`.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec_hal.config.schema import INT32_MAX
from specdec_hal.runner.request import Request
from specdec_hal.runner.stream import Detokenizer, OutputStream
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


class Sequence(OutputStream):
    """A running request."""

    def __init__(
        self,
        request: Request,
        max_new_tokens: int,
        detokenizer: Detokenizer | None,
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
        self.wants = Wants(params.penalised, stops, thinks, answer, top, bias, allowed, masked)
        self.plain = top < 0 and not (stops or params.stop or thinks or params.return_drafts)
        """Whether the host only needs a step's tokens, and only end tokens can end the request."""
        self.limit_status = 0
        """Where it is in thinking, the text that ends it, or its answer, after the tokens that the host knows."""
        self.slot: int | None = None
        self.blocks: list[int] = []
        self.block_keys: list[bytes] = []
        """Keys of its full blocks, see :func:`specdec_hal.runner.blocks.block_keys`."""
        self.registered = 0
        """Number of its full blocks registered for sharing."""
        self.shares_at = INT32_MAX
        """Positions that fill one more."""
        self.draft_rows = False
        """Whether the drafter has all rows of the computed context."""
        self.cached = 0
        """Tokens of its context that chunks have been scheduled for since it took its slot."""
        self.target = 0
        """Tokens of its context when it took its slot: where prefill ends and decoding begins."""
        self.arrived_s = time.monotonic()
        self.in_flight = 0
        """Its launched but unread steps."""
        self.grammar: GrammarState | None = None
        """Its state in its grammar, if any."""
        self.left_once = False
        """Whether a step has deferred it."""
        self.failures = 0
        """Steps that failed with it alone."""

    @property
    def length(self) -> int:
        """Number of tokens of prompt and output known to the host."""
        return self.prompt_len + len(self.token_ids)

    def tokens(self, start: int, end: int) -> NDArray[np.int64]:
        """Some of them."""
        first = self.prompt_len
        if end <= first:
            return self.prompt[start:end]
        generated = np.array(self.token_ids[max(start - first, 0) : end - first], np.int64)
        return np.concatenate([self.prompt[start:], generated]) if start < first else generated

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
