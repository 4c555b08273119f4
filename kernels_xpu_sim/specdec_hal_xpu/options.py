"""The options of the simulated device, as they stand under ``backend.options`` in a configuration file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from specdec_hal.errors import ConfigError
from specdec_hal.plugin.backend import check_backend_options
from specdec_hal.text import did_you_mean

LIBRARY = "specdec_xpu_sim"
"""The native library; the other modes append their name."""
AUTO = "auto"
DMA = ("eager", "deferred", "random")
"""Policies by the number that the library knows them by."""
MODES = ("fast", "strict", "asan")
PROFILES = ("portable", "production")
MAX_SEED = 2**63 - 1
MAX_WORKERS = 32
GROUP_LM_BYTES = 32768
MODEL: Mapping[str, type] = {
    "exit_counts_as_arrival": bool,
    "barrier_is_fence": bool,
    "dma_fifo": bool,
    "sync_drains_all_kinds": bool,
    "lm_fence_frees_source": bool,
    "sync_store_is_visible": bool,
    "store_to_dma_needs_fence": bool,
    "differing_barriers_diverge": bool,
    "nested_atomics_trap": bool,
    "scalar_gm_is_coherent": bool,
    "equal_stores_conflict": bool,
    "masked_stores_write_zero": bool,
    "gsm_stack_bytes": int,
}
"""Unknown properties of the device: struct Model of kernels_xpu_sim/sim/include/xpu_sim/options.h."""


@dataclass(frozen=True)
class Options:
    """How kernels are launched.

    `mode`: "fast"; "strict" with every check (about ten times slower); or "asan", with those of AddressSanitizer and
    UndefinedBehaviorSanitizer (kernels_xpu_sim/README.md says how to build it and start Python for it). `clusters` (1
    to 255) and `cores` (1 to 64): of every launch; "auto" takes as many as the work can use, at most 12 x 64 as on the
    device. `seed`: order of cores, clusters and copies; 0 is the natural one. `dma`: when asynchronous copies take
    effect: "eager" at once, "deferred" at the fence, "random" at a random point in between. `workers`: host threads
    that share the clusters of a launch. `model`: alternatives for unknown properties of the device, by the names in
    `MODEL` (see docs/extend/xpu_emulator.md). `profile`: "production" adds the fences that the vendor's compiler is
    known to add.
    """

    mode: str = "fast"
    clusters: int | str = AUTO
    cores: int | str = AUTO
    seed: int = 0
    dma: str = "eager"
    workers: int = 1
    model: Mapping[str, bool | int] = field(default_factory=dict)
    profile: str = "portable"

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Check options from outside; ConfigError for an unknown name or a value out of range."""
        check_backend_options(given, [option.name for option in fields(cls)])
        return cls(**{name: _CHECKS[name](name, value) for name, value in given.items()})

    def arguments(self) -> tuple[int | str, ...]:
        """The launch options of an exported function: clusters, cores, seed, dma, workers, model."""
        clusters, cores = (0 if extent == AUTO else int(extent) for extent in (self.clusters, self.cores))
        model = ",".join(f"model.{flag}={int(value)}" for flag, value in self.model.items())
        return clusters, cores, self.seed, DMA.index(self.dma), self.workers, f"profile={self.profile},{model}"


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


def _model(name: str, value: Any) -> Mapping[str, bool | int]:
    if not isinstance(value, Mapping):
        raise _refuse(name, "a mapping of flags to their values", value)
    for flag, setting in value.items():
        if flag not in MODEL:
            known = ", ".join(MODEL)
            raise ConfigError(
                f"backend.options.{name}.{flag}: unknown flag{did_you_mean(str(flag), MODEL)}; flags: {known}"
            )
        if MODEL[flag] is int:
            _whole(0, GROUP_LM_BYTES)(f"{name}.{flag}", setting)
        elif not isinstance(setting, bool):
            raise _refuse(f"{name}.{flag}", "true | false", setting)
    return dict(value)


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "mode": _one_of(MODES),
    "clusters": _whole(1, 255, AUTO),
    "cores": _whole(1, 64, AUTO),
    "seed": _whole(0, MAX_SEED),
    "dma": _one_of(DMA),
    "workers": _whole(1, MAX_WORKERS),
    "model": _model,
    "profile": _one_of(PROFILES),
}
