"""What a request must satisfy before it is queued."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_hal.config.schema import SpeculativeSettings
from specdec_hal.errors import RequestError
from specdec_hal.ops import Strategy
from specdec_hal.runner.request import Request

MAX_BAD_TOKENS = 64
"""Bad tokens a request may name: the width of the slot tensor."""
MAX_STOP_SEQUENCES = (16, 16)
"""Stop tokens and sequences a request may name, and how long a sequence may be."""


@dataclass(frozen=True)
class RequestRules:
    """The limits of a runner.

    `cache_room`: positions that the KV blocks hold in all; None: a cache for every slot. `missing`: ops that neither
    the backend nor a fallback of it has.
    """

    vocab_size: int
    max_model_len: int
    speculative: SpeculativeSettings
    cache_room: int | None
    missing: frozenset[str] = frozenset()

    def check(self, request: Request, tokenizer: object | None) -> int:
        """The most tokens that it will generate; RequestError if it cannot be served as asked."""
        name = f"request '{request.request_id}'"
        params, prompt = request.params, request.prompt_token_ids
        if len(prompt) == 0:
            raise RequestError(f"{name}: empty prompt; give at least one token (the model's bos token, say)")
        if len(prompt) >= self.max_model_len:
            raise RequestError(
                f"{name}: prompt of {len(prompt)} tokens leaves no room in a context of {self.max_model_len}; "
                "shorten it or raise runner.max_model_len"
            )
        named = {
            "prompt": prompt,
            "stop_token_ids": params.stop_token_ids,
            "stop_sequences": [token for tokens in params.stop_sequences for token in tokens],
            "bad_token_ids": params.bad_token_ids,
        }
        for what, ids in named.items():
            wrong = next((token for token in ids if not 0 <= token < self.vocab_size), None)
            if wrong is not None:
                raise RequestError(f"{name}: {what}: token {wrong} is outside the vocabulary [0, {self.vocab_size})")
        if len(params.bad_token_ids) > MAX_BAD_TOKENS:
            raise RequestError(f"{name}: at most {MAX_BAD_TOKENS} bad_token_ids, got {len(params.bad_token_ids)}")
        many, long = MAX_STOP_SEQUENCES
        if (count := len(params.stop_token_ids) + len(params.stop_sequences)) > many:
            raise RequestError(f"{name}: at most {many} stop_token_ids and stop_sequences together, got {count}")
        if (longest := max(map(len, params.stop_sequences), default=0)) > long:
            raise RequestError(f"{name}: stop_sequences of at most {long} tokens, got one of {longest}")
        if params.stop and tokenizer is None:
            raise RequestError(f"{name}: stop strings need a tokenizer; give the runner one, or use stop_token_ids")
        if params.temperature > 0 and self.speculative.verify_strategy is Strategy.GREEDY:
            raise RequestError(
                f"{name}: temperature {params.temperature} with strategy greedy; use verify_strategy target_match, or "
                "temperature 0"
            )
        stops = bool(params.stop_token_ids or params.stop_sequences)
        for op, wanted in (
            ("apply_penalties", params.penalised),
            ("token_logprobs", params.logprobs is not None),
            ("set_stop_sequences", stops),
        ):
            if wanted and op in self.missing:
                raise RequestError(f"{name}: needs the op {op}, which the backend lacks; allow a fallback that has it")
        k = self.speculative.num_speculative_tokens
        if params.num_speculative_tokens is not None and params.num_speculative_tokens > k:
            raise RequestError(
                f"{name}: num_speculative_tokens {params.num_speculative_tokens} exceeds the runner's {k}; raise "
                "speculative.num_speculative_tokens"
            )
        limit = min(params.max_new_tokens, self.max_model_len - len(prompt))
        if self.cache_room is not None and len(prompt) + limit > self.cache_room:
            raise RequestError(
                f"{name}: {len(prompt)} prompt tokens and up to {limit} new ones exceed the KV blocks of all slots "
                f"together ({self.cache_room} positions); lower max_new_tokens or raise runner.num_kv_blocks"
            )
        return limit
