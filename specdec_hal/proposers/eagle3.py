"""Drafts of a trained EAGLE-3 head (Li et al., arXiv:2503.01840), a checkpoint beside the target's.

A parallel head (P-EAGLE) drafts all tokens in one pass, with a masked row per further draft after the accepted rows.
The chain of ops reads these rows instead of running the head.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, cast

import numpy as np

from specdec_hal.config.schema import Config, PathText, Section
from specdec_hal.models.drafter import Blocks, Eagle3Config, read_eagle3, target_of
from specdec_hal.models.eagle3 import eagle3_head
from specdec_hal.plugin.model import TargetModel
from specdec_hal.plugin.proposer import ProposerContext
from specdec_hal.proposers.calibration import LENGTH, TEXTS, better, calibrate
from specdec_hal.proposers.trained_chain import TapLayers, TrainedChain, blocks_of, with_taps

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


def head_config(config: Config, settings: Eagle3Settings, model: TargetModel) -> tuple[str, Eagle3Config]:
    """The head's folder, and its config.json with the settings that change it."""
    path, target = config.drafter_path, target_of(model, "eagle3")
    head = read_eagle3(path, target)
    changed: dict[str, Any] = {
        name: value
        for name in ("norm_before_residual", "norm_output")
        if (value := getattr(settings, name)) is not None
    }
    return path, replace(with_taps(config, "eagle3", head, settings.layers, target), **changed)


class Eagle3Proposer(TrainedChain):
    """Chains the head: rows of accepted tokens read the target's features, those of further drafts its own states."""

    def __init__(self, context: ProposerContext) -> None:
        path, head = head_config(context.config, context.settings, context.model)
        drafts = context.state.symbols["S"] - 1
        module = eagle3_head(context.model, head, path, blocks_of(context), drafts)
        _log.info(
            "speculative.method eagle3: %s reads the target's residuals after %s of its layers (%s)%s", path,
            ", ".join(map(str, head.taps)), head.numbering,
            "".join(f", {name}" for name in _OPTIONS if getattr(head, name)),
        )  # fmt: skip
        if context.config.speculative.calibrate:
            _calibrate(context, path, module)
        super().__init__(context, module, drafts)


def _calibrate(context: ProposerContext, path: str, head: Any) -> None:
    """Log the agreement of the head and its variants with the target; ConfigError if a variant is better."""
    longest, tokenizer = context.state.symbols["L"], context.tokenizer
    generator = np.random.default_rng(0)
    if tokenizer is None:
        prompts = [generator.integers(0, context.model.config.vocab_size, 8).tolist() for _ in TEXTS]
    else:
        prompts = [tokenizer.encode(text) for text in TEXTS]
    length = min(LENGTH, longest - max(map(len, prompts)))
    if length < LENGTH // 4:
        message = f"expected runner.max_model_len >= {longest - length + LENGTH // 4} with it, got {longest}"
        raise context.config.error("speculative.calibrate", message)
    model = cast(Any, context.model)
    if on_device := model.capabilities.device_lengths:  # its interface for lists has blocks of its own
        model.allocate(1, longest)
        head = eagle3_head(model, head.config, path, Blocks(1, longest))
    try:
        found = calibrate(model, head, prompts, length)
    finally:
        if on_device:
            model.allocate_blocks(context.kv_blocks, context.config.runner.block_size, longest)
    for one in found:
        _log.info("speculative.calibrate: agreement %s %s", one.shares, one.key or "as configured")
    best = better(found)
    if best is not None:
        message = (
            f"the head agrees with its target on {best.shares} of its drafts by depth with other settings, on "
            f"{found[0].shares} with these; set {best.key}"
        )
        raise context.config.error("speculative.calibrate", message)


_OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
