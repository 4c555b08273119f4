"""A chain of drafts by a trained drafter, a checkpoint beside the target's, which reads a few of its residuals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_hal.models.drafter import Blocks
from specdec_hal.plugin.proposer import ProposerContext
from specdec_hal.proposers.module_chain import ModuleChain


def blocks_of(context: ProposerContext) -> Blocks:
    """The cache of a drafter beside the runner's target."""
    size, on_device = context.state.symbols, context.model.capabilities.device_lengths
    pool = (context.kv_blocks, context.config.runner.block_size) if on_device else None
    return Blocks(size["M"], size["L"], pool)


class TrainedChain(ModuleChain):
    """`module`: a :class:`~specdec_hal.plugin.model.DraftHead`, or the same over device tensors."""

    def __init__(self, context: ProposerContext, module: Any, drafts: int) -> None:
        config, state = module.config, context.state
        dtype = context.model.capabilities.hidden_dtype
        self._taps: tuple[int, ...] = config.taps
        self.hidden_layers: tuple[int, ...] = tuple(tap - 1 for tap in self._taps)
        super().__init__(
            context,
            module,
            drafts,
            width=config.hidden_size,
            given=getattr(module, "width", None),
            dtype=dtype,
        )
        self._fused = state.device.zeros((state.symbols["T_cap"] if self._static else 0, config.hidden_size), dtype)

    def _states(self, features: Mapping[int, Any]) -> Any:
        states = self._module.fuse({tap: features[tap - 1] for tap in self._taps})
        if not self._static:
            return states
        kept = self._fused[: len(states)]
        self._device.assign(kept, states)
        return kept
