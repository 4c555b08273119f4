"""Announces the built-in proposers."""

from __future__ import annotations

from typing import Any

from specdec_hal.hookspecs import ProposerSpec, hookimpl


def _ngram(*args: Any) -> Any:
    from specdec_hal.proposers.ngram import NgramProposer

    return NgramProposer(*args)


@hookimpl
def specdec_proposers() -> list[ProposerSpec]:
    """Plain decoding and n-gram look-up."""
    return [
        ProposerSpec("naive", _ngram, "no drafts: plain decoding through the same path (K = 0)"),
        ProposerSpec("ngram", _ngram, "look the last tokens up in the request's own prompt and output"),
    ]
