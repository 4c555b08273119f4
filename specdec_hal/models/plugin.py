"""Announces the built-in models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_hal.hookspecs import ModelSpec, hookimpl

ARCHITECTURE = "LlamaForCausalLM"


def _paddle(path: str | Path, **options: Any) -> Any:
    arguments = _read(path)
    from specdec_hal.models.llama_paddle import LlamaPaddle

    return LlamaPaddle(*arguments, **options)


def _torch(path: str | Path, **options: Any) -> Any:
    arguments = _read(path)
    from specdec_hal.models.llama_torch import LlamaTorch

    return LlamaTorch(*arguments, **options)


def _read(path: str | Path) -> tuple[Any, Any]:
    from specdec_hal.models.checkpoint import read_config, read_weights
    from specdec_hal.models.layout import arrange

    config = read_config(path)
    return config, arrange(read_weights(path, config), config)


@hookimpl
def specdec_models() -> list[ModelSpec]:
    """A Llama-style decoder in PaddlePaddle and in PyTorch."""
    return [ModelSpec(ARCHITECTURE, "paddle", _paddle), ModelSpec(ARCHITECTURE, "torch", _torch)]
