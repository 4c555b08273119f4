"""Announces the built-in proposers. A method's module is imported when the method is chosen."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from specdec_hal.plugin.hookspecs import ProposerSpec, hookimpl

if TYPE_CHECKING:
    from specdec_hal.plugin.proposer import MemoryContext, Proposer, ProposerContext


def _settings(module: str, name: str) -> Callable[[], Any]:
    return lambda: getattr(import_module(f"specdec_hal.proposers.{module}"), name)


def _proposer(module: str, name: str) -> Callable[[ProposerContext], Proposer]:
    def make(context: ProposerContext) -> Proposer:
        proposer: Proposer = getattr(import_module(f"specdec_hal.proposers.{module}"), name)(context)
        return proposer

    return make


def _memory(name: str) -> Callable[[MemoryContext], dict[str, int]]:
    def count(context: MemoryContext) -> dict[str, int]:
        parts: dict[str, int] = getattr(import_module("specdec_hal.proposers.memory"), name)(context)
        return parts

    return count


def _pads(settings: Any) -> bool:
    return bool(settings.pad_to_max)


@hookimpl
def specdec_proposers() -> list[ProposerSpec]:
    """Plain decoding and every way of drafting."""
    ngram = _proposer("ngram", "NgramProposer")
    return [
        ProposerSpec("naive", ngram, doc="no drafts: plain decoding through the same path (K = 0)"),
        ProposerSpec(
            "ngram",
            ngram,
            _settings("ngram", "NgramSettings"),
            "look the last tokens up in the request's own prompt and output",
            _pads,
        ),
        ProposerSpec(
            "mtp",
            _proposer("mtp", "MTPProposer"),
            doc="the checkpoint's multi-token-prediction module, chained for K drafts",
            memory=_memory("mtp_memory"),
        ),
        ProposerSpec(
            "eagle3",
            _proposer("eagle3", "Eagle3Proposer"),
            _settings("eagle3", "Eagle3Settings"),
            "a trained EAGLE-3 head, which reads the target's hidden states at a few depths",
            memory=_memory("eagle3_memory"),
        ),
        ProposerSpec(
            "dflash",
            _proposer("dflash", "DFlashProposer"),
            _settings("dflash", "DFlashSettings"),
            "a trained DFlash drafter, which fills in a block of tokens at once",
            memory=_memory("dflash_memory"),
        ),
        ProposerSpec(
            "hybrid",
            _proposer("hybrid", "HybridProposer"),
            _settings("hybrid", "HybridSettings"),
            "drafts of the MTP module, continued by n-gram look-up",
            _pads,
            memory=_memory("hybrid_memory"),
        ),
        ProposerSpec(
            "suffix",
            _proposer("suffix", "SuffixProposer"),
            _settings("suffix", "SuffixSettings"),
            "look the last tokens up in the request's text and earlier responses",
        ),
        ProposerSpec(
            "draft_model",
            _proposer("draft_model", "draft_model_proposer"),
            _settings("draft_model", "DraftModelSettings"),
            "a second, smaller model of the same vocabulary drafts",
            memory=_memory("draft_model_memory"),
        ),
    ]
