"""A chain of drafts by a trained drafter, a checkpoint beside the target's, which reads a few of its residuals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import Field

from specdec_hal.config.schema import MAX_CONTEXT
from specdec_hal.models.drafter import Blocks, Target
from specdec_hal.plugin.proposer import ProposerContext, Settings
from specdec_hal.proposers.calibration import Load, refuse_worse
from specdec_hal.proposers.module_chain import ModuleChain

TapLayers = Annotated[list[Annotated[int, Field(ge=1, le=MAX_CONTEXT)]] | None, Field(min_length=1)]
"""Taps in place of a drafter's own, each the residual stream after this many decoder layers of the target."""
Drafter = TypeVar("Drafter", bound=Any)


def read_drafter(
    config: Settings, method: str, read: Callable[[str, Target, bool], Drafter], target: Target
) -> Drafter:
    """A drafter's config with the taps of `speculative.METHOD.layers`; ConfigError if it cannot have them.

    `read(folder, target, check_taps)`: its own, whose taps need not be the target's if others replace them.
    """
    layers = getattr(config.speculative.settings, "layers", None)  # the method may be "auto"
    drafter = read(config.drafter_path, target, layers is None)
    if layers is None:
        return drafter
    taps = tuple(layers)
    if taps != tuple(sorted(set(taps))) or len(taps) != len(drafter.taps) or taps[-1] > target.num_hidden_layers:
        expected = f"expected {len(drafter.taps)} different numbers in ascending order"
        message = f"{expected}, each at most {target.num_hidden_layers}, got {layers}"
        raise config.error(f"speculative.{method}.layers", message)
    changed: Drafter = replace(drafter, taps=taps, numbering=f"as speculative.{method}.layers says")
    return changed


def blocks_of(context: ProposerContext) -> Blocks:
    """The cache of a drafter beside the runner's target."""
    size, on_device = context.state.symbols, context.model.capabilities.device_lengths
    pool = (context.kv_blocks, context.config.runner.block_size) if on_device else None
    return Blocks(size["M"], size["L"], pool)


def load_drafter(context: ProposerContext, load: Load, drafts: int) -> Any:
    """The drafter, checked before if `speculative.calibrate` says so."""
    if context.config.speculative.calibrate:
        refuse_worse(context, load)
    return load(context.config, context.model, blocks_of(context), drafts)


class TrainedChain(ModuleChain):
    """`module`: a :class:`~specdec_hal.plugin.model.DraftHead`, or the same over device tensors."""

    def __init__(self, context: ProposerContext, module: Any, drafts: int) -> None:
        config, state = module.config, context.state
        dtype = context.model.capabilities.hidden_dtype
        self._taps: tuple[int, ...] = config.taps
        self.hidden_layers: tuple[int, ...] = tuple(tap - 1 for tap in self._taps)
        given = getattr(module, "width", None)
        super().__init__(context, module, drafts, width=config.hidden_size, given=given, dtype=dtype)
        self._fused = state.device.zeros((state.symbols["T_cap"] if self._static else 0, config.hidden_size), dtype)

    def _states(self, features: Mapping[int, Any]) -> Any:
        states = self._module.fuse({tap: features[tap - 1] for tap in self._taps})
        if not self._static:
            return states
        kept = self._fused[: len(states)]
        self._device.assign(kept, states)
        return kept
