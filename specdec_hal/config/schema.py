"""Every key a configuration may have: type, range, default, meaning.

Values are strict: a quoted number is a string, and ``true`` is not 1. Sections that are left out take their defaults.
A configuration holds only settings: :class:`specdec_hal.engine.runtime.Runtime` builds the objects. The sections of the
proposers are added by :mod:`specdec_hal.config.sections`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    PydanticUserError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from specdec_hal.config import hub
from specdec_hal.config.files import missing_folder
from specdec_hal.errors import ConfigError, SpecDecError
from specdec_hal.ops.enums import Strategy
from specdec_hal.ops.seeds import SEEDS
from specdec_hal.ops.vocabulary import SERVED
from specdec_hal.plugin.backend import AUTO
from specdec_hal.tensors.cpu_threads import cores
from specdec_hal.text import one_line, short

MAX_DRAFTS = SERVED["S"] - 1
DEFAULT_DRAFTS = 5
MAX_CONTEXT = SERVED["L"]
INT32_MAX = (1 << 31) - 1
NAIVE = "naive"
MOST_WORKERS = 4
"""Most HTTP processes of `serve.http_workers` "auto": eight slowed the engine of a host of 16 cores down."""
OVERRIDE, ARGUMENT = "--set", "argument"
"""Source of a value outside files: the command line, or keyword arguments."""
NAMES = "names"
"""The key of the known names in the validation context."""

Member = TypeVar("Member", bound=IntEnum)


class Names(Protocol):
    """The names that a configuration may use: a Registry. Each method raises a SpecDecError for an unknown name."""

    def check_backend_name(self, name: str) -> None:
        """A registered backend."""

    def check_framework(self, name: str) -> None:
        """A framework of a registered model."""

    def get_proposer(self, name: str) -> object:
        """A registered proposer."""


def _known(check: Callable[[Names, str], object]) -> AfterValidator:
    """A name in the registry, whose error message names the alternatives."""

    def validate(name: str, info: ValidationInfo) -> str:
        try:
            if info.context is not None:
                check(info.context[NAMES], name)
        except SpecDecError as error:
            raise PydanticCustomError("unknown_name", "{detail}", {"detail": str(error)}) from error
        return name

    return AfterValidator(validate)


def by_name(kind: type[Member]) -> BeforeValidator:
    """Accept a member, or its name in any case; pydantic refuses anything else."""

    def convert(value: Any) -> Any:
        return kind.__members__.get(value.upper(), value) if isinstance(value, str) else value

    return BeforeValidator(convert)


def _from_key(value: Any) -> Any:
    """The id in a key; journals and configurations only have string keys."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value


def _several(value: Any) -> Any:
    """A text alone as the list of it."""
    return [value] if isinstance(value, str) else value


def _json_schema(value: Any) -> Any:
    """The JSON schema of a pydantic model; other values are unchanged."""
    if not (isinstance(value, type) and issubclass(value, BaseModel)):
        return value
    try:
        return value.model_json_schema()
    except (PydanticUserError, RecursionError) as error:  # a field without a schema, or of an undefined type
        raise ValueError(f"expected a model with a JSON schema, got {value.__name__}: {one_line(error)}") from error


def _structure(value: Any) -> Any:
    """A pydantic model stands for its JSON schema."""
    return {"json_schema": value} if isinstance(value, type) else value


@dataclass(frozen=True)
class RelativePath:
    """Marks a string as a path. Relative paths become absolute before validation (config.source).

    `hub`: the name of a checkpoint on a hub becomes its folder in the cache.
    """

    hub: bool = False


LOWER = PlainSerializer(lambda member: member.name.lower(), return_type=str)
"""Serialises an enum's member as its lower-case name."""

BackendName = Annotated[str, _known(lambda names, name: names.check_backend_name(name))]
BackendChoice = Annotated[str, _known(lambda names, name: name == AUTO or names.check_backend_name(name))]
FrameworkChoice = Annotated[str, _known(lambda names, name: name == AUTO or names.check_framework(name))]
MethodName = Annotated[str, _known(lambda names, name: name == AUTO or names.get_proposer(name))]
StrategyName = Annotated[Strategy, by_name(Strategy), LOWER]


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("expected Unicode text, got half of a surrogate pair") from error
    return text


Text = Annotated[str, Field(min_length=1)]
UnicodeText = Annotated[str, AfterValidator(_encodable)]
"""Refuse strings from JSON that are not text."""
PathText = Annotated[Text, RelativePath()]
CheckpointPath = Annotated[Text, RelativePath(hub=True)]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
BiasedToken = Annotated[TokenId, BeforeValidator(_from_key)]


class Section(BaseModel):
    """Base of all sections: unknown keys are refused; values are strict, finite and immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class BackendSettings(Section):
    """`name`: a registered backend, or "auto": SPECDEC_HAL_BACKEND, else the best available one. `options`: settings of
    the backend.
    """

    name: BackendChoice = AUTO
    options: dict[str, Any] = Field(default_factory=dict)


class FallbackSettings(Section):
    """`allow`: backends that may serve ops, or modes of ops, that the chosen backend lacks; empty: none."""

    allow: list[BackendName] = Field(default_factory=list)


class ShadowSettings(Section):
    """Repeat launches on another backend and log and count differences. `backend`: the backend to compare with; null:
    off. `fraction`: share of launches to repeat.
    """

    backend: BackendName | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.01


class ModelSettings(Section):
    """`path`: checkpoint folder, .gguf file, or name on a Hugging Face hub (ORG/NAME or ORG/NAME@REVISION), which is
    looked up in the cache of `huggingface_hub`. `download`: fetch named checkpoints that the cache lacks, drafters too.
    `framework`: library that runs the model; "auto": llama.cpp for a .gguf file, else the first of paddle, transformers
    and paddleformers that has the architecture and is installed. `dtype`: dtype of weights and KV cache; "auto":
    float32 on CPUs, the checkpoint's own on GPUs (Paddle's model is always float32; with llama.cpp it is that of the KV
    cache, "auto" float16). `quantization` (transformers): "auto": weights in FP8 stay so, on GPUs; "none":
    they are widened to `dtype`; "fp8": linear layers get weights in FP8 at loading, on GPUs; "fp8_dynamic": activations
    are in FP8 too, with a scale per token. `generation_config`: "auto" takes sampling defaults from the checkpoint's
    generation_config.json for keys missing in the section `sampling`; "none" ignores them, but not its end tokens.
    `num_threads`: most CPU threads of the model; null: default of its implementation (one per core of the process, with
    Paddle and PyTorch at most OMP_NUM_THREADS). `pdl_rows`: in steps of at most this many rows, Triton's kernels start
    before the previous one ends (programmatic dependent launch); 0: never; null: the measured optimum.
    `think_end_id`: token that ends thinking; null: the model does not think. `think_end_text`: tokens that end thinking
    at a limit, with `think_end_id` among them; empty: only `think_end_id`. `line_break_id`: token of a line break; line
    break, `think_end_id` and two line breaks separate thinking from the answer. `answer_start_ids`: allowed first
    tokens of an answer, for requests with `sampling.thinking.constrain_answer`.
    """

    path: CheckpointPath | None = None
    download: bool = False
    framework: FrameworkChoice = AUTO
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    quantization: Literal["auto", "none", "fp8", "fp8_dynamic"] = "auto"
    generation_config: Literal["auto", "none"] = "auto"
    num_threads: Annotated[int | None, Field(ge=1, le=1024)] = None
    pdl_rows: Annotated[int | None, Field(ge=0, le=1 << 20)] = None
    think_end_id: TokenId | None = None
    think_end_text: list[TokenId] = Field(default_factory=list)
    line_break_id: TokenId | None = None
    answer_start_ids: list[TokenId] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_thinking(self) -> ModelSettings:
        if self.think_end_text and self.think_end_id not in self.think_end_text:
            message = f"expected tokens with think_end_id ({self.think_end_id}) among them, got {self.think_end_text}"
            raise_combinations([("think_end_text", message)])
        if self.answer_start_ids and (self.think_end_id is None or self.line_break_id is None):
            lacking = "think_end_id" if self.think_end_id is None else "line_break_id"
            raise_combinations([("answer_start_ids", f"expected {lacking} beside it, which says where answers begin")])
        return self


class RunnerSettings(Section):
    """`max_num_seqs` (M): number of slots, that is of running requests. `max_model_len` (L): context length of a slot;
    null: the model's. `prefill_chunk`: most prompt tokens of a slot per step. `max_num_batched_tokens`: most tokens of
    all slots per step; null: a decode step of every slot and one chunk. `mixed_step_ratio`: longest time of a step with
    prompts while requests decode, relative to one without: by measured times, it takes fewer prompt tokens; null: no
    limit.

    `block_size`: positions per block of the KV cache, for models with blocks. `num_kv_blocks`: number of KV blocks;
    null: enough for every slot's context. `enable_prefix_caching`: share KV blocks of equal prefixes; null: if the
    model's bits do not depend on what is computed together. `recurrent_storage`: what recurrent layers
    keep: "states", one per position that drafts may take back; "replay", one and the updates since, with equal bits;
    "auto": as measured, "replay" on a GPU from three drafts on. `num_prefix_states`: states of these
    layers kept at ends of blocks; a prefix without one is not shared; null: one for each slot. `overlap`: launch a
    step before the previous one is read; null: if backend, model and proposer can. `graph`: replay steps as device
    graphs; null: if backend, model and proposer can. `debug`: check the values of every op's tensors.

    `max_waiting_requests`: most requests waiting for a slot; null: no limit. `queue_timeout_s`: longest wait of a
    request for a slot; null: no limit. `watchdog_s`: log parts of a step that take longer; null: never. `journal`: file
    to resume requests from after a crash. `journal_interval`: steps between writes of the journal.
    """

    max_num_seqs: Annotated[int, Field(ge=1, le=SERVED["M"])] = 8
    max_model_len: Annotated[int | None, Field(ge=1, le=MAX_CONTEXT)] = None
    prefill_chunk: Annotated[int, Field(ge=1, le=MAX_CONTEXT)] = 256
    max_num_batched_tokens: Annotated[int | None, Field(ge=1, le=INT32_MAX)] = None
    mixed_step_ratio: Annotated[float | None, Field(gt=1, allow_inf_nan=False)] = None
    block_size: Annotated[int, Field(ge=1, le=1024)] = 64
    num_kv_blocks: Annotated[int | None, Field(ge=1, le=INT32_MAX)] = None
    enable_prefix_caching: bool | None = None
    recurrent_storage: Literal["auto", "states", "replay"] = "auto"
    num_prefix_states: Annotated[int | None, Field(ge=0, le=INT32_MAX)] = None
    overlap: bool | None = None
    graph: bool | None = None
    debug: bool = False
    max_waiting_requests: Annotated[int | None, Field(ge=0)] = None
    queue_timeout_s: Annotated[float | None, Field(gt=0)] = None
    watchdog_s: Annotated[float | None, Field(gt=0)] = 60.0
    journal: PathText | None = None
    journal_interval: Annotated[int, Field(ge=1, le=INT32_MAX)] = 32


class EngineSettings(Section):
    """`tensor_parallel`: number of processes that share one model, each with a part of every weight. `digest_interval`:
    steps between comparisons of the ranks' decisions; null: never. `rank_timeout_s`: longest time that a rank waits for
    the others. `rank_devices`: GPU of each rank; null: `backend.options.device` and
    the next ones. For tests, ranks may share a GPU: they exchange through the host, without graphs. `warm_up`: compile
    and capture steps before the first request; null: in servers and AsyncEngine, not in LLM. `batch_invariant`: true: a
    token's bits must depend neither on drafts nor on other requests, or the model is refused; false: no measures for
    it; null: default of the model's implementation (`specdec-hal explain`).
    """

    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    digest_interval: Annotated[int | None, Field(ge=1, le=INT32_MAX)] = 16
    rank_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    rank_devices: list[Annotated[int, Field(ge=0, lt=1024)]] | None = None
    warm_up: bool | None = None
    batch_invariant: bool | None = None


class SpeculativeSettings(Section):
    """A proposer with settings has a section of its name beside these keys. `method`: a registered proposer; "auto":
    that of the drafter in `path`, else the checkpoint's MTP module if it has one, else n-grams (the log says which).
    `path`: a drafter's checkpoint, unless the method's own section has one. `calibrate`: refuse a trained drafter
    (eagle3, dflash) that drafts better with other settings, see ``specdec-hal drafters check``.
    `num_speculative_tokens` (K): most drafts per step; always 0 for naive. `adaptive`: draft 0 to K tokens per request,
    by measured acceptance and step times; tokens do not change; null: unless ranks of engine.tensor_parallel must agree
    or drafts are padded to K. Where "auto" has chosen a module or a drafter, adaptive requests draft by n-grams while
    that gives more tokens per second. `verify_strategy`: how drafts are compared with the model; "target_match" and
    "greedy" keep the tokens, "rejection" keeps the distribution, "topp" neither.
    `verify_window`: for "topp", best drafts that must follow a second-best one. `candidates` (C): for "topp",
    candidates per row.
    """

    method: MethodName = AUTO
    path: CheckpointPath | None = None
    calibrate: bool = False
    num_speculative_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFTS, validate_default=True)] = DEFAULT_DRAFTS
    adaptive: bool | None = None
    verify_strategy: StrategyName = Strategy.TARGET_MATCH
    verify_window: Annotated[int, Field(ge=1, le=INT32_MAX)] = 2
    candidates: Annotated[int, Field(ge=1, le=INT32_MAX)] = 8

    @field_validator("num_speculative_tokens")
    @classmethod
    def _naive_drafts_nothing(cls, k: int, info: ValidationInfo) -> int:
        return 0 if info.data.get("method") == NAIVE else k

    @model_validator(mode="before")
    @classmethod
    def _method_has_its_section(cls, data: Any) -> Any:
        """Validate the method's section even if it is missing: it may have required keys."""
        method = data.get("method") if isinstance(data, dict) else None
        sections = cls.model_fields.keys() - SpeculativeSettings.model_fields.keys()
        return {method: {}, **data} if isinstance(method, str) and method in sections else data

    @property
    def settings(self) -> Any:
        """The method's own section; None if its proposer announces no settings."""
        section = getattr(self, self.method, None)
        return section if isinstance(section, BaseModel) else None


class ThinkingSettings(Section):
    """Limits of thinking, for a model with `model.think_end_id`. `enabled`: whether the request thinks.
    `constrain_answer`: the first token of the answer is one of `model.answer_start_ids`, after the separator or, if the
    request does not think, after the prompt. `max_tokens`: most tokens of thinking; there, and at
    an end token, `model.think_end_text` ends it; null: no limit. `max_reply_tokens`: most tokens of the answer, which
    an end token then ends; null: no limit.
    """

    enabled: bool = True
    constrain_answer: bool = False
    max_tokens: Annotated[int | None, Field(ge=0, le=INT32_MAX)] = None
    max_reply_tokens: Annotated[int | None, Field(ge=0, le=INT32_MAX)] = None


MAX_GRAMMAR = 1 << 18
"""Characters of a grammar, a schema as JSON among them."""


class StructuredOutput(Section):
    """A constraint on the whole output, in exactly one form. `json_schema`: JSON by a schema: an object, its text or,
    from Python, a pydantic model. `json_object`: any JSON object. `regex`: a full match. `choice`: one of these texts.
    `grammar`: a grammar in EBNF. `structural_tag`: text with constrained parts, in xgrammar's form. `any_whitespace`:
    allow any white space between elements of JSON, not only one space after each comma and colon. `after_thinking`:
    constrain only the text after `model.think_end_id`; implied by `sampling.thinking`. `think_end`: constrain only the
    text after this text, whatever tokens spell it; with limits of thinking, `model.think_end_id` counts instead.
    `think_start`: beside `think_end`, an output that does not begin with this text has no thought and is constrained
    from its start; null: every output begins with a thought.
    """

    json_schema: Annotated[dict[str, Any] | UnicodeText | None, BeforeValidator(_json_schema)] = None
    json_object: bool = False
    regex: UnicodeText | None = None
    choice: Annotated[list[Annotated[UnicodeText, Field(min_length=1)]], Field(min_length=1)] | None = None
    grammar: UnicodeText | None = None
    structural_tag: dict[str, Any] | UnicodeText | None = None
    any_whitespace: bool = False
    after_thinking: bool = False
    think_start: Annotated[UnicodeText | None, Field(min_length=1, max_length=64)] = None
    think_end: Annotated[UnicodeText | None, Field(min_length=1, max_length=64)] = None

    @property
    def kind(self) -> tuple[str, Any]:
        """The name and value of the form; a schema's text is parsed."""
        name = self._given[0]
        value = getattr(self, name)
        parsed = name in ("json_schema", "structural_tag") and isinstance(value, str)
        return name, json.loads(value) if parsed else value

    @property
    def _given(self) -> list[str]:
        """The names of the given forms; ``{}`` is a schema."""
        return [name for name in STRUCTURES if getattr(self, name) or getattr(self, name) == {}]

    @property
    def key(self) -> str:
        """Cache key of the compiled grammar."""
        return json.dumps([*self.kind, self.any_whitespace])

    @model_validator(mode="after")
    def _check(self) -> StructuredOutput:
        given = self._given
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise_combinations(
                [(given[-1] if given else "json_schema", f"expected one of {', '.join(STRUCTURES)}, got {got}")]
            )
        name = given[0]
        try:
            value = self.kind[1]
            size = len(json.dumps(value))
        except (ValueError, RecursionError) as error:
            raise_combinations([(name, f"expected JSON, got text that does not parse ({one_line(error)})")])
        if name in ("json_schema", "structural_tag") and not isinstance(value, dict):
            raise_combinations([(name, f"expected an object, got {short(value)}")])
        if size > MAX_GRAMMAR:
            raise_combinations([(name, f"expected at most {MAX_GRAMMAR} characters, got {size}; simplify it")])
        return self


STRUCTURES = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag")
"""The forms of a :class:`StructuredOutput`."""


class SamplingSettings(Section):
    """Defaults of requests. `temperature`: 0: take the most likely token. `top_p`: sample from the likeliest tokens
    that together have this probability. `top_k`: sample from this many likeliest tokens; 0 or -1: all. `min_p`: least
    probability, relative to the likeliest token's. `seed`: seed of the random numbers; null: a sampled request draws
    one. `repetition_penalty`: divides positive logits of tokens in prompt and output, multiplies negative ones.
    `frequency_penalty`: subtracted from a token's logit for each occurrence in the output. `presence_penalty`:
    subtracted once from the logits of tokens in the output.

    `max_new_tokens`: most tokens of the output. `min_new_tokens`: least tokens before an end token or a stop may end
    the output. `ignore_eos`: an end token is a token like any other, and ends nothing. `stop`: strings that end the
    output, or one string.
    `include_stop_str_in_output`: keep the stop string in the text.
    `stop_token_ids`: tokens that end the output. `stop_sequences`: lists of token ids that end the output.
    `skip_special_tokens`: omit special tokens from the text. `spaces_between_special_tokens`: keep the tokenizer's
    spaces between special tokens. `truncate_prompt_tokens`: keep only this many last tokens of a prompt; -1: as many as
    leave room for `max_new_tokens`.

    `bad_token_ids`: tokens that are never produced. `allowed_token_ids`: only these tokens are produced (list end
    tokens too). `bad_words`: texts that are never produced, with or without a space before them. `bad_sequences`: lists
    of token ids that are never produced. `logit_bias`: added to the logits of these tokens, before penalties.
    `logprobs`: number of alternatives to report per token besides the chosen one; null: no log-probabilities.
    `prompt_logprobs`: number of alternatives to report per token of the prompt; null: no log-probabilities. `thinking`:
    limits of a request that thinks before it answers (null: none). `structured`: constraint on the output (null: none);
    from Python also a pydantic model, for JSON by its schema.
    """

    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=INT32_MAX), BeforeValidator(lambda k: 0 if k == -1 else k)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int | None, Field(ge=-SEEDS, le=SEEDS - 1)] = None
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_CONTEXT)] = 128
    min_new_tokens: Annotated[int, Field(ge=0, le=MAX_CONTEXT)] = 0
    ignore_eos: bool = False
    stop: Annotated[list[Text], BeforeValidator(_several)] = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int | None, Field(ge=-1, le=MAX_CONTEXT)] = None
    stop_token_ids: list[TokenId] = Field(default_factory=list)
    stop_sequences: list[Annotated[list[TokenId], Field(min_length=1)]] = Field(default_factory=list)
    bad_token_ids: list[TokenId] = Field(default_factory=list)
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    bad_words: list[Text] = Field(default_factory=list)
    bad_sequences: list[Annotated[list[TokenId], Field(min_length=1)]] = Field(default_factory=list)
    logit_bias: dict[BiasedToken, Annotated[float, Field(ge=-100, le=100)]] = Field(default_factory=dict)
    logprobs: Annotated[int | None, Field(ge=0, le=INT32_MAX)] = None
    prompt_logprobs: Annotated[int | None, Field(ge=0, le=INT32_MAX)] = None
    thinking: ThinkingSettings | None = None
    structured: Annotated[StructuredOutput | None, BeforeValidator(_structure)] = None

    @model_validator(mode="after")
    def _check_lengths(self) -> SamplingSettings:
        if self.truncate_prompt_tokens == 0:
            raise_combinations([("truncate_prompt_tokens", "expected at least 1, or -1, got 0")])
        if self.min_new_tokens > self.max_new_tokens:
            message = f"expected at most max_new_tokens = {self.max_new_tokens}, got {self.min_new_tokens}"
            raise_combinations([("min_new_tokens", message)])
        return self


class ServeSettings(Section):
    """Settings of `specdec-hal serve`. `host`: address to listen on. `port`: port to listen on; 0: any free one.
    `served_model_name`: name of the model for clients; null: name of its folder. `chat_template`: file with a Jinja
    template; null: the checkpoint's, without which chats are refused. `allowed_hosts`: host names of the server, also
    `*.example.com` and `*`; null: those of the loopback interface and `host`, any IP address if `host` is not on the
    loopback interface, any name if there is an API key. `allowed_origins`: origins whose web pages may use
    the server, such as `https://example.com`; `*`: all.

    `reasoning_parser`: parser of thoughts in chat answers; null: none. `tool_call_parser`: parser of tool calls in chat
    answers; null: none. `max_body_bytes`: most bytes of a request's body. `receive_timeout_s`: longest time for a
    request to arrive. `send_timeout_s`: longest time in which a client takes nothing of an answer that waits for it;
    then its connection and its requests end. `max_concurrent_requests`: most requests in progress, over all HTTP
    processes; more are refused. `drain_timeout_s`: time for running requests to end after the server was asked to stop.
    `open_metrics`: serve /metrics without the API key.

    `split`: `specdec-hal serve` runs HTTP and engine as separate processes. `http_workers`: with `split`, number of
    HTTP processes; "auto": one per four cores that the server may use, at most 4. `output_queue`: frames that may
    wait for each of them, on each side of its socket. `slow_reader`: if an output queue is full, the engine waits,
    or drops requests with an error. `log_format`: format of the log on stderr. `access_log`: log a line per
    request.
    """

    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    served_model_name: Text | None = None
    chat_template: PathText | None = None
    allowed_hosts: list[Text] | None = None
    allowed_origins: list[Text] = Field(default_factory=list)
    reasoning_parser: Literal["deepseek_r1", "mistral", "qwen3"] | None = None
    tool_call_parser: Literal["hermes", "llama3_json", "mistral"] | None = None
    receive_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    send_timeout_s: Annotated[float, Field(ge=0.001, le=86400)] = 10.0
    max_body_bytes: Annotated[int, Field(ge=1, le=INT32_MAX)] = 1 << 20
    max_concurrent_requests: Annotated[int, Field(ge=1)] = 256
    drain_timeout_s: Annotated[float, Field(ge=0)] = 30.0
    open_metrics: bool = False
    split: bool = True
    http_workers: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = "auto"
    output_queue: Annotated[int, Field(ge=1, le=INT32_MAX)] = 64
    slow_reader: Literal["wait", "drop"] = "wait"
    log_format: Literal["text", "json"] = "text"
    access_log: bool = True

    @property
    def num_http_workers(self) -> int:
        """`http_workers`, with "auto" resolved; 1 without `split`."""
        if not self.split:
            return 1
        return self.http_workers if isinstance(self.http_workers, int) else max(1, min(cores() // 4, MOST_WORKERS))


class StructuredSettings(Section):
    """Compiler of the grammars of `sampling.structured`. `backend`: "xgrammar" or "llguidance"; "auto": xgrammar if
    installed, llguidance for what it lacks or takes too long for. `compile_timeout_s`: longest time to compile a
    grammar with xgrammar. `cache_mb`: size of the cache of compiled grammars. `mask_budget_s`: most processor time for
    a mask, tried on some texts of a new grammar. `mask_timeout_s`: longest time for the masks of a request in a step,
    after which it ends with an error; none with `engine.tensor_parallel`.
    """

    backend: Literal["auto", "xgrammar", "llguidance"] = "auto"
    compile_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    cache_mb: Annotated[int, Field(ge=0, le=1 << 20)] = 256
    mask_budget_s: Annotated[float, Field(gt=0)] = 0.25
    mask_timeout_s: Annotated[float, Field(gt=0)] = 2.0


class Config(Section):
    """A whole configuration. Made by :func:`specdec_hal.config.load` or :func:`~specdec_hal.config.parse`."""

    backend: BackendSettings = Field(default_factory=BackendSettings)
    fallback: FallbackSettings = Field(default_factory=FallbackSettings)
    shadow: ShadowSettings = Field(default_factory=ShadowSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    runner: RunnerSettings = Field(default_factory=RunnerSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    speculative: SpeculativeSettings = Field(default_factory=SpeculativeSettings)
    sampling: SamplingSettings = Field(default_factory=SamplingSettings)
    structured: StructuredSettings = Field(default_factory=StructuredSettings)
    serve: ServeSettings = Field(default_factory=ServeSettings)

    _source: str = PrivateAttr("configuration")
    _overridden: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def model_path(self) -> Path:
        """The checkpoint folder or GGUF file; ConfigError if none is configured or it does not exist."""
        if self.model.path is None:
            none = "no model is configured; pass a checkpoint's folder, or its name on a hub"
            raise self.error("model.path", f"{none}: LLM(MODEL)", command_line=f"{none}: --model MODEL")
        path = Path(self.model.path)
        if not os.path.isdir(path) and not (path.suffix == ".gguf" and os.path.isfile(path)):  # False for a NUL
            hint = f"give the folder of a checkpoint, or a .gguf file{missing_folder(path)}"
            raise self.error("model.path", f"no such folder: {path}; {hint}")
        return path

    def as_json(self) -> dict[str, Any]:
        """The settings for another process, to be read by :func:`specdec_hal.config.parse`."""
        return self.model_dump(mode="json", exclude_unset=True)

    @property
    def drafter_path(self) -> str:
        """The configured method's drafter checkpoint; ConfigError if none is configured."""
        speculative = self.speculative
        path = getattr(speculative.settings, "path", None) or speculative.path
        if path is None:
            raise self.error(f"speculative.{speculative.method}.path", "expected the folder of a drafter, got none")
        return str(path)

    @property
    def served_name(self) -> str:
        """The model's name for clients: `serve.served_model_name`, or see :func:`.hub.name_of`."""
        return self.serve.served_model_name or hub.name_of(self.model_path)

    def error(self, key: str, message: str, *, command_line: str = "") -> ConfigError:
        """A ConfigError about a dotted key: ``file:key: message``. `command_line`: see :class:`SpecDecError`."""
        where = f"{origin(key, self._source, self._overridden)}:{key}: "
        return ConfigError(where + message, command_line=where + (command_line or message))

    def naive(self) -> Config:
        """The same without speculation, for comparisons."""
        speculative = self.speculative.model_copy(update={"method": NAIVE, "num_speculative_tokens": 0})
        return self.model_copy(update={"speculative": speculative})

    @model_validator(mode="after")
    def _check_combinations(self) -> Config:
        raise_combinations(_combinations(self))
        return self


def raise_combinations(problems: Iterable[tuple[str, str]]) -> None:
    """Refuse inconsistent keys, from a section's ``model_validator(mode="after")``.

    `problems`: pairs (key to change, relative to the section; message).
    """
    found = list(problems)
    if found:
        raise PydanticCustomError("combination", "{problems}", {"problems": found})


def origin(key: str, source: str, overridden: Mapping[str, str]) -> str:
    """Source of a dotted key's value: from `overridden` for it or a parent, else `source`."""
    parents = [key[:end] for end, letter in enumerate(f"{key}.") if letter in ".["]
    return next((overridden[parent] for parent in parents if parent in overridden), source)


def _timed(config: Config) -> Iterator[tuple[str, str]]:
    """Settings that make results depend on time: (key, message)."""
    if config.speculative.adaptive:
        yield "speculative.adaptive", "expected false: it depends on the time of steps"
    if config.runner.mixed_step_ratio is not None:
        yield "runner.mixed_step_ratio", "expected null: it depends on the time of steps"
    if config.runner.queue_timeout_s is not None:
        yield "runner.queue_timeout_s", "expected null: it depends on the time in the queue"


def _combinations(config: Config) -> Iterator[tuple[str, str]]:
    """Inconsistent keys: (key to change, message)."""
    if config.serve.http_workers not in (AUTO, 1) and not config.serve.split:
        yield (
            "serve.http_workers",
            f"expected 1 without serve.split, got {config.serve.http_workers}; set serve.split: true",
        )
    speculative, sampling = config.speculative, config.sampling
    if speculative.calibrate and speculative.method not in (AUTO, "eagle3", "dflash"):
        message = f"expected false with the method '{speculative.method}'; it is for 'eagle3' and 'dflash'"
        yield "speculative.calibrate", message
    if config.engine.tensor_parallel > 1:
        for key, why in _timed(config):
            yield key, f"{why}, which the ranks of engine.tensor_parallel may measure differently; remove it"
    devices, ranks = config.engine.rank_devices, config.engine.tensor_parallel
    if devices is not None and len(devices) != ranks:
        yield "engine.rank_devices", f"expected a device for each of the {ranks} ranks, got {len(devices)}"
    if speculative.verify_strategy is Strategy.GREEDY and sampling.temperature > 0:
        yield (
            "sampling.temperature",
            f"expected 0 with speculative.verify_strategy 'greedy', got {sampling.temperature}; "
            "use target_match, which gives the same tokens as plain sampling",
        )
