"""Drafts of a DFlash drafter: a block of masked tokens that is filled in by one pass over features of the target."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from specdec_hal.config.schema import CheckpointPath, Section
from specdec_hal.models.dflash import DFlashConfig, dflash_shapes, read_dflash
from specdec_hal.models.drafter import Blocks, read_drafter_weights, target_of
from specdec_hal.plugin.model import TargetModel
from specdec_hal.plugin.proposer import ProposerContext, Settings, StepBounds
from specdec_hal.proposers.draft_chain import Call
from specdec_hal.proposers.trained_chain import TapLayers, TrainedChain, load_drafter, read_drafter
from specdec_hal.tensors.views import download

_log = logging.getLogger("specdec_hal")


class DFlashSettings(Section):
    """`path`: the drafter's checkpoint, z-lab's format or that of `speculators`; null: `speculative.path`.
    `min_confidence`: for a DSpark drafter with a confidence head, drafts end before the first whose estimated
    cumulative acceptance is below this; 0: never. `layers`: as for eagle3.
    """

    path: CheckpointPath | None = None
    layers: TapLayers = None
    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.1


def drafter_config(config: Settings, model: TargetModel) -> DFlashConfig:
    """The drafter's config.json, with the taps that the settings give."""
    return read_drafter(config, "dflash", read_dflash, target_of(model, "dflash"))


def load_blocks(config: Settings, model: TargetModel, blocks: Blocks, drafts: int) -> Any:
    """The configured drafter. `drafts`: the most a step, if a block has room for them."""
    from specdec_hal.models.draft_pass import BlockPass

    drafter = drafter_config(config, model)
    weights = read_drafter_weights(config.drafter_path, dflash_shapes(drafter), drafter)
    return BlockPass(model, drafter, weights, blocks, min(drafts, drafter.drafts))


class DFlashProposer(TrainedChain):
    """A step's rows extend the drafter's context; its block begins with the last emitted token.

    At most one draft fewer than the block's rows; for DSpark, whose drafts depend on each other, as many.
    """

    cache_lookahead = 0

    def __init__(self, context: ProposerContext) -> None:
        block = load_drafter(context, load_blocks, context.state.symbols["S"] - 1)
        drafter, drafts = block.config, block.drafts
        _log.info(
            "speculative.method dflash: %s reads the target's residuals after %s of its layers (%s); a block has %d "
            "drafts at most", context.config.drafter_path, ", ".join(map(str, drafter.taps)), drafter.numbering,
            drafter.drafts,
        )  # fmt: skip
        self._doubts: tuple[Any, Any] | None = None
        least, slots = getattr(context.settings, "min_confidence", 0.0), context.state.symbols["M"]
        if block.confidence is not None and least > 0:
            device, on_device = context.state.device, context.model.capabilities.device_lengths
            confidence = block.confidence[:slots] if on_device else device.zeros((slots, drafts), "float32")
            self._doubts = confidence, device.upload(np.full(slots, least, np.float32))
        super().__init__(context, block, drafts)
        self.draft_positions = drafts + (not drafter.sample_from_anchor)

    def _tail(self, bounds: StepBounds) -> list[Call]:
        calls = super()._tail(bounds)
        if self._doubts is None:
            return calls
        confidence, least = self._doubts
        if not self._static:
            given = self._module.confidence[: len(confidence)]
            calls.append(lambda stream: self._device.write(confidence, slice(None), download(given)))
        args = self._state.args("truncate_by_confidence", {"B": bounds.slots})
        return [*calls, self._backend.bind("truncate_by_confidence", confidence, least, **args)]
