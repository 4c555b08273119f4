"""The options of the simulated device, as they stand under ``backend.options`` in a configuration file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from specdec_hal.errors import ConfigError
from specdec_hal.suggest import check_backend_options

AUTO = "auto"
DMA = ("eager", "deferred", "random")
"""Policies by the number that the library knows them by."""
MODES = ("fast", "strict", "asan")
MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Options:
    """How kernels are launched.

    `mode`: "fast"; "strict" with every check (about ten times slower); or "asan", with those of AddressSanitizer and
    UndefinedBehaviorSanitizer (kernels_xpu_sim/README.md says how to build it and start Python for it). `clusters` (1
    to 255) and `cores` (1 to 64): of every launch; "auto" takes as many as the work can use, at most 12 x 64 as on the
    device. `seed`: order of cores, clusters and copies; 0 is the natural one. `dma`: when asynchronous copies take
    effect: "eager" at once, "deferred" at the fence, "random" somewhere in between. `workers`: host threads that share
    the clusters of a launch.
    """

    mode: str = "fast"
    clusters: int | str = AUTO
    cores: int | str = AUTO
    seed: int = 0
    dma: str = "eager"
    workers: int = 1

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Check options from outside; ConfigError for an unknown name or a value out of range."""
        check_backend_options(given, [field.name for field in fields(cls)])
        return cls(**{name: _CHECKS[name](name, value) for name, value in given.items()})

    def numbers(self) -> tuple[int, ...]:
        """The launch options of an exported function: clusters, cores, seed, dma, workers."""
        clusters, cores = (0 if extent == AUTO else int(extent) for extent in (self.clusters, self.cores))
        return clusters, cores, self.seed, DMA.index(self.dma), self.workers


def _refuse(name: str, expected: str, got: Any) -> ConfigError:
    return ConfigError(f"backend.options.{name}: expected {expected}, got {got!r}; change it or leave it out")


def _one_of(values: Sequence[str]) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value not in values:
            raise _refuse(name, " | ".join(values), value)
        return str(value)

    return check


def _whole(low: int, high: int, *words: str) -> Callable[[str, Any], int | str]:
    def check(name: str, value: Any) -> int | str:
        if isinstance(value, str) and value in words:
            return value
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _refuse(name, " | ".join([*words, f"an integer in [{low}, {high}]"]), value)
        return value

    return check


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "mode": _one_of(MODES),
    "clusters": _whole(1, 255, AUTO),
    "cores": _whole(1, 64, AUTO),
    "seed": _whole(0, MAX_SEED),
    "dma": _one_of(DMA),
    "workers": _whole(1, 64),
}
