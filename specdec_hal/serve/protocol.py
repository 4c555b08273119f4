"""Request bodies of OpenAI's API, with vLLM's and this project's extensions.

Unsupported keys are refused by name. A null key counts as missing, as in OpenAI's API.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator

from specdec_hal.config.schema import INT32_MAX, MAX_CONTEXT, NAIVE, StructuredOutput, Text, TokenId, UnicodeText
from specdec_hal.engine.async_engine import EngineInfo
from specdec_hal.engine.rendering import rendered
from specdec_hal.models.chat import ChatTemplate
from specdec_hal.ops.seeds import SEEDS
from specdec_hal.output.parsers import TOOLS
from specdec_hal.request import ParameterError
from specdec_hal.runner import SamplingParams
from specdec_hal.serve.forms import (
    Keys,
    NamedTool,
    ResponseFormat,
    StructuredOutputs,
    WrongKeyError,
    arguments_of,
    calls_of,
    strict_calls,
    structured,
)
from specdec_hal.text import clip, short

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_CHOICES = 128
"""Most choices of one request: prompts times `n`."""
MAX_LOGPROBS = 20
"""Most alternatives per token, as in OpenAI's API."""

INT64_MAX = 2**63 - 1
"""Largest number that an answer can repeat."""

MAX_ITEMS = 2048
"""Most entries of a list or object except token ids; OpenAI's limit for messages."""

NO_METHOD = "none"
"""The `method` of a request without drafts."""

_AS_THEY_ARE = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "allowed_token_ids",
    "bad_words",
    "num_speculative_tokens",
    "seed",
    "n",
    "cache_salt",
)


class Body(Keys):
    """Base of all bodies."""

    def settled(self, template: ChatTemplate | None) -> Self:
        """The body for an answer, without inputs of the chat template after rendering.

        RequestError as from :func:`~specdec_hal.engine.rendering.rendered`.
        """
        return self


def _at_most(count: int, what: str) -> BeforeValidator:
    """Check the length of a list or object before its items and types."""

    def check(value: Any) -> Any:
        if isinstance(value, (list, dict)) and len(value) > count:
            raise ValueError(f"expected at most {count} {what}, got {len(value)}")
        return value

    return BeforeValidator(check)


def _few_prompts(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MAX_CHOICES and not isinstance(value[0], int):
        raise ValueError(f"expected at most {MAX_CHOICES} prompts, got {len(value)}")
    return value


def in_api(text: str) -> str:
    """An engine's message, with the API's names of parameters."""
    return re.sub(r"\b(max|min)_new_tokens\b", r"\1_tokens", text)


_ITEMS = _at_most(MAX_ITEMS, "items")
_TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]


def first_problem(details: Sequence[Mapping[str, Any]], body: Any) -> tuple[str, str | None]:
    """A body's first fault, with the expected forms, and its key.

    `details`: from ``ValidationError.errors``.
    """
    paths = [_path(detail, body) for detail in details]
    where = max((path for path in paths if path[:1] == paths[0][:1]), key=_depth)  # of a union, what was meant
    whats = dict.fromkeys(_what(detail) for detail, path in zip(details, paths, strict=True) if path == where)
    what, param = ", or ".join(whats), clip(".".join(map(str, where)), 150) or None
    return (what if param is None else f"{param}: {what}"), param


def _depth(path: Sequence[str | int]) -> tuple[int, int]:
    """Depth reached by validation."""
    return len(path), max((part for part in path[-1:] if isinstance(part, int)), default=0)


def _path(detail: Mapping[str, Any], body: Any) -> list[str | int]:
    """The path of a fault, without pydantic's names of union members."""
    found: list[str | int] = []
    known = True
    for part in detail["loc"]:
        known = part in body if isinstance(body, dict) else isinstance(body, list) and isinstance(part, int)
        if not known:
            continue
        found.append(part)
        body = body[part]
    if detail["type"] == "missing" and not known:  # a null key is known
        found.append(detail["loc"][-1])
    error = _wrong_key(detail)
    return found if error is None else [*found, error.param]


def _wrong_key(detail: Mapping[str, Any]) -> WrongKeyError | None:
    error = detail.get("ctx", {}).get("error")
    return error if isinstance(error, WrongKeyError) else None


def _what(detail: Mapping[str, Any]) -> str:
    if (error := _wrong_key(detail)) is not None:
        return error.message
    if detail["type"] == "extra_forbidden":
        return "unknown key; it is not served"
    if detail["type"] == "literal_error":
        return f"expected {detail['ctx']['expected']}, got {short(detail['input'])}; nothing else is served"
    return str(detail["msg"].removeprefix("Value error, "))


class StreamOptions(Body):
    """`include_usage`: a last chunk with the usage of the whole request.

    `continuous_usage_stats`: with `include_usage`, every chunk has the usage so far, as vLLM has it.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False
    """Not used: chunks are not padded."""

    @property
    def continuous(self) -> bool:
        """Whether every chunk has the usage so far."""
        return self.include_usage and self.continuous_usage_stats


One = Annotated[int | float, Field(ge=1, le=1)]
Verbosity = Literal["low", "medium", "high"]


class UnusedKeys(Body):
    """Keys of OpenAI's and vLLM's requests that do not change answers."""

    user: str | None = None
    metadata: Annotated[dict[str, Annotated[str, Field(max_length=512)]] | None, _at_most(16, "pairs")] = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    prediction: dict[str, Any] | None = Field(None, description="ignored: drafts come from the server's proposer")
    # vLLM's
    cache_salt: Annotated[UnicodeText | None, Field(min_length=1)] = None
    priority: Annotated[int, Field(ge=0, le=0)] | None = None
    use_beam_search: Literal[False] | None = None
    length_penalty: One | None = None
    early_stopping: Literal[False] | None = None
    return_tokens_as_token_ids: Literal[False] | None = None
    request_id: str | None = Field(None, description="ignored: answers have their own ids")
    session_id: str | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = Field(None, description="ignored: a chunk is one step")
    truncation_side: Literal["left"] | None = None
    thinking_token_budget: Literal[-1] | None = None
    watermarking: Literal[False] | None = None
    return_token_offsets: Literal[False] | None = None
    return_prompt_text: Literal[False] | None = None
    routed_experts_prompt_start: Literal[0] | None = None
    mm_payload: Literal["tensors", "none"] | None = Field(None, description="ignored: media are not supported")
    return_mm_kwargs: bool | None = None

    def settled(self, template: ChatTemplate | None) -> Self:
        """See :class:`Body`."""
        return self.model_copy(update={"prediction": None, "prompt_cache_options": None})


class SamplingKeys(UnusedKeys):
    """Common keys of all requests.

    Defaults come from the configuration's section `sampling`.
    """

    model: str | None = None
    stream: bool = False
    stop: Annotated[
        UnicodeText | Annotated[list[UnicodeText], Field(fail_fast=True)] | None, _at_most(64, "stop strings")
    ] = None
    seed: Annotated[int | None, Field(ge=-SEEDS, le=SEEDS - 1)] = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    logit_bias: Annotated[
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None, _ITEMS
    ] = Field(None, description="added to logits, by token id, before penalties")
    # vLLM's
    structured_outputs: StructuredOutputs | None = None
    top_k: Annotated[int | None, Field(ge=-1, le=INT32_MAX)] = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Annotated[int | None, Field(ge=0, le=INT32_MAX)] = None
    ignore_eos: bool | None = Field(None, description="no end token ends the answer")
    stop_token_ids: _TokenIds | None = None
    include_stop_str_in_output: bool | None = Field(None, description="keep the stop string in the text")
    skip_special_tokens: bool | None = Field(None, description="omit special tokens from the text (default: yes)")
    spaces_between_special_tokens: bool | None = Field(
        None, description="the tokenizer's spaces between special tokens that are text (default: yes)"
    )
    truncate_prompt_tokens: Annotated[int | None, Field(ge=-1, le=INT32_MAX)] = Field(
        None, description="keep only this many last tokens of the prompt; -1: as many as leave room for max_tokens"
    )
    allowed_token_ids: Annotated[_TokenIds | None, Field(min_length=1)] = Field(
        None, description="allowed tokens, which must include end tokens"
    )
    bad_words: Annotated[list[Text], Field(fail_fast=True)] | None = Field(
        None, description="forbidden texts, with and without a leading space", max_length=MAX_ITEMS
    )
    # this project's
    num_speculative_tokens: int | None = Field(None, description="most drafts per step, 0 for none")
    method: Annotated[UnicodeText | None, Field(max_length=64)] = Field(
        None, description="where drafts come from: the configured method, or 'none'"
    )

    @field_validator("logit_bias")
    @classmethod
    def _is_one_per_token(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for token, count in Counter(map(int, bias or ())).items():
            if count > 1:
                raise ValueError(f"expected one key for each token, got {count} for token {token}")
        return bias


class GenerationRequest(SamplingKeys, ABC):
    """Common keys of completions and chats.

    Choice i of the `n` of a prompt has the seed `seed` + i; without a seed, one is drawn per sampled prompt; every
    choice reports its seed.
    """

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stream_options: StreamOptions = StreamOptions()
    response_format: ResponseFormat | None = None
    # vLLM's
    prompt_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = Field(
        None, description="alternatives to report with the log-probability of each token of the prompt"
    )
    return_token_ids: bool = Field(
        False, description="report `token_ids`, and in `accepted_draft` which of them were accepted drafts"
    )
    # this project's
    return_drafts: bool = Field(
        False,
        description="report `drafts`: for each step with drafts, the number of tokens before them, the drafted "
        "tokens and how many of them were accepted",
    )
    return_spans: bool = Field(
        False, description="report `spans`: the pieces of the text, each with whether it came from an accepted draft"
    )

    _structured: StructuredOutput | None = PrivateAttr(None)
    """The constraint on the answer."""
    _structured_by: str | None = PrivateAttr(None)
    """The key that asks for it."""

    prompt_key: ClassVar[str]
    """The key that has the prompt."""

    @model_validator(mode="after")
    def _find_structured(self) -> Self:
        asked = {} if self.response_format is None else self.response_format.wanted
        more = None if self.structured_outputs is None else self.structured_outputs.wanted
        if asked and more:
            what = "expected no structured_outputs beside it; leave out one of them"
            raise WrongKeyError("response_format", what)
        if asked or more is not None:
            self._constrain("response_format" if asked else "structured_outputs", asked or more or {})
        return self

    def _constrain(self, key: str, wanted: Mapping[str, Any]) -> None:
        self._structured, self._structured_by = structured(key, wanted), key

    @property
    @abstractmethod
    def token_limit(self) -> int | None:
        """The most tokens to generate; None: the configuration's."""

    add_special_tokens: bool

    @property
    def generates(self) -> bool:
        """Whether anything is generated; else only the prompt's log-probabilities are returned."""
        return self.token_limit != 0

    @property
    @abstractmethod
    def alternatives(self) -> int | None:
        """How many alternatives to report with each token's log-probability; None for no log-probabilities."""

    @property
    def prompt_alternatives(self) -> int | None:
        """Alternatives per prompt token; None for no log-probabilities of the prompt."""
        return self.prompt_logprobs

    def sampling_params(self, defaults: SamplingParams, engine: EngineInfo) -> SamplingParams:
        """Sampling parameters of a prompt with its `n` choices. WrongKeyError for a bad value."""
        changes: dict[str, Any] = {name: value for name in _AS_THEY_ARE if (value := getattr(self, name)) is not None}
        changes["return_drafts"] = self.return_drafts
        if self._structured is not None:
            changes["structured"] = self._structured if self.generates else None
        if self.top_k is not None:
            changes["top_k"] = max(self.top_k, 0)
        if self.stop is not None:
            changes["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        if self.token_limit is not None:
            changes["max_new_tokens"] = min(self.token_limit, MAX_CONTEXT)
        if not self.generates:
            changes |= {"max_new_tokens": 1, "min_new_tokens": 0}  # not shown
        elif self.min_tokens is not None:
            changes["min_new_tokens"] = self.min_tokens
        if self.alternatives is not None:
            changes["logprobs"] = self.alternatives
        if self.prompt_alternatives is not None:
            changes["prompt_logprobs"] = self.prompt_alternatives
        if self.logit_bias is not None:
            changes["logit_bias"] = {int(token): bias for token, bias in self.logit_bias.items()}
        if not self._drafts(engine.method) or not self.generates:
            changes["num_speculative_tokens"] = 0
        try:
            return SamplingParams(**{**dict(defaults), **changes})
        except ParameterError as error:
            (key, message), *more = [(in_api(key), in_api(message)) for key, message in error.problems]
            others = "".join(f"; {other}: {what}" for other, what in more)
            raise WrongKeyError(key.partition("[")[0], message + others) from error

    def key_of(self, parameter: str) -> str | None:
        """The key that gives an engine's parameter, for errors; None for another word."""
        key = {"prompt": self.prompt_key, "structured": self._structured_by}.get(parameter, parameter)
        return key if key in type(self).model_fields else None

    def _drafts(self, configured: str) -> bool:
        """Whether its `method` allows drafts."""
        if self.method in (None, configured):
            return True
        if self.method not in (NO_METHOD, NAIVE):
            names = " or ".join(f"'{name}'" for name in dict.fromkeys((configured, NO_METHOD)))
            what = f"expected {names}, got {short(self.method)}; this server has no other proposer"
            raise WrongKeyError("method", what)
        if self.num_speculative_tokens:
            wanted = f"expected 0 with method '{self.method}', got {self.num_speculative_tokens}"
            raise WrongKeyError("num_speculative_tokens", f"{wanted}; leave out one of them")
        return False


class CompletionRequest(GenerationRequest):
    """POST /v1/completions. `prompt`: text or token ids, or a list of either."""

    prompt_key = "prompt"

    prompt: Annotated[
        UnicodeText
        | Annotated[list[UnicodeText], Field(fail_fast=True)]
        | _TokenIds
        | Annotated[list[_TokenIds], Field(fail_fast=True)],
        BeforeValidator(_few_prompts),
    ]
    max_tokens: Annotated[int | None, Field(ge=0, le=INT64_MAX)] = Field(
        None, description="0, with `echo` or `prompt_logprobs`: nothing but the prompt, with its log-probabilities"
    )
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    echo: bool = False
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(None, description="must equal `n`")
    suffix: Literal[""] | None = None
    add_special_tokens: bool = Field(
        True, description="add the tokenizer's own special tokens, such as a BOS, to prompts of text"
    )

    @property
    def token_limit(self) -> int | None:
        """`max_tokens`."""
        return self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """`logprobs`."""
        return self.logprobs

    @property
    def prompt_alternatives(self) -> int | None:
        """`prompt_logprobs`, or `logprobs` for an echoed prompt."""
        wanted = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((top for top in wanted if top is not None), default=None)

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt."""
        if isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int)):
            return [self.prompt]
        return self.prompt  # type: ignore[return-value]

    @model_validator(mode="after")
    def _check(self) -> CompletionRequest:
        if not 1 <= len(self.prompts) * self.n <= MAX_CHOICES:
            what = f"expected 1..{MAX_CHOICES} prompts times n, got {len(self.prompts) * self.n}"
            raise WrongKeyError("prompt", what)
        if self.best_of not in (None, self.n):
            raise WrongKeyError("best_of", f"expected {self.n}, as n, got {self.best_of}; another is not served")
        if not self.generates and not self.echo and self.prompt_logprobs is None:
            raise WrongKeyError("max_tokens", "expected at least 1 without echo and prompt_logprobs, got 0")
        if not self.generates and self.min_tokens:
            raise WrongKeyError("min_tokens", f"expected 0 with max_tokens 0, got {self.min_tokens}")
        return self


class TextPart(Body):
    """A part of a message: text of either type, or an assistant's refusal."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: UnicodeText = ""
    refusal: UnicodeText = ""
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[Any] | None = Field(None, description="ignored: the openai client sends it back")

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, data: Any) -> Any:
        kind, text = (data.get("type"), data) if isinstance(data, dict) else (None, {})
        if isinstance(kind, str) and kind not in _TEXT_PARTS:
            raise ValueError(f"expected a part of type 'text', got type {short(kind)}; this server takes text alone")
        if isinstance(kind, str) and ("refusal" if kind == "refusal" else "text") not in text:
            raise ValueError(f"expected text in a part of type '{kind}', got none")
        return data

    @property
    def as_template_value(self) -> str:
        """What it says."""
        return self.text or self.refusal


_TEXT_PARTS = get_args(TextPart.model_fields["type"].annotation)


class FunctionCall(Body):
    """A function that the assistant called; `arguments` are JSON."""

    name: UnicodeText
    arguments: UnicodeText = "{}"


class ToolCall(Body):
    """A call in an assistant's message."""

    id: UnicodeText | None = None
    type: Literal["function"] = "function"
    function: FunctionCall

    def as_template_value(self) -> dict[str, Any]:
        """For a chat template: the arguments as an object, or as text if a limit of tokens has cut them."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = self.function.arguments
        call = {"type": self.type, "function": {"name": self.function.name, "arguments": arguments}}
        return call if self.id is None else {**call, "id": self.id}


class Message(Body):
    """A message of a chat; a `content` of null is empty text, or the `refusal`."""

    role: Annotated[UnicodeText, Field(min_length=1, max_length=64)]
    content: Annotated[UnicodeText | Annotated[list[TextPart], Field(fail_fast=True)] | None, _ITEMS] = None
    name: UnicodeText | None = None
    refusal: UnicodeText | None = None
    reasoning_content: UnicodeText | None = None
    tool_calls: Annotated[Annotated[list[ToolCall], Field(fail_fast=True)] | None, _ITEMS] = None
    tool_call_id: UnicodeText | None = None
    reasoning: UnicodeText | None = Field(None, description="vLLM's name of `reasoning_content`")
    annotations: Annotated[list[Any], Field(max_length=0)] | None = Field(
        None, description="ignored: the openai client sends it back"
    )
    type: Literal["text", "message"] | None = Field(None, description="ignored: lm-eval sends it")
    id: str | None = Field(None, description="ignored: clients send back the ids of messages")

    def as_template_value(self) -> dict[str, Any]:
        """For a chat template, which takes `content` as text or as parts (:meth:`ChatTemplate.render`)."""
        content: str | list[dict[str, str]] = self.refusal or ""
        if isinstance(self.content, str):
            content = self.content
        elif self.content is not None:
            content = [{"type": "text", "text": part.as_template_value} for part in self.content]
        values: dict[str, Any] = {
            "name": self.name,
            "reasoning_content": self.reasoning if self.reasoning_content is None else self.reasoning_content,
            "tool_call_id": self.tool_call_id,
        }
        if self.tool_calls:
            values["tool_calls"] = [call.as_template_value() for call in self.tool_calls]
        return {"role": self.role, "content": content, **{key: one for key, one in values.items() if one is not None}}


class TemplateKeys(Body):
    """Input of a chat template."""

    messages: Annotated[Annotated[list[Message], Field(min_length=1), Field(fail_fast=True)] | None, _ITEMS] = None
    tools: Annotated[Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None, _ITEMS] = Field(
        None, description="shown to the chat template"
    )
    documents: Annotated[Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None, _ITEMS] = Field(
        None, description="shown to the chat template"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="variables of the chat template, such as enable_thinking"
    )
    reasoning_effort: UnicodeText | None = Field(
        None, description="a variable of the chat template; ignored if the template does not use it"
    )
    add_generation_prompt: bool = Field(True, description="the prompt ends where the assistant's answer begins")
    continue_final_message: bool = Field(
        False, description="the prompt ends in the last message; add_generation_prompt must be false"
    )

    _prompt: str | None = PrivateAttr(None)

    @property
    def prompt_text(self) -> str | None:
        """The rendered prompt, or None."""
        return self._prompt

    def settled(self, template: ChatTemplate | None) -> Self:
        """See :class:`Body`."""
        found = super().settled(template)
        if self.messages is not None and template is not None:
            found._prompt = rendered(template, self.template_arguments)
        tools = self.tools and [{"function": {"name": tool["function"]["name"]}} for tool in self.tools]
        empty = {"messages": self.messages and [], "tools": tools, "documents": None, "chat_template_kwargs": None}
        return found.model_copy(update=empty)

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Arguments of :meth:`ChatTemplate.render`."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return {
            "messages": [message.as_template_value() for message in self.messages or ()],
            "tools": self.tools,
            "documents": self.documents,
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
            **effort,
            **(self.chat_template_kwargs or {}),
        }

    @field_validator("tools")
    @classmethod
    def _are_functions(cls, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        for at, tool in enumerate(tools or ()):
            function = tool.get("function")
            if tool.get("type") != "function":
                raise ValueError(f"expected tools of type 'function', got {short(tool.get('type'))} in tool {at}")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise ValueError(f"expected a function with a name in tool {at}, got {short(function)}")
            if not isinstance(parameters := function.get("parameters"), (dict, type(None))):
                raise ValueError(f"expected an object as parameters of tool {at}, got {short(parameters)}")
        return tools

    @model_validator(mode="after")
    def _check_variables(self) -> TemplateKeys:
        taken = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
        if again := sorted(taken & (self.chat_template_kwargs or {}).keys()):
            what = f"expected other keys than {again[0]}; give it as a key of its own"
            raise WrongKeyError("chat_template_kwargs", what)
        return self


class ChatCompletionRequest(TemplateKeys, GenerationRequest):
    """POST /v1/chat/completions."""

    prompt_key = "messages"

    messages: Annotated[list[Message], Field(min_length=1), Field(fail_fast=True), _ITEMS]
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = Field(True, description="false: only the first call of an answer")
    include_reasoning: bool = Field(True, description="false: omit thoughts")
    echo: Literal[False] | None = None
    functions: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: Literal["none", "auto"] | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None
    add_special_tokens: bool = Field(
        False, description="add the tokenizer's own special tokens to the rendered template, which usually has them"
    )
    verbosity: Verbosity | None = Field(None, description="ignored")
    max_completion_tokens: Annotated[int | None, Field(ge=1, le=INT64_MAX)] = None
    max_tokens: Annotated[int | None, Field(ge=1, le=INT64_MAX)] = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0

    _strict: list[dict[str, Any]] | None = PrivateAttr(None)
    """Tools, if the model may call them and some are strict."""

    @property
    def calls_are_strict(self) -> bool:
        """Whether the model may call tools, and some are strict: its text is free up to a call."""
        return self._strict is not None

    @property
    def may_call(self) -> bool:
        """Whether to parse calls in the answer."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def tool_names(self) -> set[str]:
        """The names of the tools."""
        return {tool["function"]["name"] for tool in self.tools or ()}

    @property
    def forced_call(self) -> str | None:
        """The forced function, whose arguments are the answer; "" for a list of calls."""
        if isinstance(self.tool_choice, NamedTool):
            return self.tool_choice.function.name
        return "" if self.tool_choice == "required" else None

    @model_validator(mode="after")
    def _force_calls(self) -> Self:
        name, tools = self.forced_call, self.tools or []
        if name is None:
            if self.may_call and self._structured is None and any(tool["function"].get("strict") for tool in tools):
                keys = ("name", "parameters", "strict")
                self._strict = [{"function": {key: tool["function"].get(key) for key in keys}} for tool in tools]
            return self
        if not tools:
            what = f"expected 'none' or 'auto' without tools, got {short(name or 'required')}"
            raise WrongKeyError("tool_choice", what)
        schema = arguments_of(tools, name) if name else calls_of(tools, self.parallel_tool_calls)
        self._constrain("tools", {"json_schema": schema})
        return self

    def check_calls(self, tool_call_parser: str | None) -> None:
        """WrongKeyError for tools without a parser of calls. Constrains calls if some tools are strict."""
        if self.may_call and tool_call_parser is None and self.forced_call is None:
            got = "nothing" if self.tool_choice is None else short(self.tool_choice)
            hint = "or set serve.tool_call_parser (--tool-call-parser), which finds calls"
            raise WrongKeyError("tool_choice", f"expected 'none' with tools, got {got}; give that, {hint}")
        if self._strict and tool_call_parser is not None:
            calls = strict_calls(self._strict, TOOLS[tool_call_parser], self.parallel_tool_calls)
            self._constrain("tools", calls)

    @property
    def token_limit(self) -> int | None:
        """`max_completion_tokens`, or the older `max_tokens`."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        """`top_logprobs`, if `logprobs` asks for them."""
        return self.top_logprobs if self.logprobs else None

    @model_validator(mode="after")
    def _check(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise WrongKeyError("top_logprobs", "expected logprobs to be true")
        return self


class TokenizeRequest(TemplateKeys):
    """POST /tokenize, as vLLM has it. Either `prompt` or `messages`."""

    model: str | None = None
    prompt: UnicodeText | None = None
    add_special_tokens: bool | None = Field(None, description="default: true for a prompt, false for messages")
    return_token_strs: bool = Field(False, description="report the tokens' texts as `token_strs`")

    @property
    def adds_special_tokens(self) -> bool:
        """`add_special_tokens`, or its default."""
        return self.messages is None if self.add_special_tokens is None else self.add_special_tokens

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise WrongKeyError("prompt", "expected either prompt or messages, got both or none")
        return self


class DetokenizeRequest(Body):
    """POST /detokenize, as vLLM has it."""

    model: str | None = None
    tokens: _TokenIds


class AbortRequest(Body):
    """POST /abort. `request_id`: the id of an answer."""

    request_id: str
