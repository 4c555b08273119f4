"""Announces the model. Importing this module is cheap: PyTorch and transformers are imported by the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_hal import hookimpl
from specdec_hal.plugin.hookspecs import ModelSpec


def _load(path: str | Path, **options: Any) -> Any:
    from specdec_hal.models.transformers.load import load
    from transformers_model import modeling  # noqa: F401  (registers the classes)

    return load(path, **options)


@hookimpl
def specdec_models() -> ModelSpec:
    """``SideBySideForCausalLM``, computed by transformers."""
    return ModelSpec("SideBySideForCausalLM", "transformers", _load)
