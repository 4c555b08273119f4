"""The options of the CUDA backend, as they stand under ``backend.options`` in a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from specdec_hal.errors import ConfigError
from specdec_hal.plugin.backend import check_backend_options


@dataclass(frozen=True)
class Options:
    """`device`: the GPU on which a runner puts its model and tensors, as the driver numbers them.

    It does not affect ops: they run where their tensors are.
    """

    device: int = 0

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Check options from outside; ConfigError for an unknown name or a value out of range."""
        check_backend_options(given, [field.name for field in fields(cls)])
        device = given.get("device", 0)
        if not isinstance(device, int) or isinstance(device, bool) or not 0 <= device < 1024:
            raise ConfigError(
                f"backend.options.device: expected an integer in [0, 1023], got {device!r}; change it or leave it out"
            )
        return cls(device)
