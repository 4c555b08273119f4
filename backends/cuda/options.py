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

    It does not affect ops: they run where their tensors are. `index_from`: below this capacity of `token_ids_all` in
    tokens (counted as 32 rows at least), histories are searched without the n-gram index, which is faster (H200:
    benchmarks/results/h200-ngram.json).
    """

    device: int = 0
    index_from: int = 5 << 20

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Check options from outside; ConfigError for an unknown name or a value out of range."""
        check_backend_options(given, [field.name for field in fields(cls)])
        device = given.get("device", 0)
        if not isinstance(device, int) or isinstance(device, bool) or not 0 <= device < 1024:
            raise ConfigError(
                f"backend.options.device: expected an integer in [0, 1023], got {device!r}; change it or leave it out"
            )
        index_from = given.get("index_from", cls.index_from)
        if not isinstance(index_from, int) or isinstance(index_from, bool) or index_from < 0:
            raise ConfigError(
                f"backend.options.index_from: expected an integer of at least 0, got {index_from!r}; change it or "
                "leave it out"
            )
        return cls(device, index_from)
