"""FastDeploy's ``fastdeploy.model_executor.ops.gpu``: the names served, and a refusal of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specdec_hal.compat.fastdeploy import (  # noqa: F401
    draft_model,
    emitted,
    lod,
    logprobs,
    ngram,
    output,
    packing,
    sampling,
    verify,
)
from specdec_hal.compat.fastdeploy.surface import attribute, names

PLATFORM = "gpu"


def __getattr__(name: str) -> Callable[..., Any]:
    return attribute(PLATFORM, name)


def __dir__() -> list[str]:
    return names(PLATFORM)
