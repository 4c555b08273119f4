"""The meaning of `speculative.method: auto` for a model and a backend."""

from __future__ import annotations

import logging
from typing import Any

from specdec_hal.config.schema import NAIVE, Config
from specdec_hal.errors import UnsupportedError
from specdec_hal.models.drafter import drafter_kind
from specdec_hal.ops import draft_model
from specdec_hal.plugin.backend import AUTO, Backend
from specdec_hal.plugin.model import TargetModel
from specdec_hal.plugin.registry import Registry

_log = logging.getLogger("specdec_hal")


def chosen(config: Config, backend: Backend, model: TargetModel, registry: Registry) -> Config:
    """The configuration with the method "auto" resolved; logs the choice and the reason."""
    wanted = config.speculative
    if wanted.method != AUTO:
        return config
    method, why = _method(config, backend, model, registry)
    config = _with(config, method=method)
    if wanted.adaptive is None:
        padded = registry.pads_drafts(method, config.speculative.settings)
        config = _with(config, adaptive=method != NAIVE and not padded and config.engine.tensor_parallel == 1)
    k, lengths = wanted.num_speculative_tokens, "adaptive" if config.speculative.adaptive else "not adaptive"
    _log.info("speculative.method auto: %s, since %s; at most %d drafts a step, %s", method, why, k, lengths)
    return config


def _with(config: Config, **keys: Any) -> Config:
    return config.model_copy(update={"speculative": config.speculative.model_copy(update=keys)})


def _method(config: Config, backend: Backend, model: TargetModel, registry: Registry) -> tuple[str, str]:
    """The method and the reason."""
    if config.speculative.num_speculative_tokens == 0:
        return NAIVE, "num_speculative_tokens is 0"
    if (path := config.speculative.path) is not None:
        kind = drafter_kind(path)
        method = {"peagle": "eagle3", "dspark": "dflash"}.get(kind, kind)
        if method == "mtp" or method not in registry.proposers():
            raise UnsupportedError(f"speculative.path: {path} is a drafter of the kind '{kind}', which no method runs")
        return method, f"{path} is for it"
    if model.capabilities.mtp_modules < 1:
        return "ngram", "the model has no MTP module"
    missing = sorted(status.op for status in backend.explain() if not status.available and status.op in _MTP_OPS)
    if missing:
        return "ngram", f"the backend lacks {', '.join(missing)}, which the model's MTP module needs"
    return "mtp", "the model has an MTP module"


_MTP_OPS = frozenset(spec.name for spec in draft_model.OPS)
