"""Validation of requests before they are queued."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.config.schema import ModelSettings, SpeculativeSettings
from specdec_hal.errors import RequestError
from specdec_hal.ops import Strategy
from specdec_hal.request import Request, SamplingParams
from specdec_hal.runner.slot_writer import prompt_array, room
from specdec_hal.runner.state import DecodeState
from specdec_hal.text import short

MAX_BAD_TOKENS = 64
"""Most bad tokens of a request: the width of the slot tensor."""
MAX_LOGIT_BIAS = 300
"""Most tokens in a request's logit_bias, as in OpenAI's API."""
MAX_PROMPT_LOGPROBS = (20, 1 << 18)
"""Most alternatives per prompt token, and most log-probabilities of one prompt."""
MAX_STOP_SEQUENCES = (16, 16)
"""Most stop tokens and sequences of a request, and the longest sequence."""


@dataclass(frozen=True)
class RequestRules:
    """The limits of a runner besides those of a slot (`state`).

    `cache_room`: positions in all KV blocks; None: a cache per slot. `missing`: ops that neither the backend nor its
    fallbacks have. `model`: the model's thinking tokens. `end_tokens`: the model's.
    """

    vocab_size: int
    state: DecodeState
    speculative: SpeculativeSettings
    cache_room: int | None
    missing: frozenset[str] = frozenset()
    model: ModelSettings = field(default_factory=ModelSettings)
    end_tokens: tuple[int, ...] = ()

    def check(self, request: Request, reads_text: bool) -> tuple[Request, NDArray[np.int64], int]:
        """A private copy, its prompt as an array, and the most tokens that it can generate. `reads_text`: stop strings
        are found, here or by who reads its deltas.

        RequestError if it cannot be served.
        """
        name = _check_types(request)
        params = request.params
        given = params.truncated(request.prompt_token_ids, self.state.symbols["L"])
        prompt = prompt_array(name, given)
        if params.n != 1:
            raise RequestError(f"{name}: n: expected 1, got {params.n}; add a request for each of params.choices()")
        limit = room(self.state, name, prompt, params)
        listed = isinstance(given, (list, tuple))  # immutable elements; the array is new then
        tokens = prompt.astype(np.int64, copy=not listed)
        unsigned = tokens.view(np.uint64)  # negative ids become large
        if unsigned[unsigned.argmax()] >= self.vocab_size:
            raise self._outside(name, "prompt", prompt[(prompt < 0) | (prompt >= self.vocab_size)][0])
        self._check_ids(name, params)
        if params.allowed_token_ids is not None:
            ends = self.end_tokens if params.min_new_tokens else ()
            if not {*params.allowed_token_ids}.difference(params.bad_token_ids, params.forbidden_token_ids, ends):
                raise RequestError(
                    f"{name}: allowed_token_ids: bad_token_ids, bad_sequences or min_new_tokens forbid all of them; "
                    "allow others"
                )
        if params.stop and not reads_text:
            raise RequestError(f"{name}: stop strings need a tokenizer; give the runner one, or use stop_token_ids")
        if params.temperature > 0 and self.speculative.verify_strategy is Strategy.GREEDY:
            raise RequestError(
                f"{name}: temperature {params.temperature} with strategy greedy; use verify_strategy target_match, or "
                "temperature 0"
            )
        stops = bool(params.stop_token_ids or params.stop_sequences)
        for op, wanted in (
            ("apply_penalties", params.penalised),
            ("token_logprobs", params.logprobs is not None or params.prompt_logprobs is not None),
            ("set_stop_sequences", stops),
            ("limit_thinking", params.limits_thinking),
            ("reasoning_constraint", params.constrains_answer),
            (
                "apply_token_bitmask",
                params.allowed_token_ids is not None
                or params.structured is not None
                or bool(params.bad_words or params.bad_sequences),
            ),
        ):
            if wanted and op in self.missing:
                raise RequestError(f"{name}: needs the op {op}, which the backend lacks; allow a fallback that has it")
        if params.limits_thinking and self.model.think_end_id is None:
            raise RequestError(f"{name}: thinking: the model has no token that ends it; set model.think_end_id")
        if params.thinking_limits[1] >= 0 and (params.ignore_eos or not self.state.symbols["E"]):
            why = (
                "an end token ends the answer there, and ignore_eos is true"
                if params.ignore_eos
                else "the model has no end token"
            )
            raise RequestError(f"{name}: thinking.max_reply_tokens: {why}; use max_new_tokens")
        if params.constrains_answer and not self.model.answer_start_ids:
            raise RequestError(
                f"{name}: thinking.constrain_answer: the model has no tokens that begin answers; set "
                "model.answer_start_ids"
            )
        _check_prompt_logprobs(name, len(prompt), params.prompt_logprobs)
        if self.cache_room is not None and len(prompt) + limit > self.cache_room:
            raise RequestError(
                f"{name}: {len(prompt)} prompt tokens and up to {limit} new ones exceed the KV blocks of all slots "
                f"together ({self.cache_room} positions); lower max_new_tokens or raise runner.num_kv_blocks"
            )
        copy = Request(
            request.request_id,
            tuple(given) if listed else tuple(tokens.tolist()),
            params.seeded().copied(),
            request.callback,
            request.timeout_s,
            request.ttft_timeout_s,
            request.detokenize,
            request.arrived_s,
        )
        return copy, tokens, limit

    def _outside(self, name: str, what: str, token: int) -> RequestError:
        return RequestError(f"{name}: {what}: token {token} is outside the vocabulary [0, {self.vocab_size})")

    def _check_ids(self, name: str, params: SamplingParams) -> None:
        named: tuple[tuple[str, Iterable[int]], ...] = (
            ("stop_token_ids", params.stop_token_ids),
            ("stop_sequences", chain.from_iterable(params.stop_sequences)),
            ("bad_token_ids", params.bad_token_ids),
            ("logit_bias", params.logit_bias),
        )
        for what, ids in named:
            for token in ids:
                if not 0 <= token < self.vocab_size:
                    raise self._outside(name, what, token)


def _check_prompt_logprobs(name: str, prompt: int, top: int | None) -> None:
    most, in_all = MAX_PROMPT_LOGPROBS
    if top is not None and top > most:
        raise RequestError(f"{name}: prompt_logprobs: at most {most} alternatives, got {top}; ask for fewer")
    if top is not None and (wanted := prompt * (top + 1)) > in_all:
        raise RequestError(
            f"{name}: prompt_logprobs: {prompt} prompt tokens with {top} alternatives each are {wanted} "
            f"log-probabilities, more than {in_all}; ask for fewer alternatives, or shorten the prompt"
        )


def _check_types(request: Request) -> str:
    """The request's name in messages; RequestError for a field of the wrong type."""
    if not isinstance(request, Request):
        raise RequestError(f"expected a Request, got {short(request)}; make one of an id and a prompt")
    if not isinstance(request.request_id, str):
        raise RequestError(f"request_id: expected a string, got {short(request.request_id)}; use str()")
    name = f"request {short(request.request_id)}"
    prompt: Any = request.prompt_token_ids
    if not isinstance(prompt, (list, tuple)) and (
        isinstance(prompt, (str, bytes, bytearray, memoryview))
        or not isinstance(prompt, Sized)
        or getattr(prompt, "ndim", 1) == 0
    ):
        raise RequestError(f"{name}: prompt: expected a flat list of integers, got {short(prompt)}; pass token ids")
    if not isinstance(request.params, SamplingParams):
        raise RequestError(f"{name}: params: expected SamplingParams, got {short(request.params)}; make one")
    if request.callback is not None and not callable(request.callback):
        raise RequestError(f"{name}: callback: expected a function, got {short(request.callback)}; leave it out")
    for key in ("timeout_s", "ttft_timeout_s"):
        seconds = getattr(request, key)
        if seconds is not None and not (isinstance(seconds, (int, float)) and 0 < seconds < math.inf):
            raise RequestError(f"{name}: {key}: expected seconds > 0, got {short(seconds)}; leave it out for no limit")
    arrived: Any = request.arrived_s
    if arrived is not None and not (isinstance(arrived, (int, float)) and math.isfinite(arrived)):
        raise RequestError(f"{name}: arrived_s: expected a time.monotonic(), got {short(arrived)}; leave it out")
    return name
