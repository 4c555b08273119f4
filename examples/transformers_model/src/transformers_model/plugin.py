"""Announces the models. Importing this module is cheap: PyTorch and transformers are imported by the loader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_hal import hookimpl
from specdec_hal.plugin.hookspecs import ANY_ARCHITECTURE, ModelSpec

if TYPE_CHECKING:
    from transformers_model.model import TransformersModel


def _load(path: str | Path, **options: Any) -> TransformersModel:
    from transformers_model.model import TransformersModel

    return TransformersModel(path, **options)


@hookimpl
def specdec_models() -> ModelSpec:
    """``model.framework: transformers``, for every architecture that AutoModelForCausalLM knows."""
    return ModelSpec(ANY_ARCHITECTURE, "transformers", _load)
