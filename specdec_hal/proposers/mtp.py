"""Drafts of a multi-token-prediction (MTP) module, which reads the target's hidden states.

DeepSeek-V3 (arXiv:2412.19437, section 2.2) trains a module for one prediction; serving engines chain it for more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from specdec_hal.config.schema import CheckpointPath, Section
from specdec_hal.errors import UnsupportedError
from specdec_hal.plugin.model import FINAL_NORM, ModuleReader, MTPModel, TargetModel
from specdec_hal.plugin.proposer import ProposerContext, Settings
from specdec_hal.proposers.module_chain import ModuleChain

_log = logging.getLogger("specdec_hal")


@cache
def mention_training(method: str, drafts: int) -> None:
    """Warn once per process that a module drafts more than it was trained for."""
    _log.warning(
        "speculative.method '%s': the MTP module was trained for one draft a step; of %d, the others are predicted "
        "from its own hidden states and are accepted less often", method, drafts,
    )  # fmt: skip


class MTPSettings(Section):
    """`path`: a trained module's checkpoint, in the format of `speculators`, or an assistant of Gemma 4; null:
    `speculative.path`, else the module in the target's checkpoint. `first_embedding`: whether the module's row at
    position 0 reads the embedding of its token (`transformers`) or zeros (vLLM); null: as the library does, where it
    has the module. For targets of `transformers`.
    """

    path: CheckpointPath | None = None
    first_embedding: bool | None = None


def module_path(config: Settings) -> str | None:
    """The checkpoint of a trained module; None: the target's has one."""
    speculative = config.speculative
    path = getattr(speculative.settings, "path", None) or speculative.path
    return None if path is None else str(path)


def reads_modules(model: TargetModel) -> bool:
    """Whether a target is a :class:`~specdec_hal.plugin.model.ModuleReader`."""
    return callable(getattr(model, "trained_module", None))


class MTPProposer(ModuleChain):
    """Chains the module of the target's checkpoint, or one of its own."""

    hidden_layers: tuple[int, ...] = (FINAL_NORM,)

    def __init__(self, context: ProposerContext, drafts: int | None = None, *, certain: bool = False) -> None:
        """`drafts`: most per step; None: K. `certain`: see :class:`DraftSampler`."""
        model, k = context.model, context.state.symbols["S"] - 1
        capabilities, method = model.capabilities, context.config.speculative.method
        if (trained := module_path(context.config)) is not None:
            if not reads_modules(model):
                raise UnsupportedError(
                    f"speculative.method '{method}': expected a target of transformers for the module in {trained}, "
                    f"got {type(model).__name__}; use another method"
                )
        elif capabilities.mtp_modules < 1:
            path = context.config.model.path
            raise UnsupportedError(
                f"speculative.method '{method}' drafts with a multi-token-prediction module, and the model"
                f"{f' {path}' if path else ''} has none (num_nextn_predict_layers in config.json); use a checkpoint "
                "with one, or another method"
            )
        drafts = k if drafts is None else min(drafts, k)
        adaptive = context.config.speculative.adaptive  # the number of drafts follows acceptance
        if trained is None and drafts > 1 and not adaptive:
            mention_training(method, drafts)
        width, dtype = model.config.hidden_size, capabilities.hidden_dtype
        if trained is None:
            module = cast(MTPModel, model).mtp_module()
        else:
            module = cast(ModuleReader, model).trained_module(trained, context.state.symbols["M"])
        if (reads := getattr(context.settings, "first_embedding", None)) is not None:
            if not hasattr(module, "read_first_embedding"):
                raise UnsupportedError(
                    "speculative.mtp.first_embedding: expected a module with a cache, of a target of transformers or "
                    f"paddleformers, got {type(module).__name__}; leave it null"
                )
            module.read_first_embedding(reads)
        self.hidden_layers = (getattr(module, "state_layer", FINAL_NORM),)
        given = getattr(module, "width", None)
        super().__init__(context, module, drafts, width=width, given=given, dtype=dtype, certain=certain)

    def _states(self, features: Mapping[int, Any]) -> Any:
        return features[self.hidden_layers[0]]
