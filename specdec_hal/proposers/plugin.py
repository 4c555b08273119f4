"""Announces the built-in proposers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_hal.hookspecs import ProposerSpec, hookimpl

if TYPE_CHECKING:
    from specdec_hal.proposers.ngram import NgramProposer, NgramSettings
    from specdec_hal.proposers.protocol import ProposerContext


def _ngram(context: ProposerContext) -> NgramProposer:
    from specdec_hal.proposers.ngram import NgramProposer

    return NgramProposer(context)


def _ngram_settings() -> type[NgramSettings]:
    from specdec_hal.proposers.ngram import NgramSettings

    return NgramSettings


@hookimpl
def specdec_proposers() -> list[ProposerSpec]:
    """Plain decoding and n-gram look-up."""
    return [
        ProposerSpec("naive", _ngram, doc="no drafts: plain decoding through the same path (K = 0)"),
        ProposerSpec(
            "ngram",
            _ngram,
            _ngram_settings,
            "look the last tokens up in the request's own prompt and output",
            pads_drafts=lambda settings: bool(settings.pad_to_max),
        ),
    ]
