"""From YAML to a typed, checked configuration.

``load("configs/reference.yaml", ["sampling.temperature=0.8"])`` gives a :class:`Config`, whose `backend` property
builds the backend. `schema` holds the keys, their ranges and what they mean; `source` reads files and overrides;
`problems` words the errors. Importing this package imports pydantic.
"""

from __future__ import annotations

from specdec_hal.config.schema import (
    MAX_DRAFTS,
    BackendSettings,
    Config,
    FallbackSettings,
    ModelSettings,
    NgramSettings,
    RunnerSettings,
    SamplingSettings,
    SpeculativeSettings,
)
from specdec_hal.config.source import load, parse

__all__ = [
    "MAX_DRAFTS",
    "BackendSettings",
    "Config",
    "FallbackSettings",
    "ModelSettings",
    "NgramSettings",
    "RunnerSettings",
    "SamplingSettings",
    "SpeculativeSettings",
    "load",
    "parse",
]
