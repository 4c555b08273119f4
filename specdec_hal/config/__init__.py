"""From YAML to a typed, checked configuration.

``load("configs/reference.yaml", ["sampling.temperature=0.8"])`` returns a :class:`Config`: settings, checked against a
registry. `schema` holds the keys, their ranges and meanings; `sections` adds those of the registered proposers;
`source` reads files and overrides; `problems` words the errors. Importing this package imports pydantic.
"""

from __future__ import annotations

from specdec_hal.config.schema import (
    MAX_DRAFTS,
    BackendSettings,
    CheckpointPath,
    Config,
    FallbackSettings,
    ModelSettings,
    PathText,
    RunnerSettings,
    SamplingSettings,
    Section,
    SpeculativeSettings,
    raise_combinations,
)
from specdec_hal.config.source import Override, arguments, changed, load, parse

__all__ = [
    "MAX_DRAFTS",
    "BackendSettings",
    "CheckpointPath",
    "Config",
    "FallbackSettings",
    "ModelSettings",
    "Override",
    "PathText",
    "RunnerSettings",
    "SamplingSettings",
    "Section",
    "SpeculativeSettings",
    "arguments",
    "changed",
    "load",
    "parse",
    "raise_combinations",
]
