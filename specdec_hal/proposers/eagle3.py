"""Drafts of a trained EAGLE-3 head (Li et al., arXiv:2503.01840), a checkpoint beside the target's.

A parallel head (P-EAGLE) drafts all tokens in one pass, with a masked row per further draft after the accepted rows.
The chain of ops reads these rows instead of running the head.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from specdec_hal.config.schema import PathText, Section
from specdec_hal.models.drafter import Blocks, Eagle3Config, read_eagle3, target_of
from specdec_hal.models.eagle3 import eagle3_head
from specdec_hal.plugin.model import TargetModel
from specdec_hal.plugin.proposer import ProposerContext, Settings
from specdec_hal.proposers.trained_chain import TapLayers, TrainedChain, load_drafter, with_taps

_log = logging.getLogger("specdec_hal")


class Eagle3Settings(Section):
    """The keys but `path` override a wrong or missing value in config.json; null keeps the head's. `path`: the head's
    checkpoint, original format or that of `speculators`; null: `speculative.path`. `layers`: taps, each the residual
    stream after this many decoder layers of the target (config.json may count otherwise; the log shows the conversion).
    `norm_before_residual`: the first layer's residual is the normed state. `norm_output`: the next draft starts from
    the normed output.
    """

    path: PathText | None = None
    layers: TapLayers = None
    norm_before_residual: bool | None = None
    norm_output: bool | None = None


def head_config(config: Settings, model: TargetModel) -> Eagle3Config:
    """The head's config.json, with the settings that change it."""
    target, settings = target_of(model, "eagle3"), config.speculative.settings
    changed: dict[str, Any] = {
        name: value
        for name in ("norm_before_residual", "norm_output")
        if (value := getattr(settings, name, None)) is not None  # the method may be "auto"
    }
    return replace(with_taps(config, "eagle3", read_eagle3(config.drafter_path, target), target), **changed)


def load_head(config: Settings, model: TargetModel, blocks: Blocks, drafts: int) -> Any:
    """The configured head. `drafts`: the most a step."""
    return eagle3_head(model, head_config(config, model), config.drafter_path, blocks, drafts)


class Eagle3Proposer(TrainedChain):
    """Chains the head: rows of accepted tokens read the target's features, those of further drafts its own states."""

    def __init__(self, context: ProposerContext) -> None:
        drafts = context.state.symbols["S"] - 1
        module = load_drafter(context, load_head, drafts)
        head = module.config
        _log.info(
            "speculative.method eagle3: %s reads the target's residuals after %s of its layers (%s)%s",
            context.config.drafter_path, ", ".join(map(str, head.taps)), head.numbering,
            "".join(f", {name}" for name in _OPTIONS if getattr(head, name)),
        )  # fmt: skip
        super().__init__(context, module, drafts)


_OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
