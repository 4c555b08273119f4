"""Announces the proposer. Importing this module is cheap: pydantic and the proposer are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_hal import hookimpl
from specdec_hal.plugin.hookspecs import ProposerSpec

if TYPE_CHECKING:
    from acme_phrase_book.proposer import PhraseBook
    from acme_phrase_book.settings import PhraseBookSettings
    from specdec_hal.plugin.proposer import ProposerContext


def _factory(context: ProposerContext) -> PhraseBook:
    from acme_phrase_book.proposer import PhraseBook

    return PhraseBook(context)


def _settings() -> type[PhraseBookSettings]:
    from acme_phrase_book.settings import PhraseBookSettings

    return PhraseBookSettings


@hookimpl
def specdec_proposers() -> ProposerSpec:
    """``speculative.method: phrase_book``, with the section ``speculative.phrase_book``."""
    return ProposerSpec("phrase_book", _factory, _settings, "continue the text as a corpus continues it")
