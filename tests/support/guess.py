"""A proposer from outside, and runners with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import Section, parse
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.hookspecs import ProposerSpec
from specdec_hal.plugin.proposer import Proposer, ProposerContext, SlotView, StepView
from specdec_hal.plugin.registry import BUILTINS, Registry
from specdec_hal.runner import ModelRunner, build_runner
from tests.registry.conftest import module_with
from tests.support.history_model import VOCABULARY, HistoryModel, LetterTokenizer


class GuessSettings(Section):
    guess: Annotated[int, Field(ge=1, lt=VOCABULARY)]


class Guess(Proposer):
    """Drafts the same token over and over, on the host."""

    runs_on = "host"
    hidden_layers: tuple[int, ...] = ()
    gives_draft_probs = False

    def __init__(self, context: ProposerContext) -> None:
        self.context = context
        self.seen: list[StepView] = []
        self.slots: list[list[SlotView]] = []
        self.resets: list[list[int]] = []

    def reset(self, slots: list[int]) -> None:
        self.resets.append(slots)

    def tokens(self, view: SlotView) -> Sequence[int]:
        return [self.context.settings.guess] * view.max_drafts

    def propose(self, step: StepView) -> Any:
        self.seen.append(step)
        self.slots.append(list(step.slots))
        step.draft({view.slot: self.tokens(view) for view in step.slots})


def with_proposer(factory: Callable[[ProposerContext], Any], **spec: Any) -> Registry:
    """A registry of the built-in plug-ins and the proposer `guess`."""
    registry = Registry(builtins=BUILTINS, entry_points=(), environ={})
    announced = ProposerSpec("guess", factory, **{"settings": GuessSettings, **spec})
    registry.register(module_with(specdec_proposers=lambda: announced), "guess")
    return registry


def runner_with(
    factory: Callable[[ProposerContext], Any], *, backend: Backend | None = None, model: Any = None, k: int = 3,
    slots: int = 2, strategy: str = "target_match",
) -> ModelRunner:  # fmt: skip
    registry = with_proposer(factory)
    speculative = {
        "method": "guess",
        "num_speculative_tokens": k,
        "adaptive": False,
        "verify_strategy": strategy,
        "guess": {"guess": 4},
    }
    config = parse(
        {"speculative": speculative, "runner": {"max_num_seqs": slots, "prefill_chunk": 5, "debug": True}},
        registry=registry,
    )
    tokenizer: Any = LetterTokenizer()
    return build_runner(config, backend or ReferenceBackend(), model or HistoryModel(), tokenizer, registry=registry)
