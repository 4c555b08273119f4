"""A configuration's objects: one registry, and everything built with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specdec_hal import config as configuration
from specdec_hal.config import Config, Override
from specdec_hal.errors import ConfigError
from specdec_hal.plugin.backend import AUTO, Backend
from specdec_hal.plugin.registry import Registry, or_default

if TYPE_CHECKING:
    from specdec_hal.models import Tokenizer
    from specdec_hal.parallel.team import Team
    from specdec_hal.plugin.model import TargetModel
    from specdec_hal.runner import ModelRunner
    from specdec_hal.tensors.group import Group


def load(
    path: str | os.PathLike[str], overrides: Iterable[Override] = (), *, registry: Registry | None = None
) -> Runtime:
    """Read a configuration (see :func:`specdec_hal.config.load`) and build a runtime.

    `path`: a YAML file; `overrides`: ``"key=value"`` or pairs (key, value), such as ``"sampling.temperature=0.8"``;
    `registry` None: the process's. ``sd.load("configs/reference.yaml").backend`` is the backend it names, ``.runner()``
    a runner with its model. ConfigError, one line per problem.
    """
    return Runtime(configuration.load(path, overrides, registry=registry), registry)


class Runtime:
    """A `config` and its `registry` (None: the process's own). Objects are built on first use."""

    def __init__(self, config: Config, registry: Registry | None = None) -> None:
        self.config, self.registry = config, or_default(registry)

    @cached_property
    def backend(self) -> Backend:
        """The configured backend, built on first use (errors: see :meth:`Registry.get_backend`)."""
        config = self.config
        try:
            backend = self.registry.get_backend(
                config.backend.name,
                options=_options(config),
                fallback=config.fallback.allow,
                debug=config.runner.debug,
            )
        except ConfigError as error:  # add the file to a factory's error about an option
            raise config.error("backend.options", str(error).removeprefix("backend.options: ")) from error
        if config.shadow.backend is not None:
            self._shadow(backend, config.shadow.backend)
        return backend

    def _shadow(self, backend: Backend, name: str) -> None:
        from specdec_hal.engine.shadow_check import Shadow

        other = self.registry.get_backend(name)
        if other.device != "cpu":
            message = f"expected a backend that works on host memory, got '{name}', which works on {other.device}"
            raise self.config.error("shadow.backend", f"{message}; choose reference or cpu")
        backend.shadow = Shadow(backend, other, self.config.shadow.fraction)

    @cached_property
    def team(self) -> Team | None:
        """The processes that share the model, started on first use; None without tensor parallelism."""
        if self.config.engine.tensor_parallel == 1:
            return None
        from specdec_hal.parallel.team import Team

        return Team(self.config, _devices(self.config, self.backend), _load_rank)

    def load_model(self, *, group: Group | None = None) -> TargetModel:
        """The configured model, where the backend works; a part of it on each rank of engine.tensor_parallel.

        `group`: that of a rank which is not the first. ConfigError without a model; other errors are those of
        :func:`specdec_hal.models.load_model`, and of :attr:`backend`.
        """
        from specdec_hal.models import load_model
        from specdec_hal.models.loader import begin_imports

        path, settings = self.config.model_path, self.config.model
        if self.config.backend.name == "cuda":
            begin_imports(path, settings.framework, "cuda", self.registry)
        if group is None and self.team is not None:
            group = self.team.group
        device = self.backend.device_name  # first: raises where the backend cannot run
        dtype = None if settings.dtype == AUTO else settings.dtype
        threads = settings.num_threads
        chosen: dict[str, Any] = {
            "dtype": dtype,
            "batch_invariant": self.config.engine.batch_invariant,
            "threads": threads,
            "group": group,
        }
        chosen["pdl_rows"] = settings.pdl_rows
        if settings.quantization != AUTO:
            if device == "cpu" and settings.quantization != "none":
                message = f"expected a GPU with FP8 for {settings.quantization}, got {device}; leave it out"
                raise self.config.error("model.quantization", message)
            chosen["quantization"] = settings.quantization
        options = {name: value for name, value in chosen.items() if value is not None}
        return load_model(path, settings.framework, registry=self.registry, device=device, **options)

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer beside the configured model. ConfigError without a model, CheckpointError for its files."""
        from specdec_hal.models import load_tokenizer

        return load_tokenizer(self.config.model_path)

    def runner(self, *, model: TargetModel | None = None, tokenizer: Tokenizer | None = None) -> ModelRunner:
        """A runner as configured; a loaded model or tokenizer may be passed.

        Do not interleave runners that share a model: each takes over its KV cache. Errors: those of
        :meth:`load_model`, :meth:`load_tokenizer` and :func:`specdec_hal.build_runner`.
        """
        from specdec_hal.runner import build_runner

        model = self.load_model() if model is None else model
        tokenizer = self.load_tokenizer() if tokenizer is None else tokenizer
        make = build_runner if self.team is None else self.team.runner
        return make(self.config, self.backend, model, tokenizer, registry=self.registry)

    def with_config(self, config: Config) -> Runtime:
        """Another configuration that shares the backend."""
        other = Runtime(config, self.registry)
        other.backend, other.team = self.backend, self.team
        return other

    def close(self) -> None:
        """End the processes of a divided model; its runners cannot step any more."""
        team = vars(self).get("team")
        if team is not None:
            team.close()

    def naive(self) -> Runtime:
        """The same without speculation, for comparisons."""
        return self.with_config(self.config.naive())


def _options(config: Config) -> dict[str, Any]:
    """Those of the backend; of engine.rank_devices the first is this process's."""
    devices = config.engine.rank_devices
    return dict(config.backend.options) if devices is None else {**config.backend.options, "device": devices[0]}


def _devices(config: Config, backend: Backend) -> list[str]:
    """Where each rank of engine.tensor_parallel works, if this process's backend is the first's."""
    kind, _, first = backend.device_name.partition(":")
    ranks = config.engine.tensor_parallel
    if not first:
        return [kind] * ranks
    devices = config.engine.rank_devices or range(int(first), int(first) + ranks)
    return [f"{kind}:{device}" for device in devices]


def _load_rank(config: Config, group: Group) -> tuple[Backend, TargetModel, Tokenizer]:
    """What a rank of engine.tensor_parallel that is not the first runs."""
    runtime = Runtime(config)
    return runtime.backend, runtime.load_model(group=group), runtime.load_tokenizer()
