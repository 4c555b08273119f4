"""Every key a configuration may have: type, range, default, meaning.

Values are strict: a quoted number is a string, and ``true`` is not 1. Sections that are left out take their defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

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

from specdec_hal import registry as registry_module
from specdec_hal.errors import ConfigError, SpecDecError
from specdec_hal.ops.enums import MatchPolicy, Strategy
from specdec_hal.ops.ngram import MAX_NGRAM_SIZE
from specdec_hal.registry import AUTO

if TYPE_CHECKING:
    from specdec_hal.backend import Backend
    from specdec_hal.registry import Registry

MAX_DRAFTS = 31
DEFAULT_DRAFTS = 5
MAX_CONTEXT = 1 << 20
INT32_MAX = (1 << 31) - 1
NAIVE = "naive"
OVERRIDE = "--set"

Member = TypeVar("Member", bound=IntEnum)


def _registry(info: ValidationInfo) -> Registry:
    return info.context["registry"] if info.context else registry_module.default


def _known(check: Callable[[Registry, str], object]) -> AfterValidator:
    """A name that the registry must know; its own message says what would have been right."""

    def validate(name: str, info: ValidationInfo) -> str:
        try:
            check(_registry(info), name)
        except SpecDecError as error:
            raise PydanticCustomError("unknown_name", "{detail}", {"detail": str(error)}) from error
        return name

    return AfterValidator(validate)


def _by_name(kind: type[Member]) -> BeforeValidator:
    """Accept a member, or its name in any case; anything else is left for pydantic to refuse."""

    def convert(value: Any) -> Any:
        return kind.__members__.get(value.upper(), value) if isinstance(value, str) else value

    return BeforeValidator(convert)


_LOWER = PlainSerializer(lambda member: member.name.lower(), return_type=str)

BackendName = Annotated[str, _known(lambda registry, name: registry.check_backend_name(name))]
BackendChoice = Annotated[str, _known(lambda registry, name: name == AUTO or registry.check_backend_name(name))]
MethodName = Annotated[str, _known(lambda registry, name: registry.get_proposer(name))]
StrategyName = Annotated[Strategy, _by_name(Strategy), _LOWER]
MatchPolicyName = Annotated[MatchPolicy, _by_name(MatchPolicy), _LOWER]
Text = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class BackendSettings(_Section):
    """`name`: a registered backend, or "auto" (SPECDEC_HAL_BACKEND, else the best available). `options`: its own."""

    name: BackendChoice = AUTO
    options: dict[str, Any] = Field(default_factory=dict)


class FallbackSettings(_Section):
    """`allow`: backends that may serve an op, or a mode of one, that the chosen backend lacks. Empty: strict."""

    allow: list[BackendName] = Field(default_factory=list)


class ModelSettings(_Section):
    """`path`: the checkpoint folder, absolute once loaded. `framework` "auto": Paddle if importable, else PyTorch."""

    path: Text | None = None
    framework: Literal["auto", "paddle", "torch"] = "auto"


class RunnerSettings(_Section):
    """Slots (`max_num_seqs`, M), context (`max_model_len`, L; null: the model's), prompt tokens of a slot per step
    (`prefill_chunk`), and `debug`: ops check values too.
    """

    max_num_seqs: Annotated[int, Field(ge=1, le=8192)] = 8
    max_model_len: Annotated[int | None, Field(ge=1, le=MAX_CONTEXT)] = None
    prefill_chunk: Annotated[int, Field(ge=1, le=MAX_CONTEXT)] = 256
    debug: bool = False


class NgramSettings(_Section):
    """Attributes of `ngram_match`. `token_budget` null: no limit. `use_index`: look-ups independent of the history."""

    max_ngram_size: Annotated[int, Field(ge=1, le=MAX_NGRAM_SIZE)] = 3
    min_ngram_size: Annotated[int, Field(ge=1, le=MAX_NGRAM_SIZE)] = 1
    match_policy: MatchPolicyName = MatchPolicy.LATEST
    token_budget: Annotated[int | None, Field(ge=1, le=INT32_MAX)] = None
    pad_to_max: bool = False
    use_index: bool = False


class SpeculativeSettings(_Section):
    """`method`: a registered proposer. `num_speculative_tokens` (K): most drafts a step; left out, 0 for naive, else 5.

    `verify_window` and `candidates` (C) matter to the strategy "topp" only.
    """

    method: MethodName = NAIVE
    num_speculative_tokens: int = Field(
        default_factory=lambda data: 0 if data["method"] == NAIVE else DEFAULT_DRAFTS, ge=0, le=MAX_DRAFTS
    )
    verify_strategy: StrategyName = Strategy.TARGET_MATCH
    verify_window: Annotated[int, Field(ge=1, le=INT32_MAX)] = 2
    candidates: Annotated[int, Field(ge=1, le=INT32_MAX)] = 8
    ngram: NgramSettings = Field(default_factory=NgramSettings)


class SamplingSettings(_Section):
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


class Config(_Section):
    """A whole configuration. Made by :func:`specdec_hal.config.load` or :func:`~specdec_hal.config.parse`."""

    backend_settings: BackendSettings = Field(default_factory=BackendSettings, alias="backend")
    fallback: FallbackSettings = Field(default_factory=FallbackSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    runner: RunnerSettings = Field(default_factory=RunnerSettings)
    speculative: SpeculativeSettings = Field(default_factory=SpeculativeSettings)
    sampling: SamplingSettings = Field(default_factory=SamplingSettings)

    _source: str = PrivateAttr("configuration")
    _overridden: tuple[str, ...] = PrivateAttr(())
    _registry: Any = PrivateAttr(None)
    _backend: Any = PrivateAttr(None)

    @property
    def backend(self) -> Backend:
        """The configured backend, built on first use (errors: see :meth:`Registry.get_backend`)."""
        if self._backend is None:
            try:
                self._backend = self._registry.get_backend(
                    self.backend_settings.name,
                    options=self.backend_settings.options,
                    fallback=self.fallback.allow,
                    debug=self.runner.debug,
                )
            except ConfigError as error:  # a factory that refuses its options knows the key, not the file
                raise self.error("backend.options", str(error).removeprefix("backend.options: ")) from error
        built: Backend = self._backend
        return built

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
        """The same without speculation, for comparisons. A backend that is already built is shared."""
        speculative = self.speculative.model_copy(update={"method": NAIVE, "num_speculative_tokens": 0})
        return self.model_copy(update={"speculative": speculative})

    def model_post_init(self, context: Any, /) -> None:
        """Remember the registry that the names were checked against."""
        self._registry = context["registry"] if context else registry_module.default

    @model_validator(mode="after")
    def _check_combinations(self) -> Config:
        problems = list(_combinations(self))
        if problems:
            raise PydanticCustomError("combination", "{problems}", {"problems": problems})
        return self


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
    if speculative.ngram.min_ngram_size > speculative.ngram.max_ngram_size:
        yield (
            "speculative.ngram.min_ngram_size",
            f"expected at most max_ngram_size = {speculative.ngram.max_ngram_size}, "
            f"got {speculative.ngram.min_ngram_size}",
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
