"""Drafts of one of two methods, as the runner chooses while decoding: a first one, or look-up by n-grams.

A limit per slot says what the first may draft, and the look-up continues its drafts up to the request's own limit.
Another flag says whether a module is fed a slot's tokens where it drafts nothing, so that it can be tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from specdec_hal.plugin.proposer import Proposer, ProposerContext, RunsOn, StepView
from specdec_hal.proposers.ngram import NgramProposer

LIMIT = "draft_token_num"
"""The tensor of the most drafts by slot."""
FED = "fed"
"""Whether a slot is fed: int32, 0 or 1."""


class SwitchedProposer(Proposer):
    """`build` makes the first proposer, which has to work on the device and give no distributions of its drafts.

    A slot's drafts are the first's, at most `draft_token_num` of :attr:`inputs`, then looked-up ones up to the state's.
    """

    runs_on: RunsOn = "device"
    gives_draft_probs = False
    modes = ("propose", "feed", "look_up")

    def __init__(self, context: ProposerContext, build: Callable[[ProposerContext], Proposer]) -> None:
        state = context.state
        self.inputs = state.device.inputs(dict.fromkeys((LIMIT, FED), state.field(LIMIT)))
        """Written by the runner: by slot, the most drafts of the first proposer, and whether it is fed."""
        tensors = self.inputs.tensors
        own = state.replacing({LIMIT: tensors[LIMIT]})
        self._first = build(replace(context, state=own, fed=tensors[FED]))
        self._feed_first = getattr(self._first, "feed", self._first.propose)
        settings = getattr(context.config.speculative, "ngram", None)
        self._continue, self._look_up = (
            NgramProposer(replace(context, settings=settings), op) for op in ("hybrid_mtp_ngram", "ngram_match")
        )
        self.hidden_layers, self.draft_positions = self._first.hidden_layers, self._first.draft_positions
        self.cache_lookahead = self._first.cache_lookahead

    def reset(self, slots: list[int]) -> None:
        """Forget the slots' text and index."""
        self._first.reset(slots)
        self._continue.reset(slots)
        self._look_up.reset(slots)

    def forget(self) -> None:
        """Forget finished requests."""
        self._first.forget()

    def propose(self, step: StepView) -> None:
        """Draft, then look up."""
        self._first.propose(step)
        self._continue.propose(step)

    def feed(self, step: StepView) -> None:
        """For a step in which the first drafts nothing."""
        self._feed_first(step)
        self._continue.propose(step)

    def look_up(self, step: StepView) -> None:
        """The same without a fed slot."""
        self._look_up.propose(step)
