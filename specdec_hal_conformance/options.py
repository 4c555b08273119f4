"""Options of the backend under test on a command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specdec_hal.errors import ConfigError


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """``KEY=VALUE`` each, values as in YAML; ConfigError for anything else."""
    import yaml

    options = {}
    for text in texts:
        key, mark, value = text.partition("=")
        if not mark or not key:
            raise ConfigError(f"backend option '{text}': expected KEY=VALUE; write for example mode=strict")
        options[key] = yaml.safe_load(value)
    return options
