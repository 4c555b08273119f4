"""Every key a configuration may have: type, range, default, meaning.

Values are strict: a quoted number is a string, and ``true`` is not 1. Sections that are left out take their defaults.
A configuration holds settings and nothing that lives: :class:`specdec_hal.runtime.Runtime` builds what they describe.
The sections of the proposers are added by :mod:`specdec_hal.config.sections`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from specdec_hal.backend import AUTO
from specdec_hal.errors import ConfigError, SpecDecError
from specdec_hal.ops.enums import Strategy

MAX_DRAFTS = 31
DEFAULT_DRAFTS = 5
MAX_CONTEXT = 1 << 20
INT32_MAX = (1 << 31) - 1
NAIVE = "naive"
OVERRIDE = "--set"
NAMES = "names"
"""The key of the validation context under which the known names stand."""

Member = TypeVar("Member", bound=IntEnum)


class Names(Protocol):
    """Who knows the names that a configuration may use: a Registry. Each raises a SpecDecError for an unknown one."""

    def check_backend_name(self, name: str) -> None:
        """A registered backend."""

    def check_framework(self, name: str) -> None:
        """A framework that some registered model is computed with."""

    def get_proposer(self, name: str) -> object:
        """A registered proposer."""


def _known(check: Callable[[Names, str], object]) -> AfterValidator:
    """A name that the registry must know; its own message says what would have been right."""

    def validate(name: str, info: ValidationInfo) -> str:
        try:
            if info.context is not None:
                check(info.context[NAMES], name)
        except SpecDecError as error:
            raise PydanticCustomError("unknown_name", "{detail}", {"detail": str(error)}) from error
        return name

    return AfterValidator(validate)


def by_name(kind: type[Member]) -> BeforeValidator:
    """Accept a member, or its name in any case; anything else is left for pydantic to refuse."""

    def convert(value: Any) -> Any:
        return kind.__members__.get(value.upper(), value) if isinstance(value, str) else value

    return BeforeValidator(convert)


class RelativePath:
    """Marks a string as a path. Relative ones are made absolute before anything is checked (config.source)."""


LOWER = PlainSerializer(lambda member: member.name.lower(), return_type=str)
"""Writes an enum's member as the lower-case name that a file has."""

BackendName = Annotated[str, _known(lambda names, name: names.check_backend_name(name))]
BackendChoice = Annotated[str, _known(lambda names, name: name == AUTO or names.check_backend_name(name))]
FrameworkChoice = Annotated[str, _known(lambda names, name: name == AUTO or names.check_framework(name))]
MethodName = Annotated[str, _known(lambda names, name: names.get_proposer(name))]
StrategyName = Annotated[Strategy, by_name(Strategy), LOWER]
Text = Annotated[str, Field(min_length=1)]
PathText = Annotated[Text, RelativePath()]
TokenId = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """What every section is: unknown keys are refused, values are strict, finite and not to be changed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class BackendSettings(Section):
    """`name`: a registered backend, or "auto" (SPECDEC_HAL_BACKEND, else the best available). `options`: its own."""

    name: BackendChoice = AUTO
    options: dict[str, Any] = Field(default_factory=dict)


class FallbackSettings(Section):
    """`allow`: backends that may serve an op, or a mode of one, that the chosen backend lacks. Empty: strict."""

    allow: list[BackendName] = Field(default_factory=list)


class ModelSettings(Section):
    """`path`: the checkpoint folder, absolute once loaded. `framework`: what computes the model, as a plug-in announces
    it; "auto": Paddle if importable, else PyTorch. `dtype`: of weights and KV cache; "auto": float32 on CPUs, the
    checkpoint's own on GPUs (of PyTorch; Paddle's model has float32 alone).
    """

    path: PathText | None = None
    framework: FrameworkChoice = AUTO
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"


class RunnerSettings(Section):
    """Slots (`max_num_seqs`, M), context (`max_model_len`, L; null: the model's), prompt tokens of a slot per step
    (`prefill_chunk`), and tokens of all slots per step (`max_num_batched_tokens`; null: a decode step of every slot and
    one chunk).

    KV cache, for models that keep it in blocks: positions of a block (`block_size`), blocks in all (`num_kv_blocks`;
    null: enough for every slot's context). `overlap`: launch a step before the one before it is read; `graph`: replay
    steps as device graphs; both null: where backend, model and proposer can. `debug`: ops check values too.
    """

    max_num_seqs: Annotated[int, Field(ge=1, le=8192)] = 8
    max_model_len: Annotated[int | None, Field(ge=1, le=MAX_CONTEXT)] = None
    prefill_chunk: Annotated[int, Field(ge=1, le=MAX_CONTEXT)] = 256
    max_num_batched_tokens: Annotated[int | None, Field(ge=1, le=INT32_MAX)] = None
    block_size: Annotated[int, Field(ge=1, le=1024)] = 64
    num_kv_blocks: Annotated[int | None, Field(ge=1, le=INT32_MAX)] = None
    overlap: bool | None = None
    graph: bool | None = None
    debug: bool = False


class SpeculativeSettings(Section):
    """`method`: a registered proposer. `num_speculative_tokens` (K): most drafts a step; left out, 0 for naive, else 5.

    `verify_window` and `candidates` (C) matter to the strategy "topp" only. A proposer with settings of its own has a
    section of its name beside these keys; :attr:`settings` is the one of the method.
    """

    method: MethodName = NAIVE
    num_speculative_tokens: int = Field(
        default_factory=lambda data: 0 if data["method"] == NAIVE else DEFAULT_DRAFTS, ge=0, le=MAX_DRAFTS
    )
    verify_strategy: StrategyName = Strategy.TARGET_MATCH
    verify_window: Annotated[int, Field(ge=1, le=INT32_MAX)] = 2
    candidates: Annotated[int, Field(ge=1, le=INT32_MAX)] = 8

    @model_validator(mode="before")
    @classmethod
    def _method_has_its_section(cls, data: Any) -> Any:
        """A section that is left out is checked too if it is the method's: its keys may have no defaults."""
        method = data.get("method") if isinstance(data, dict) else None
        sections = cls.model_fields.keys() - SpeculativeSettings.model_fields.keys()
        return {method: {}, **data} if isinstance(method, str) and method in sections else data

    @property
    def settings(self) -> Any:
        """The method's own section; None if its proposer announces no settings."""
        section = getattr(self, self.method, None)
        return section if isinstance(section, BaseModel) else None


class SamplingSettings(Section):
    """What a request gets that does not say otherwise. `temperature` 0: argmax; `top_k` 0: all; `logprobs`: how many
    alternatives to report per token besides the chosen one (null: no log-probabilities at all). `stop_token_ids` and
    `stop_sequences` (of token ids) end a generation once it has `min_new_tokens`, `bad_token_ids` are never produced.
    """

    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=INT32_MAX)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)] = 0
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_CONTEXT)] = 128
    min_new_tokens: Annotated[int, Field(ge=0, le=MAX_CONTEXT)] = 0
    stop: list[Text] = Field(default_factory=list)
    stop_token_ids: list[TokenId] = Field(default_factory=list)
    stop_sequences: list[Annotated[list[TokenId], Field(min_length=1)]] = Field(default_factory=list)
    bad_token_ids: list[TokenId] = Field(default_factory=list)
    logprobs: Annotated[int | None, Field(ge=0, le=INT32_MAX)] = None


class Config(Section):
    """A whole configuration. Made by :func:`specdec_hal.config.load` or :func:`~specdec_hal.config.parse`."""

    backend: BackendSettings = Field(default_factory=BackendSettings)
    fallback: FallbackSettings = Field(default_factory=FallbackSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    runner: RunnerSettings = Field(default_factory=RunnerSettings)
    speculative: SpeculativeSettings = Field(default_factory=SpeculativeSettings)
    sampling: SamplingSettings = Field(default_factory=SamplingSettings)

    _source: str = PrivateAttr("configuration")
    _overridden: tuple[str, ...] = PrivateAttr(())

    @property
    def model_path(self) -> Path:
        """The checkpoint folder; ConfigError where none is configured or it does not exist."""
        if self.model.path is None:
            raise self.error("model.path", "no model is configured; pass --set model.path=FOLDER")
        path = Path(self.model.path)
        if not path.is_dir():
            raise self.error("model.path", f"no such folder: {path}; give the folder of a checkpoint")
        return path

    def error(self, key: str, message: str) -> ConfigError:
        """A ConfigError about a dotted key, to be raised by whoever finds its value unusable: ``file:key: message``."""
        return ConfigError(f"{origin(key, self._source, self._overridden)}:{key}: {message}")

    def naive(self) -> Config:
        """The same without speculation, for comparisons."""
        speculative = self.speculative.model_copy(update={"method": NAIVE, "num_speculative_tokens": 0})
        return self.model_copy(update={"speculative": speculative})

    @model_validator(mode="after")
    def _check_combinations(self) -> Config:
        raise_combinations(_combinations(self))
        return self


def raise_combinations(problems: Iterable[tuple[str, str]]) -> None:
    """Refuse keys that are wrong together, from a section's ``model_validator(mode="after")``.

    `problems`: (the key to change, message) each, the key as seen from that section; nothing is raised for none.
    """
    found = list(problems)
    if found:
        raise PydanticCustomError("combination", "{problems}", {"problems": found})


def origin(key: str, source: str, overridden: Iterable[str]) -> str:
    """Whether the value of a dotted key came from ``--set`` or from `source`."""
    parents = [key[:end] for end, letter in enumerate(f"{key}.") if letter in ".["]
    return OVERRIDE if any(other in parents for other in overridden) else source


def _combinations(config: Config) -> Iterator[tuple[str, str]]:
    """Keys that are wrong together: (the key to change, message)."""
    speculative, sampling = config.speculative, config.sampling
    if speculative.method == NAIVE and speculative.num_speculative_tokens > 0:
        yield (
            "speculative.num_speculative_tokens",
            f"expected 0 with the method 'naive', got {speculative.num_speculative_tokens}; "
            "choose another speculative.method, or set 0",
        )
    if speculative.verify_strategy is Strategy.GREEDY and sampling.temperature > 0:
        yield (
            "sampling.temperature",
            f"expected 0 with speculative.verify_strategy 'greedy', got {sampling.temperature}; "
            "use target_match, which gives the same tokens as plain sampling",
        )
    if sampling.min_new_tokens > sampling.max_new_tokens:
        yield (
            "sampling.min_new_tokens",
            f"expected at most max_new_tokens = {sampling.max_new_tokens}, got {sampling.min_new_tokens}",
        )
