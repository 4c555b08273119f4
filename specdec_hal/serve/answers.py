"""Responses: OpenAI's objects, and errors in its form.

A choice of a whole answer is built like that of a chunk, from one delta that joins all steps.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random, SystemRandom
from typing import Any
from uuid import uuid4

import msgspec
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from specdec_hal.engine.async_engine import EngineInfo
from specdec_hal.models import Tokenizer
from specdec_hal.output.detokenizing import PROMPT_TAIL, Detokenizer, detokenizer_for
from specdec_hal.output.parsers import THINK, TOOLS, Call, Content, Parser, Part, Reasoning, make_parser, thinks
from specdec_hal.request import AnswerParser, TokenLogprobs
from specdec_hal.runner import Request as EngineRequest
from specdec_hal.runner import RequestOutput, SamplingParams, StreamDelta
from specdec_hal.runner.metrics import acceptance
from specdec_hal.serve.bodies import BodyError
from specdec_hal.serve.protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest

Json = dict[str, Any]
LEAST = -9999.0
"""Replaces the log-probability -inf, which JSON lacks."""

_TAIL = 32
"""Characters at the end of a prompt that may be a parser's marker."""
_TEXT, _IDS, _FLAGS = "\0text", "\0ids", "\0flags"
_SAMPLES = re.compile(rb'"\\u0000text"|\["\\u0000(?:ids|flags)"\]')
"""Where a chunk has the text, the tokens and the flags of these."""
_COUNTED = ("num_drafts", "drafted_tokens", "accepted_tokens", "mean_acceptance_length")
"""Draft statistics in `usage`."""
_REASONS = {"cancelled": "abort"}
"""Finish reasons with other names in the API."""


@dataclass
class Answer(ABC):
    """The answer to one request. Choices are grouped by prompt."""

    request: GenerationRequest
    model: str
    tokenizer: Tokenizer
    prompts: Sequence[str | Sequence[int]]
    mark: str = ""
    """Identifies the process in the id, if several processes answer."""
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    prompt_ids: Sequence[Sequence[int]] = ()
    """The prompts' tokens, once they are known."""
    seeds: Sequence[int | None] = ()
    """Seeds per choice, once drawn; None for greedy choices without one."""
    _started: set[int] = field(default_factory=set)
    _tokens: dict[int, int] = field(default_factory=dict)
    """Counts per choice so far, if every chunk reports them."""
    frames: dict[int, list[bytes]] = field(default_factory=dict)
    """The bytes of a choice's chunks around their text and tokens, if nothing else differs."""
    params: SamplingParams = field(default_factory=SamplingParams)
    """The engine's info, once known."""
    end_tokens: Collection[int] = ()

    prefix, kind, chunk_kind = "", "", ""

    def __post_init__(self) -> None:
        self.id = f"{self.prefix}-{self.mark}{uuid4().hex}"

    def requests(
        self, defaults: SamplingParams, engine: EngineInfo, token_ids: Sequence[Sequence[int]]
    ) -> list[EngineRequest]:
        """The engine's requests, one per choice, named by :attr:`id` and number.

        `defaults`: parameters that the body omits. `token_ids`: of each prompt. RequestError for a bad value.
        """
        params = self._after_thoughts(self.request.sampling_params(defaults, engine))
        if self.markers and any(map(self._is_special, self.markers)):
            params = params.model_copy(update={"skip_special_tokens": False})
        if params.stop and (parser := self.parser(params)) is not None:
            params = params.model_copy(update={"answer_parser": parser})
        self.params, self.end_tokens = params, () if params.ignore_eos else engine.end_tokens
        self.prompt_ids = [params.truncated(tokens, engine.max_model_len) for tokens in token_ids]
        choices = [(tokens, wanted) for tokens in self.prompt_ids for wanted in params.choices()]
        self.seeds = [wanted.seed for _, wanted in choices]
        return [EngineRequest(f"{self.id}-{index}", *choice) for index, choice in enumerate(choices)]

    def key_of(self, parameter: str) -> str | None:
        """See :meth:`GenerationRequest.key_of`."""
        return self.request.key_of(parameter)

    def _after_thoughts(self, params: SamplingParams) -> SamplingParams:
        """The start of a grammar."""
        return params

    def parser(self, params: SamplingParams) -> AnswerParser | None:
        """What finds the content; None if all of the text is content."""
        return None

    def _is_special(self, text: str) -> bool:
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        return len(tokens) == 1 and tokens[0] in self.tokenizer.special_ids

    def whole(self, deltas: Sequence[StreamDelta], outputs: Iterable[RequestOutput]) -> Json:
        """The whole answer, from one delta per choice."""
        choices = [self.choice(index, delta, "message") for index, delta in enumerate(deltas)]
        extra = {"usage": self._usage(outputs), **self._about_prompt(0, deltas[0])}
        return self._object(self.kind, choices=choices, **extra)

    def chunk(self, index: int, delta: StreamDelta) -> bytes:
        """One event of a stream."""
        if delta.finish_reason is None and self._grows_by_text and index in self._started:
            return self._framed(index, delta)
        return self.any_chunk(index, delta)

    def _framed(self, index: int, delta: StreamDelta) -> bytes:
        """As :meth:`any_chunk`, if only text and tokens are new."""
        frame = self.frames.get(index)
        if frame is None:
            sample = StreamDelta(delta.request_id, (_IDS,), (_FLAGS,), ((_TEXT, False),), None)  # type: ignore[arg-type]
            self.frames[index] = frame = _SAMPLES.split(self.any_chunk(index, sample))
        text = encode(delta.text)
        if len(frame) == 2:
            return b"".join((frame[0], text, frame[1]))
        tokens, flags = encode(delta.token_ids), encode(delta.accepted_draft)
        return b"".join((frame[0], text, frame[1], tokens, frame[2], flags, frame[3]))

    @cached_property
    def _grows_by_text(self) -> bool:
        """Whether a choice's chunks between its first and its last differ in their text and tokens alone."""
        request, params = self.request, self.params
        others = request.return_drafts or request.return_spans or request.stream_options.continuous
        return request.generates and params.logprobs is None and params.prompt_logprobs is None and not others

    def any_chunk(self, index: int, delta: StreamDelta) -> bytes:
        """The event of a step of a choice, built from scratch."""
        options = self.request.stream_options
        more: Json = {"usage": None} if options.include_usage else {}
        if options.continuous:
            more = {"usage": self._usage_so_far(index, delta)}
        more |= self._about_prompt(index, delta)
        tail = b"," + encode(more)[1:] if more else b"}"
        return b"".join((self._head, encode(self.choice(index, delta, "delta")), b"]", tail, b"\n\n"))

    def opening(self) -> bytes:
        """The first events of a stream."""
        return b""

    def closing(self, outputs: Iterable[RequestOutput]) -> bytes:
        """The usage event, if requested, and the last event."""
        last = b"data: [DONE]\n\n"
        if not self.request.stream_options.include_usage:
            return last
        return event(self._object(self.chunk_kind, choices=[], usage=self._usage(outputs))) + last

    def failure(self, error: HTTPException) -> bytes:
        """The last event of a failed stream."""
        return event(error_body(error.status_code, error.detail))

    def _usage_so_far(self, index: int, delta: StreamDelta) -> Json:
        """Of one choice, as vLLM counts it."""
        self._tokens[index] = self._tokens.get(index, 0) + (len(delta.token_ids) if self.request.generates else 0)
        return token_counts(len(self._prompt_tokens(index)), self._tokens[index])

    def _usage(self, outputs: Iterable[RequestOutput]) -> Json:
        return usage(self.request.n, map(_prompt_alone, outputs) if not self.request.generates else outputs)

    @cached_property
    def _head(self) -> bytes:
        """The common beginning of a stream's events, up to the choice."""
        return b"data: " + encode(self._object(self.chunk_kind, choices=[])).removesuffix(b"]}")

    def _object(self, kind: str, **parts: Any) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, **parts}

    def choice(self, index: int, delta: StreamDelta, part: str) -> Json:
        """One choice of an answer or, with the `part` "delta", of a chunk."""
        if not self.request.generates:
            delta = _without_tokens(delta)
        first = index not in self._started
        self._started.add(index)
        choice: Json = {"index": index}
        choice |= self._content(index, delta, part, first)
        if first:
            choice["seed"] = self.seeds[index]
        if self.request.return_token_ids:
            choice |= {"token_ids": delta.token_ids, "accepted_draft": delta.accepted_draft}
        if self.request.return_drafts:
            choice["drafts"] = [one._asdict() for one in delta.drafts]
        if self.request.return_spans:
            choice["spans"] = delta.spans
        reason = delta.finish_reason
        choice["finish_reason"] = None if reason is None else self._reason(index, reason)
        return choice

    def _reason(self, index: int, reason: str) -> str:
        """The finish reason in the API's terms."""
        return _REASONS.get(reason, reason)

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings that must stay in the text even if they are special tokens."""
        return ()

    @abstractmethod
    def _content(self, index: int, delta: StreamDelta, part: str, first: bool) -> Json:
        """A delta in the form of this kind of answer."""

    def _about_prompt(self, index: int, delta: StreamDelta) -> Json:
        """Prompt data outside the choices, with the first delta of choice `index`."""
        return {}

    def _prompt_logprobs(self, index: int, delta: StreamDelta) -> Json:
        """Prompt log-probabilities of a choice in vLLM's form, if requested and in this delta."""
        top = self.request.prompt_logprobs
        if top is None or not delta.prompt_logprobs:
            return {}
        pairs = zip(self._prompt_tokens(index), delta.prompt_logprobs, strict=True)
        return {"prompt_logprobs": [entry and self._ranked(token, entry, top) for token, entry in pairs]}

    def _ranked(self, token: int, entry: TokenLogprobs, top: int) -> Json:
        """A token and its alternatives by id."""
        found: Json = {}
        for id_, logprob, rank in (
            (token, entry.logprob, entry.rank),
            *((other, value, at) for at, (other, value) in enumerate(entry.top[:top], 1)),
        ):
            scored = {"logprob": finite(logprob), "rank": rank, "decoded_token": self._token(id_)}
            found.setdefault(str(id_), scored)
        return found

    def _prompt_tokens(self, index: int) -> Sequence[int]:
        return self.prompt_ids[index // self.request.n]

    def _token(self, token: int) -> str:
        return token_text(self.tokenizer, token)


@dataclass
class CompletionAnswer(Answer):
    """Of /v1/completions."""

    request: CompletionRequest
    _shown: dict[int, int] = field(default_factory=dict)
    """Characters of each choice's text so far."""
    _scored: dict[int, tuple[Detokenizer, int]] = field(default_factory=dict)
    """Per choice with log-probabilities: its detokenizer, and the characters so far."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def _content(self, index: int, delta: StreamDelta, part: str, first: bool) -> Json:
        if not delta.logprobs and not delta.prompt_logprobs and not (first and self.request.echo):
            return {"text": delta.text, "logprobs": None}
        echo = self._prompt(index) if first and self.request.echo else ""
        scored: list[tuple[int, TokenLogprobs | None]] = list(zip(delta.token_ids, delta.logprobs, strict=False))
        if first and self.request.echo and self.request.logprobs is not None and delta.prompt_logprobs:
            scored[:0] = zip(self._prompt_tokens(index), delta.prompt_logprobs, strict=True)
        text = echo + delta.text
        self._shown[index] = self._shown.get(index, 0) + len(text)
        final = delta.finish_reason is not None
        scores = {"logprobs": self._logprobs(index, scored, final) if scored else None}
        return {"text": text, **scores, **self._prompt_logprobs(index, delta)}

    def _prompt(self, index: int) -> str:
        prompt = self.prompts[index // self.request.n]
        if isinstance(prompt, str):
            return prompt
        detokenizer = self._detokenizer(index)
        return "".join(map(detokenizer.push, self._prompt_tokens(index))) + detokenizer.finish()

    def _logprobs(self, index: int, scored: Sequence[tuple[int, TokenLogprobs | None]], final: bool) -> Json:
        """`tokens`: each token's addition to the text, empty for special tokens. Offsets are limited to the text, which
        a stop string may shorten.
        """
        tokens, offsets = list[str](), list[int]()
        detokenizer, at = self._scored.get(index) or (self._detokenizer(index), 0)
        ended = final and scored[-1][0] in self.end_tokens and not self.params.include_stop_str_in_output
        for number, (token, _) in enumerate(scored, 1):
            tokens.append("" if ended and number == len(scored) else detokenizer.push(token))
            offsets.append(at)
            at += len(tokens[-1])
        if final:
            tokens[-1] += detokenizer.finish()
            offsets = [min(offset, self._shown[index]) for offset in offsets]
        self._scored[index] = detokenizer, at
        entries = [entry for _, entry in scored]
        return {
            "tokens": tokens,
            "token_logprobs": [entry and finite(entry.logprob) for entry in entries],
            "top_logprobs": [entry and self._top(token, entry) for token, entry in scored],
            "text_offset": offsets,
        }

    def _detokenizer(self, index: int) -> Detokenizer:
        tail = () if self.request.echo else self._prompt_tokens(index)[-PROMPT_TAIL:]
        return detokenizer_for(self.tokenizer.detokenizer, self.params, tail)()

    def _top(self, chosen: int, entry: TokenLogprobs) -> dict[str, float]:
        """Alternatives by text, including the chosen token; ``token_id:N`` for a duplicate text."""
        ids, found = dict[str, int](), dict[str, float]()
        for token, value in (*entry.top[: self.request.logprobs], (chosen, entry.logprob)):
            text = self._token(token)
            if ids.setdefault(text, token) != token:
                text = f"token_id:{token}"
            found.setdefault(text, finite(value))
        return found


@dataclass
class ChatAnswer(Answer):
    """Of /v1/chat/completions."""

    request: ChatCompletionRequest
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    item_ids: Random = field(default_factory=SystemRandom)
    """The random source of ids of calls and other parts of the answer."""
    _parsers: dict[int, Parser] = field(default_factory=dict)
    """The parser per choice, if configured."""
    _called: set[int] = field(default_factory=set)
    """Choices with a call."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _content(self, index: int, delta: StreamDelta, part: str, first: bool) -> Json:
        role = {"role": "assistant"} if first else {}
        scores = self._scores(delta)
        said = self._said(index, delta, part)
        return {part: {**role, **said}, "logprobs": {"content": scores} if scores else None}

    def _scores(self, delta: StreamDelta) -> list[Json]:
        """The log-probability of each token and of its alternatives."""
        return [
            {**self._scored(token, entry.logprob), "top_logprobs": [self._scored(*pair) for pair in entry.top]}
            for token, entry in zip(delta.token_ids, delta.logprobs, strict=False)
        ]

    @cached_property
    def _grows_by_text(self) -> bool:
        return super()._grows_by_text and self.parser(self.params) is None

    def _said(self, index: int, delta: StreamDelta, part: str) -> Json:
        """The text of a delta, split by the parser if there is one."""
        if index not in self._parsers:
            if (made := self.parser(self.params)) is None:
                return {"content": delta.text}
            self._parsers[index] = make_parser(**dict(made), ids=self.item_ids)
        parser = self._parsers[index]
        found = [*parser.push(delta.text), *(() if delta.finish_reason is None else parser.finish())]
        said: dict[type[Part], list[str]] = {Content: [], Reasoning: []}
        calls = list[Json]()
        for one in found:
            if not isinstance(one, Call):
                said[type(one)].append(one.text)
            elif self.request.parallel_tool_calls or not one.number:
                _add_call(calls, one)
                self._called.add(index)
        result: Json = {"content": "".join(said[Content])}
        if said[Reasoning] and self.request.include_reasoning:
            result |= dict.fromkeys(("reasoning_content", "reasoning"), "".join(said[Reasoning]))
        if calls:  # numbered only in streams
            result["tool_calls"] = calls
            if part == "message":
                for call in calls:
                    del call["index"]
        if part == "message" and not result["content"] and (calls or said[Reasoning] or self._forced):
            result["content"] = None
        return result

    def parser(self, params: SamplingParams) -> AnswerParser | None:
        """See :class:`Answer`."""
        if self._parser is None:
            return None
        (reasoning, tools), (prompt,) = self._parser, self.prompts
        return AnswerParser(
            reasoning=reasoning,
            tools=tools,
            prompt=prompt.rstrip()[-_TAIL:] if isinstance(prompt, str) else "",
            forced=self.request.forced_call,
            functions=sorted(self.request.tool_names),
            calls_end=params.structured is None or params.structured.think_end is None,
        )

    @property
    def _forced(self) -> bool:
        return self.request.forced_call is not None

    @cached_property
    def _parser(self) -> tuple[str | None, str | None] | None:
        """The names of the parsers of thoughts and calls; None without them."""
        looked_for = self.request.may_call and not self._forced
        names = self.reasoning_parser, self.tool_call_parser if looked_for else None
        return None if names == (None, None) and not self._forced else names

    def _after_thoughts(self, params: SamplingParams) -> SamplingParams:
        """After the thought that the parser finds, if there may be one; not if a call may end it."""
        wanted, prompt = params.structured, self.prompts[0]
        if wanted is None or self.reasoning_parser is None or self.request.calls_are_strict:
            return params
        thought = thinks(self.reasoning_parser, prompt if isinstance(prompt, str) else "")
        if thought is False:
            return params
        start, end = THINK[self.reasoning_parser]
        marks = {"think_start": None if thought else start, "think_end": end}
        return params.model_copy(update={"structured": wanted.model_copy(update=marks)})

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings that must stay in the text even if they are special tokens."""
        reasoning, tools = self._parser or (None, None)
        return (*(THINK[reasoning] if reasoning else ()), *(TOOLS[tools].markers if tools else ()))

    def _reason(self, index: int, reason: str) -> str:
        called = index in self._called and not self.request.forced_call  # not for a named function
        return "tool_calls" if reason == "stop" and called else super()._reason(index, reason)

    def _about_prompt(self, index: int, delta: StreamDelta) -> Json:
        return {} if index else self._prompt_logprobs(0, delta)

    def _scored(self, token: int, logprob: float) -> Json:
        special = token in self.tokenizer.special_ids
        data = None if special else list(self.tokenizer.token_bytes(token))
        return {"token": self._token(token), "logprob": finite(logprob), "bytes": data}


def _add_call(calls: list[Json], call: Call) -> None:
    """Another part of a call."""
    head = {} if call.name is None else {"id": call.id, "type": "function"}
    name = {} if call.name is None else {"name": call.name}
    if calls and calls[-1]["index"] == call.number:
        calls[-1]["function"]["arguments"] += call.arguments
    else:
        calls.append({"index": call.number, **head, "function": {**name, "arguments": call.arguments}})


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token's own text; ``bytes:\\xe2\\x82`` for a part of a character, as OpenAI writes it."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def usage(n: int, outputs: Iterable[RequestOutput]) -> Json:
    """Token counts of a request; a prompt with `n` choices counts once.

    What drafts did: see :func:`~specdec_hal.runner.metrics.acceptance`.
    """
    every = list(outputs)
    prompt = sum(output.prompt_tokens for output in every[::n])
    completion = sum(len(output.token_ids) for output in every)
    sums = (sum(getattr(output, name) for output in every) for name in ("num_drafts", "drafted", "accepted"))
    counted = acceptance(*sums)
    details = {"cached_tokens": sum(output.num_cached_tokens for output in every[::n])}
    counts = {**token_counts(prompt, completion), "prompt_tokens_details": details}
    return {**counts, **{name: counted[name] for name in _COUNTED}}


def token_counts(prompt: int, completion: int) -> Json:
    """OpenAI's part of a usage."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _without_tokens(delta: StreamDelta) -> StreamDelta:
    """Without the token drawn for a request that only wants its prompt."""
    reason = "length" if delta.finish_reason == "stop" else delta.finish_reason
    empty: Any = {"token_ids": (), "accepted_draft": (), "spans": (), "logprobs": (), "drafts": ()}
    return delta._replace(finish_reason=reason, **empty)


def _prompt_alone(output: RequestOutput) -> RequestOutput:
    return replace(output, token_ids=())


class Problem(BaseModel):
    """Error details: `param`: key of the body, if any; `code`: the status."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(BaseModel):
    """An error in OpenAI's form."""

    error: Problem


ERRORS: dict[int | str, Json] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in (
        (400, "an unsupported key or value, invalid JSON, or a host outside `serve.allowed_hosts`"),
        (401, "the API key is missing or wrong"),
        (403, "a web page of an origin outside `serve.allowed_origins`"),
        (404, "another model, or nothing to abort"),
        (408, "the request has not arrived within `serve.receive_timeout_s`"),
        (413, "the body is too long"),
        (429, "too many requests; Retry-After says when to retry"),
        (431, "the target and headers are too long"),
        (500, "the request failed inside the engine"),
        (503, "the engine has stopped or is restarting, or a helper process was ended"),
        (504, "the request has waited too long"),
    )
}
"""The errors of every route, for the OpenAPI document."""


encode = msgspec.json.Encoder().encode
"""As JSON."""


def event(data: Json) -> bytes:
    """As one server-sent event."""
    return b"data: " + encode(data) + b"\n\n"


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return max(logprob, LEAST)


def error_body(status: int, message: str, param: str | None = None) -> Json:
    """An error in OpenAI's form."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> HTTPException:
    """A status and its message to the client."""
    return HTTPException(status, message, headers)


def check_model(name: str | None, served: str) -> None:
    """Refuse a body that names another model."""
    if name not in (None, served):
        raise BodyError(f"model: expected '{served}', got another; GET /v1/models lists it", "model", 404)


def refuse(error: HTTPException) -> JSONResponse:
    """The response of a refusal."""
    return JSONResponse(error_body(error.status_code, error.detail), error.status_code, error.headers)
