"""Drafts of a DFlash drafter: a block of masked tokens that is filled in by one pass over features of the target."""

from __future__ import annotations

import logging
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from specdec_hal.config.schema import CheckpointPath, Section
from specdec_hal.models.dflash import DFlashConfig, dflash_shapes, read_dflash
from specdec_hal.models.drafter import Blocks, read_drafter_weights, target_of
from specdec_hal.plugin.model import TargetModel
from specdec_hal.plugin.proposer import ProposerContext, Settings, StepBounds
from specdec_hal.proposers.draft_chain import Call, Substep
from specdec_hal.proposers.trained_chain import TapLayers, TrainedChain, load_drafter, read_drafter
from specdec_hal.tensors.device import Device
from specdec_hal.tensors.views import download

_log = logging.getLogger("specdec_hal")
_CODES = ("predecessor_codes", "successor_codes")


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
    return BlockPass(model, drafter, weights, blocks, min(drafts, drafter.drafts), columns=drafts)


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
        self._walks: dict[int, tuple[Any, list[Call]]] = {}
        self._path = block.path and dict(vars(block.path))
        self._copies: list[Call] = []
        if self._path is not None and not context.model.capabilities.device_lengths:
            self._path = self._on_state(self._path, context.state.device)
        super().__init__(context, block, drafts)
        self.draft_positions = drafts + (not drafter.sample_from_anchor)

    def _substep(self, number: int, bounds: StepBounds, hidden: Any) -> Substep:
        """With a path, all drafts are drawn after the pass; then each substep takes its own."""
        if self._path is None:
            return super()._substep(number, bounds, hidden)
        slots = bounds.slots
        sizes = {"B": slots, "T_cap": bounds.tokens, "R_cap": slots}
        ranked, tokens = self._ranked[:slots], self._sampler.tokens[:slots]
        drawn, draw = self._walk(slots)
        own = drawn[:, number]
        return Substep(
            self._read(0, bounds, sizes, hidden) if number == 0 else [],
            [
                *(draw if number == 0 else []),
                lambda stream: self._device.assign(tokens, own),
                self._pack(sizes, ranked),
            ],
            [self._bind("draft_model_update", sizes, ranked, substep=number)],
        )

    def _walk(self, slots: int) -> tuple[Any, list[Call]]:
        """The tokens [slots, K] that these calls draw from the pass's path."""
        if slots not in self._walks:
            given = {
                name: x if name in _CODES else x[:slots].reshape(-1, *x.shape[2:]) for name, x in self._path.items()
            }
            tokens, calls = self._sampler.bind_path(given, slots)
            self._walks[slots] = tokens, [*self._copies, *calls]
        return self._walks[slots]

    def _on_state(self, path: dict[str, Any], device: Device) -> dict[str, Any]:
        """The path in memory of the ops, for a pass on the host; `_copies` bring it there."""
        found: dict[str, Any] = {}
        for name, tensor in path.items():
            found[name] = device.upload(download(tensor))
            if name not in _CODES:
                self._copies.append(partial(self._copy, device, found[name], tensor))
        return found

    @staticmethod
    def _copy(device: Device, to: Any, tensor: Any, stream: int) -> None:
        device.write(to, slice(None), download(tensor))

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
