"""Looks the last tokens of a request up in a corpus and drafts what follows there."""

from __future__ import annotations

from pathlib import Path

from specdec_hal.errors import UnsupportedError
from specdec_hal.plugin.proposer import Proposer, ProposerContext, SlotView, StepView


class PhraseBook(Proposer):
    """A proposer on the host: it reads the accepted tokens in Python and writes drafts from there."""

    runs_on = "host"
    hidden_layers: tuple[int, ...] = ()  # it needs nothing from inside the model
    gives_draft_probs = False  # its drafts are certain, not drawn

    def __init__(self, context: ProposerContext) -> None:
        settings = context.settings
        if context.tokenizer is None:
            raise UnsupportedError("phrase_book reads text, so that it needs a tokenizer; give the runner one")
        try:
            text = Path(settings.corpus).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise context.config.error("speculative.phrase_book.corpus", f"cannot be read: {error}") from error
        self._corpus = context.tokenizer.encode(text)
        self._sizes = range(settings.longest, settings.shortest - 1, -1)
        # Where each run of tokens was seen last, as the place after it.
        self._behind = {
            tuple(self._corpus[start : start + size]): start + size
            for size in self._sizes
            for start in range(len(self._corpus) - size)
        }

    def reset(self, slots: list[int]) -> None:
        """Nothing is remembered of a request."""

    def propose(self, step: StepView) -> None:
        """Drafts for every request that goes on."""
        step.draft({view.slot: self._look_up(view) for view in step.slots})

    def _look_up(self, view: SlotView) -> list[int]:
        longest = self._sizes.start
        recent = [*view.prompt_token_ids[-longest:], *view.token_ids[-longest:]][-longest:]
        for size in self._sizes:
            start = self._behind.get(tuple(recent[-size:])) if size <= len(recent) else None
            if start is not None:
                return self._corpus[start : start + view.max_drafts]
        return []
