"""Drafts of a trained EAGLE-3 head (Li et al., arXiv:2503.01840), a checkpoint beside the target's.

A parallel head (P-EAGLE) drafts all tokens in one pass, with a masked row per further draft after the accepted rows.
The chain of ops reads these rows instead of running the head.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from specdec_hal.config.schema import CheckpointPath, Section, TokenId
from specdec_hal.models.checkpoint import CONFIG, read_json
from specdec_hal.models.drafter import Blocks, Eagle3Config, read_eagle3, target_of
from specdec_hal.models.eagle3 import eagle3_head
from specdec_hal.models.loader import load_tokenizer
from specdec_hal.plugin.model import TargetModel
from specdec_hal.plugin.proposer import ProposerContext, Settings
from specdec_hal.proposers.calibration import better, compare, masks
from specdec_hal.proposers.trained_chain import TapLayers, TrainedChain, load_drafter, read_drafter

_log = logging.getLogger("specdec_hal")


class Eagle3Settings(Section):
    """The keys but `path` override a wrong or missing value in config.json; null keeps the head's. `path`: the head's
    checkpoint, original format or that of `speculators`; null: `speculative.path`. `layers`: taps, each the residual
    stream after this many decoder layers of the target (config.json may count otherwise; the log shows the conversion).
    `norm_before_residual`: the first layer's residual is the normed state. `norm_output`: the next draft starts from
    the normed output. `norm_before_head`: logits are those of the normed output. `mask_token_id`: the token of a
    parallel head's masked rows; without one in config.json the best of a few is taken, which takes time at the start.
    """

    path: CheckpointPath | None = None
    layers: TapLayers = None
    norm_before_residual: bool | None = None
    norm_output: bool | None = None
    norm_before_head: bool | None = None
    mask_token_id: TokenId | None = None


def head_config(config: Settings, model: TargetModel) -> Eagle3Config:
    """The head's config.json, with the settings that change it."""
    settings = config.speculative.settings
    changed: dict[str, Any] = {
        name: value
        for name in ("norm_before_residual", "norm_output", "norm_before_head", "mask_token_id")
        if (value := getattr(settings, name, None)) is not None  # the method may be "auto"
    }
    head = replace(read_drafter(config, "eagle3", read_eagle3, target_of(model, "eagle3")), **changed)
    if (mask := changed.get("mask_token_id")) is not None and not (head.parallel and mask < head.vocab_size):
        expected = f"a token id in 0..{head.vocab_size - 1}, and a parallel head"
        raise config.error("speculative.eagle3.mask_token_id", f"expected {expected}, got {mask}")
    if head.norm_output and not head.norm_before_head:
        raise config.error("speculative.eagle3.norm_before_head", "expected true with norm_output, got false")
    if head.parallel and head.mask_token_id is None:
        candidates = _mask_candidates(config, model)
        head = replace(head, mask_token_id=candidates[0], mask_candidates=candidates)
    return head


def _mask_candidates(config: Settings, model: TargetModel) -> tuple[int, ...]:
    """In SpecForge's order: an id without a token, then the ids of special tokens."""
    size, path, raw = model.config.vocab_size, config.model.path, read_json(config.drafter_path, CONFIG)
    tokens = size if path is None else load_tokenizer(path).vocab_size
    named = (raw.get(f"{name}_token_id") for name in ("pad", "eos", "bos"))
    found = [tokens, *named, *model.config.eos_token_ids, model.config.bos_token_id]
    return tuple(dict.fromkeys(token for token in found if isinstance(token, int) and 0 <= token < size)) or (0,)


def load_head(config: Settings, model: TargetModel, blocks: Blocks, drafts: int) -> Any:
    """The configured head. `drafts`: the most a step."""
    return eagle3_head(model, head_config(config, model), config.drafter_path, blocks, drafts)


class Eagle3Proposer(TrainedChain):
    """Chains the head: rows of accepted tokens read the target's features, those of further drafts its own states."""

    def __init__(self, context: ProposerContext) -> None:
        drafts, path = context.state.symbols["S"] - 1, context.config.drafter_path
        module = load_drafter(context, load_head, drafts)
        if module.config.mask_candidates:
            module = module.variant(_with_best_mask(context, module.config))
        head = module.config
        _log.info(
            "speculative.method eagle3: %s reads the target's residuals after %s of its layers (%s)%s",
            path, ", ".join(map(str, head.taps)), head.numbering,
            "".join(f", {name}" for name in _OPTIONS if getattr(head, name)),
        )  # fmt: skip
        chosen = (getattr(context.settings, name, None) for name in ("norm_output", "norm_before_head"))
        if head.old_norm_output is not None and all(value is None for value in chosen):
            other = "norm_output" if head.old_norm_output else "norm_before_head"
            _log.warning(
                "%s: norm_output %s is taken to say whether the next draft starts from the normed state. In heads that "
                "SpecForge trained before its pull request 879 it says whether logits are of the normed state: these "
                "need speculative.eagle3.%s=false. `specdec-hal drafters check` says which one drafts better",
                path, str(head.old_norm_output).lower(), other,
            )  # fmt: skip
        super().__init__(context, module, drafts)


def _with_best_mask(context: ProposerContext, head: Eagle3Config) -> Eagle3Config:
    """The head with the mask token whose drafts agree best with the target; the likeliest if none is better."""
    found = compare(context, load_head, masks)
    best = better(found) or found[0]
    mask = best.changes.get("mask_token_id", head.mask_token_id)
    _log.warning(
        "%s does not name its mask token: %d is taken, which agrees with the target on %s of its drafts by depth; set "
        "speculative.eagle3.mask_token_id", context.config.drafter_path, mask, best.shares,
    )  # fmt: skip
    return replace(head, mask_token_id=mask, mask_candidates=())


_OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
