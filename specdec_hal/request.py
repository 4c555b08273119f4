"""Requests and their outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from specdec_hal.config.problems import problems
from specdec_hal.config.schema import MAX_DRAFTS, Config, SamplingSettings, Section, UnicodeText
from specdec_hal.errors import RequestError
from specdec_hal.models.checkpoint import read_generation_defaults
from specdec_hal.ops import seeds
from specdec_hal.plugin.backend import AUTO
from specdec_hal.text import renamed

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]
VLLM_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
"""Names of vLLM's SamplingParams for ours."""

_Tokens = TypeVar("_Tokens", bound=Any)


class ParameterError(RequestError):
    """Sampling parameters out of range. `problems`: pairs (key, message)."""

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(f"sampling parameter {key}: {message}" for key, message in self.problems))


class AnswerParser(Section):
    """What finds the content of a chat's answer: arguments of :func:`specdec_hal.output.parsers.make_parser`.

    `prompt`: its end.
    """

    reasoning: str | None
    tools: str | None
    prompt: str
    forced: str | None
    functions: list[str]
    calls_end: bool


class SamplingParams(SamplingSettings):
    """Sampling and stopping of one request: the keys of the configuration's `sampling` section.

    vLLM's names work too: `max_tokens` is `max_new_tokens`, `min_tokens` is `min_new_tokens`.

    `n`: choices per prompt, each a separate request (:meth:`choices`).
    `num_speculative_tokens` lowers the runner's K for this request (0: no drafts); None takes the runner's.
    `return_drafts`: report what was drafted, the rejected tokens too. `cache_salt`: only requests with equal salts
    share KV blocks, so that response times reveal nothing about other requests. `answer_parser`: stop strings end the
    output only in the content that it finds, not in thoughts and calls. ParameterError for values out of range, and for
    a value under both of its names.
    """

    n: Annotated[int, Field(ge=1, le=1 << 14)] = 1
    num_speculative_tokens: Annotated[int | None, Field(ge=0, le=MAX_DRAFTS)] = None
    return_drafts: bool = False
    cache_salt: Annotated[UnicodeText | None, Field(min_length=1)] = None
    answer_parser: AnswerParser | None = None

    def __init__(self, **values: Any) -> None:
        known, twice = renamed(values, VLLM_NAMES)
        if twice:
            raise ParameterError(twice)
        try:
            super().__init__(**known)
        except ValidationError as error:
            raise ParameterError(problems(error, type(self))) from error

    @classmethod
    def default(cls, config: Config) -> SamplingParams:
        """Default parameters: the section `sampling` of a configuration.

        Keys that the section leaves out come from the checkpoint's generation_config.json, unless
        ``model.generation_config`` is "none". CheckpointError if that file is broken.
        """
        values = dict(config.sampling)
        if config.model.path is not None and config.model.generation_config == AUTO:
            found = read_generation_defaults(config.model.path)
            values |= {key: value for key, value in found.items() if key not in config.sampling.model_fields_set}
        return cls(**values)

    def updated(self, **values: Any) -> SamplingParams:
        """The same with other values of some keys, checked as those of a new one; ParameterError as there."""
        changed = renamed(values, VLLM_NAMES)[0]
        return type(self)(**{key: value for key, value in self if key not in changed}, **values)

    def seeded(self) -> SamplingParams:
        """The same with a fresh seed, if tokens are sampled and it has none.

        Called once at admission: recomputation and other ranks need the same seed.
        """
        if self.seed is not None or self.temperature == 0:
            return self
        return self.model_copy(update={"seed": int(seeds.fresh(1)[0])})

    def choices(self) -> list[SamplingParams]:
        """Parameters of each of the `n` choices, with n = 1: choice i has `seed` + i (:func:`.seeds.derived`).

        Greedy choices without a seed have none, and are equal.
        """
        own = self.seeded()
        if self.n == 1:
            return [own]
        drawn = (None if own.seed is None else seeds.derived(own.seed, choice) for choice in range(self.n))
        return [own.model_copy(update={"n": 1, "seed": seed}) for seed in drawn]

    def truncated(self, prompt: _Tokens, max_model_len: int) -> _Tokens:
        """The last tokens of a prompt that `truncate_prompt_tokens` keeps. RequestError if -1 leaves none."""
        most = self.truncate_prompt_tokens
        if most is None:
            return prompt
        if most < 0 and self.max_new_tokens >= max_model_len:
            raise RequestError(
                f"truncate_prompt_tokens: max_new_tokens {self.max_new_tokens} leaves no room for the prompt in a "
                f"context of {max_model_len}; lower max_new_tokens"
            )
        kept: _Tokens = prompt[-(max_model_len - self.max_new_tokens if most < 0 else most) :]
        return kept

    def copied(self) -> SamplingParams:
        """A copy with its own lists; the other fields are immutable."""
        copied, held = self.model_copy(), self.__dict__.items()
        lists = ((name, one) for name, one in held if isinstance(one, (list, dict)))
        copied.__dict__.update((name, deepcopy(one) if one else type(one)()) for name, one in lists)
        return copied

    @property
    def penalised(self) -> bool:
        """Whether logits must be changed before sampling."""
        return (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
            or self.min_new_tokens > 0
            or bool(self.bad_token_ids)
        )

    @property
    def forbidden_token_ids(self) -> list[int]:
        """`bad_sequences` of one token."""
        return [tokens[0] for tokens in self.bad_sequences if len(tokens) == 1]

    @property
    def limits_tokens(self) -> bool:
        """Whether some tokens are always forbidden."""
        return self.allowed_token_ids is not None or bool(self.forbidden_token_ids)

    @property
    def forbids_sequences(self) -> bool:
        """Whether some are forbidden after others."""
        return any(len(tokens) > 1 for tokens in self.bad_sequences)

    @property
    def thinking_limits(self) -> tuple[int, int]:
        """Most tokens of thought, and of the answer after it; -1: no limit."""
        limits = (None, None) if self.thinking is None else (self.thinking.max_tokens, self.thinking.max_reply_tokens)
        thought, reply = (-1 if limit is None else limit for limit in limits)
        return thought, reply

    @property
    def limits_thinking(self) -> bool:
        """Whether one of them has a limit."""
        return max(self.thinking_limits) >= 0

    @property
    def constrains_answer(self) -> bool:
        """Whether the first token of the answer is one of a few."""
        return self.thinking is not None and self.thinking.constrain_answer

    @property
    def stop_token_sequences(self) -> list[list[int]]:
        """`stop_token_ids`, which are sequences of length 1, and `stop_sequences`."""
        return [*([token] for token in self.stop_token_ids), *self.stop_sequences]


SAMPLING_NAMES = frozenset({*SamplingParams.model_fields, *VLLM_NAMES})
"""Names of sampling parameters, vLLM's too."""


class TokenLogprobs(NamedTuple):
    """Natural-log probability of an emitted token, its rank (1 = most likely), and the most likely tokens."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]

    @classmethod
    def rows(
        cls, ids: Sequence[Sequence[int]], scores: Sequence[Sequence[float]], ranks: Sequence[int], top: int
    ) -> list[TokenLogprobs]:
        """Of each row of `token_logprobs`, with its first `top` alternatives."""
        if not top:
            return [cls(values[0], rank, ()) for values, rank in zip(scores, ranks, strict=True)]
        return [
            cls(values[0], rank, tuple(zip(others[1 : top + 1], values[1 : top + 1], strict=True)))
            for others, values, rank in zip(ids, scores, ranks, strict=True)
        ]


class Drafts(NamedTuple):
    """A step's drafts after `start` generated tokens, and the number accepted into the output."""

    start: int
    token_ids: tuple[int, ...]
    accepted: int


NO_COUNTS = (0, 0, 0, 0)
"""Of a request without a decode step."""


class StreamDelta(NamedTuple):
    """One step's addition to a request. `spans`: pieces of text, each with whether it came from an accepted draft.

    `logprobs`: of each token, if the request asks for them. `prompt_logprobs`: in the first delta of a request that
    asks for them, None for the first token of the prompt and the log-probability of each other one. `drafts`: of each
    step that had any, if the request asks for them. `counts`: the `steps`, `drafted`, `accepted` and `num_drafts` of
    :class:`RequestOutput` so far, if the request has stop strings.
    """

    request_id: str
    token_ids: tuple[int, ...]
    accepted_draft: tuple[bool, ...]
    spans: tuple[tuple[str, bool], ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    drafts: tuple[Drafts, ...] = ()
    counts: tuple[int, int, int, int] = NO_COUNTS

    @classmethod
    def joined(cls, deltas: Sequence[StreamDelta]) -> StreamDelta:
        """Merge several deltas of a request, in order."""
        names = ("token_ids", "accepted_draft", "spans", "logprobs", "prompt_logprobs", "drafts")
        whole: dict[str, Any] = {
            name: tuple(chain.from_iterable(getattr(delta, name) for delta in deltas)) for name in names
        }
        return deltas[-1]._replace(**whole)

    @property
    def text(self) -> str:
        """The new text. A possible start of a stop string is held back."""
        return "".join([text for text, _ in self.spans])


@dataclass(frozen=True)
class Request:
    """A prompt and how to continue it.

    `callback` is called after every step with new output, and at the end. In seconds from its arrival: `timeout_s` for
    the whole request, `ttft_timeout_s` to its first token. A late request ends with its output so far and the reason
    "timeout". `detokenize` False: the reader of the deltas makes the text, finds stop strings in it, and cancels the
    request then (:class:`~specdec_hal.output.processor.TextProcessor`). `arrived_s`: ``time.monotonic()`` of its
    arrival, if it has waited before :meth:`ModelRunner.add_request`.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    callback: Callable[[StreamDelta], None] | None = None
    timeout_s: float | None = None
    ttft_timeout_s: float | None = None
    detokenize: bool = True
    arrived_s: float | None = None


@dataclass(frozen=True)
class RequestOutput:
    """A finished request. `text` excludes the stop string and special tokens; `token_ids` include the end token.

    `steps` counts decode steps (prefill excluded), `num_drafts` those with drafts; `drafted` and `accepted` draft
    tokens, accepted ones only as far as they are in the output. `error`: the reason if `finish_reason` is "error" or
    "timeout". `queue_s`: seconds until its first slot, or None. `prompt_logprobs`: as a :class:`StreamDelta` has them;
    empty also where a request ended before its prompt was read. `seed`: given or drawn, with which the request can be
    repeated; None where nothing was sampled and none was given. `num_cached_tokens`: prompt tokens whose keys and
    values earlier requests had computed. `prompt`: the text that was given to an :class:`LLM
    <specdec_hal.engine.LLM>`, or None.
    """

    request_id: str
    prompt_tokens: int
    token_ids: tuple[int, ...]
    accepted_draft: tuple[bool, ...]
    text: str
    finish_reason: FinishReason
    error: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    queue_s: float | None = field(default=None, compare=False)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    drafts: tuple[Drafts, ...] = ()
    seed: int | None = None
    num_drafts: int = 0
    num_cached_tokens: int = field(default=0, compare=False)
    prompt: str | None = field(default=None, compare=False)

    @property
    def outputs(self) -> tuple[RequestOutput]:
        """This output, for ``outputs[0].outputs[0].text`` as in vLLM. Here, each of `n` choices has a RequestOutput."""
        return (self,)
