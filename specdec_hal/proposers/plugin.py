"""Announces the built-in proposers. A method's module is imported when the method is chosen."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from specdec_hal.plugin.hookspecs import ProposerSpec, hookimpl


def _named(module: str, name: str) -> Callable[[], Any]:
    """A lazy reference to a name in a module of this package."""
    return lambda: getattr(import_module(f"specdec_hal.proposers.{module}"), name)


def _call(module: str, name: str) -> Callable[[Any], Any]:
    """Calls it with a context."""
    return lambda context: _named(module, name)()(context)


def _pads(settings: Any) -> bool:
    return bool(settings.pad_to_max)


@hookimpl
def specdec_proposers() -> list[ProposerSpec]:
    """Plain decoding and every way of drafting."""
    ngram = _call("ngram", "NgramProposer")
    return [
        ProposerSpec("naive", ngram, doc="no drafts: plain decoding through the same path (K = 0)"),
        ProposerSpec(
            "ngram",
            ngram,
            _named("ngram", "NgramSettings"),
            "look the last tokens up in the request's own prompt and output",
            _pads,
        ),
        ProposerSpec(
            "mtp",
            _call("mtp", "MTPProposer"),
            _named("mtp", "MTPSettings"),
            doc="the checkpoint's multi-token-prediction module, chained for K drafts",
            memory=_call("memory", "mtp_memory"),
        ),
        ProposerSpec(
            "eagle3",
            _call("eagle3", "Eagle3Proposer"),
            _named("eagle3", "Eagle3Settings"),
            "a trained EAGLE-3 head, which reads the target's hidden states at a few depths",
            memory=_call("memory", "eagle3_memory"),
        ),
        ProposerSpec(
            "dflash",
            _call("dflash", "DFlashProposer"),
            _named("dflash", "DFlashSettings"),
            "a trained DFlash drafter, which fills in a block of tokens at once",
            memory=_call("memory", "dflash_memory"),
        ),
        ProposerSpec(
            "hybrid",
            _call("hybrid", "HybridProposer"),
            _named("hybrid", "HybridSettings"),
            "drafts of the MTP module, continued by n-gram look-up",
            _pads,
            memory=_call("memory", "hybrid_memory"),
        ),
        ProposerSpec(
            "suffix",
            _call("suffix", "SuffixProposer"),
            _named("suffix", "SuffixSettings"),
            "look the last tokens up in the request's text and earlier responses",
        ),
        ProposerSpec(
            "draft_model",
            _call("draft_model", "draft_model_proposer"),
            _named("draft_model", "DraftModelSettings"),
            "a second, smaller model of the same vocabulary drafts",
            memory=_call("memory", "draft_model_memory"),
        ),
    ]
