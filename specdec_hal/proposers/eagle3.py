"""Drafts of a trained EAGLE-3 head (Li et al., arXiv:2503.01840), a checkpoint beside the target's.

A parallel head (P-EAGLE) drafts all tokens in one pass: behind the rows of what the step accepted it has a masked row
for each further draft. The chain of ops goes on as for others, and finds these rows where it would run the head.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, cast

import numpy as np
from pydantic import Field

from specdec_hal.config.schema import MAX_CONTEXT, Config, PathText, Section
from specdec_hal.errors import UnsupportedError
from specdec_hal.models.checkpoint import LlamaConfig
from specdec_hal.models.drafter import Eagle3Config, read_eagle3, read_eagle3_weights
from specdec_hal.models.eagle3 import LlamaEagle3, eagle3_head
from specdec_hal.plugin.model import ForwardBatch, ModelConfig, Segment
from specdec_hal.plugin.proposer import ProposerContext
from specdec_hal.proposers.calibration import LENGTH, TEXTS, better, calibrate
from specdec_hal.proposers.module_chain import ModuleChain
from specdec_hal.tensors.device import download

_log = logging.getLogger("specdec_hal")


class Eagle3Settings(Section):
    """`path`: the head's checkpoint, original format or that of `speculators`; null: `speculative.path`.

    The others take the place of what its config.json says, for one that says it wrongly or not at all. `layers`: taps,
    each the residual stream after so many decoder layers of the target (config.json may count otherwise; the log says
    what was made of it). `norm_before_residual`, `norm_output`: null leaves the head's own.
    """

    path: PathText | None = None
    layers: Annotated[list[Annotated[int, Field(ge=1, le=MAX_CONTEXT)]] | None, Field(min_length=1)] = None
    norm_before_residual: bool | None = None
    norm_output: bool | None = None


def head_config(config: Config, settings: Eagle3Settings, target: ModelConfig) -> tuple[str, Eagle3Config]:
    """The head's folder, and its config.json with the settings that change it."""
    path = config.drafter_path
    if not isinstance(target, LlamaConfig):
        raise UnsupportedError("speculative.method 'eagle3': expected a Llama-style checkpoint; use another method")
    head = read_eagle3(path, target)
    changed: dict[str, Any] = {
        name: value
        for name in ("norm_before_residual", "norm_output")
        if (value := getattr(settings, name)) is not None
    }
    if settings.layers is not None:
        taps = tuple(settings.layers)
        if taps != tuple(sorted(set(taps))) or len(taps) != len(head.taps) or taps[-1] > target.num_hidden_layers:
            expected = f"expected {len(head.taps)} different numbers in ascending order"
            message = f"{expected}, each at most {target.num_hidden_layers}, got {settings.layers}"
            raise config.error("speculative.eagle3.layers", message)
        changed |= {"taps": taps, "numbering": "as speculative.eagle3.layers says"}
    return path, replace(head, **changed)


class Eagle3Proposer(ModuleChain):
    """Chains the head: rows of accepted tokens read the target's features, those of further drafts its own states."""

    def __init__(self, context: ProposerContext) -> None:
        path, head = head_config(context.config, context.settings, context.model.config)
        module = eagle3_head(context.model, head, read_eagle3_weights(path, head))
        _log.info(
            "speculative.method eagle3: %s reads the target's residuals after %s of its layers (%s)%s", path,
            ", ".join(map(str, head.taps)), head.numbering,
            "".join(f", {name}" for name in _OPTIONS if getattr(head, name)),
        )  # fmt: skip
        if context.config.speculative.calibrate:
            _calibrate(context, module)
        self._taps, self._mask = head.taps, head.mask_token_id
        self._positions = context.state.symbols["L"]
        self.hidden_layers: tuple[int, ...] = tuple(tap - 1 for tap in head.taps)
        dtype = context.model.capabilities.hidden_dtype
        super().__init__(context, module, context.state.symbols["S"] - 1, width=head.hidden_size, dtype=dtype)

    def _states(self, features: Mapping[int, Any]) -> Any:
        return cast(Any, self._module).fuse({tap: features[tap - 1] for tap in self._taps})

    def _run(self, ids: Any, segments: list[Segment], states: Any) -> Any:
        if self._mask is None:
            return super()._run(ids, segments, states)
        head = cast(LlamaEagle3, self._module)
        known, mask, generated = self._device.download(states), download(head.mask_state), self._values("step_idx")
        wide, tokens, given, end = list[Segment](), list[Any](), list[Any](), 0
        for one in segments:
            # As many masked rows as the slot has positions for; none inside its prompt.
            more = min(self._drafts - 1, self._positions - one.position - one.length) if generated[one.slot] else 0
            rows = slice(one.start, one.start + one.length)
            wide.append(Segment(one.slot, end, one.length + more, one.position))
            tokens += [ids[rows], np.full(more, self._mask, np.int64)]
            given += [known[rows], mask.repeat(more, 0)]
            end += one.length + more
        out = download(head.forward(ForwardBatch(np.concatenate(tokens), wide), np.concatenate(given)))
        self._ahead = {}
        for one, part in zip(segments, wide, strict=True):
            masked = out[part.start + one.length : part.start + part.length]
            missing = self._drafts - 1 - len(masked)  # of drafts that nobody takes
            self._ahead[one.slot] = np.pad(masked, ((0, missing), (0, 0)))
        return np.concatenate(
            [out[part.start : part.start + one.length] for one, part in zip(segments, wide, strict=True)]
        )


def _calibrate(context: ProposerContext, head: LlamaEagle3) -> None:
    """Log how often the head and its variants agree with the target; ConfigError if one of those is better."""
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
    found = calibrate(context.model, head, prompts, length)
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
