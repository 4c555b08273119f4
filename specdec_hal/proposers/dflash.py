"""Drafts of a DFlash drafter: a block of masked tokens that is filled in by one pass over features of the target."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from specdec_hal.config.schema import Config, PathText, Section
from specdec_hal.errors import UnsupportedError
from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.dflash import DFlash, DFlashConfig, read_dflash
from specdec_hal.plugin.model import ModelConfig, Segment
from specdec_hal.plugin.proposer import ProposerContext
from specdec_hal.proposers.module_chain import ModuleChain

_log = logging.getLogger("specdec_hal")


class DFlashSettings(Section):
    """`path`: the drafter's checkpoint, z-lab's format or that of `speculators`; null: `speculative.path`."""

    path: PathText | None = None


def drafter_config(config: Config, target: ModelConfig) -> DFlashConfig:
    """The drafter's config.json."""
    if not isinstance(target, LlamaConfig):
        raise UnsupportedError("speculative.method 'dflash': expected a Llama-style checkpoint; use another method")
    return read_dflash(config.drafter_path, target)


class DFlashProposer(ModuleChain):
    """The rows of a step extend the drafter's context; its block begins with the last token that was emitted.

    At most one draft fewer than the block has rows.
    """

    cache_lookahead = 0

    def __init__(self, context: ProposerContext) -> None:
        drafter, path = drafter_config(context.config, context.model.config), context.config.drafter_path
        drafts = min(context.state.symbols["S"] - 1, drafter.block_size - 1)
        _log.info(
            "speculative.method dflash: %s reads the target's residuals after %s of its layers (%s); a block has %d "
            "drafts at most", path, ", ".join(map(str, drafter.taps)), drafter.numbering, drafter.block_size - 1,
        )  # fmt: skip
        self._taps = drafter.taps
        self.hidden_layers: tuple[int, ...] = tuple(tap - 1 for tap in drafter.taps)
        module = DFlash(path, context.model, drafter, context.state.symbols["M"])
        super().__init__(context, module, drafts, width=drafter.hidden_size, dtype="float32")

    def _states(self, features: Mapping[int, Any]) -> Any:
        return cast(DFlash, self._module).fuse({tap: features[tap - 1] for tap in self._taps})

    def _run(self, ids: Any, segments: list[Segment], states: Any) -> Any:
        module, generated = cast(DFlash, self._module), self._values("step_idx")
        rows = np.array(self._device.download(states), np.float32)
        given, self._ahead = np.zeros_like(rows), {}
        for one in segments:
            stop = one.start + one.length
            module.extend(one.slot, one.position, rows[one.start : stop])
            block = np.zeros((self._drafts, rows.shape[1]), np.float32)
            if generated[one.slot] > 0:  # its prompt has ended
                block = module.block(one.slot, int(ids[stop - 1]), self._drafts)
            given[stop - 1], self._ahead[one.slot] = block[0], block[1:]
        return given
