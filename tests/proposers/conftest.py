"""Runners with every proposer that is built in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from specdec_hal.plugin.hookspecs import ProposerSpec, hookimpl
from specdec_hal.plugin.model import TargetModel
from specdec_hal.plugin.proposer import Proposer, ProposerContext
from specdec_hal.plugin.registry import BUILTINS, Registry
from specdec_hal.proposers.draft_model import DraftModelSettings, draft_model_proposer

PROPOSERS = ("ngram", "suffix", "imitation", "mtp", "hybrid")


def registry_with_draft_model(make: Callable[[], TargetModel], tokenizer: Any = None) -> Registry:
    """The built-in plug-ins, and `imitation`: the proposer `draft_model` over a model that no file holds.

    `tokenizer`: the target's.
    """

    def build(context: ProposerContext) -> Proposer:
        return draft_model_proposer(replace(context, load_model=lambda path: make(), tokenizer=tokenizer))

    spec = ProposerSpec("imitation", build, DraftModelSettings)
    registry = Registry(builtins=BUILTINS, entry_points=(), environ={})
    registry.register(SimpleNamespace(specdec_proposers=hookimpl(lambda: spec)), "imitation")
    return registry


def settings_of(method: str) -> dict[str, Any]:
    """Settings with which it drafts in short texts over few tokens."""
    return {
        "ngram": {"max_ngram_size": 2},
        "suffix": {},
        "imitation": {"path": "nowhere"},
        "mtp": {},
        "hybrid": {"max_ngram_size": 2, "num_model_steps": 1},
    }[method]
