"""MTP drafts, continued by n-gram look-up.

Source: FastDeploy's MTP strategy `with_ngram`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specdec_hal.config.schema import MAX_DRAFTS
from specdec_hal.plugin.proposer import Proposer, ProposerContext, RunsOn, StepView
from specdec_hal.proposers.mtp import MTPProposer
from specdec_hal.proposers.ngram import NgramProposer, NgramSettings


class HybridSettings(NgramSettings):
    """Keys without a meaning are those of `speculative.ngram`. `num_model_steps`: most MTP drafts per step."""

    num_model_steps: Annotated[int, Field(ge=1, le=MAX_DRAFTS)] = 4


class HybridProposer(Proposer):
    """`num_model_steps` drafts of the MTP module, and `hybrid_mtp_ngram` for the rest of K."""

    runs_on: RunsOn = "device"
    hidden_layers = MTPProposer.hidden_layers
    gives_draft_probs = False
    cache_lookahead = MTPProposer.cache_lookahead
    modes = MTPProposer.modes

    def __init__(self, context: ProposerContext) -> None:
        # Looked-up drafts have no distribution, so REJECTION treats all as certain.
        self._mtp = MTPProposer(context, context.settings.num_model_steps, certain=True)
        self._ngram = NgramProposer(context, "hybrid_mtp_ngram")
        self.draft_positions, self.hidden_layers = self._mtp.draft_positions, self._mtp.hidden_layers

    def reset(self, slots: list[int]) -> None:
        """Forget the slots' text and index."""
        self._mtp.reset(slots)
        self._ngram.reset(slots)

    def propose(self, step: StepView) -> None:
        """Draft, then look up."""
        self._mtp.propose(step)
        self._ngram.propose(step)

    def feed(self, step: StepView) -> None:
        """For a step in which no slot may draft."""
        self._mtp.feed(step)
        self._ngram.propose(step)
