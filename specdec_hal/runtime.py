"""What a configuration describes, brought to life: one registry, and what is built with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from specdec_hal import config as configuration
from specdec_hal.backend import AUTO, Backend
from specdec_hal.config import Config
from specdec_hal.errors import ConfigError
from specdec_hal.registry import Registry, or_default

if TYPE_CHECKING:
    from specdec_hal.models import TargetModel, Tokenizer
    from specdec_hal.runner import ModelRunner


def load(path: str | os.PathLike[str], overrides: Iterable[str] = (), *, registry: Registry | None = None) -> Runtime:
    """Read a configuration (see :func:`specdec_hal.config.load`) and make it ready to run.

    ``sd.load("configs/reference.yaml").backend`` is the backend it names, ``.runner()`` a runner with its model.
    """
    return Runtime(configuration.load(path, overrides, registry=registry), registry)


class Runtime:
    """A configuration with the registry that everything in it is looked up in. Nothing is built before it is used."""

    def __init__(self, config: Config, registry: Registry | None = None) -> None:
        self.config, self.registry = config, or_default(registry)

    @cached_property
    def backend(self) -> Backend:
        """The configured backend, built on first use (errors: see :meth:`Registry.get_backend`)."""
        config = self.config
        try:
            return self.registry.get_backend(
                config.backend.name,
                options=config.backend.options,
                fallback=config.fallback.allow,
                debug=config.runner.debug,
            )
        except ConfigError as error:  # a factory that refuses its options knows the key, not the file
            raise config.error("backend.options", str(error).removeprefix("backend.options: ")) from error

    def load_model(self) -> TargetModel:
        """The configured model, where the backend works."""
        from specdec_hal.models import load_model

        path, settings = self.config.model_path, self.config.model
        place = self.backend.place  # first: a backend that cannot run here is reported before the model is loaded
        dtype = {} if settings.dtype == AUTO else {"dtype": settings.dtype}
        return load_model(path, settings.framework, registry=self.registry, device=place, **dtype)

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer beside the configured model."""
        from specdec_hal.models import load_tokenizer

        return load_tokenizer(self.config.model_path)

    def runner(self, *, model: TargetModel | None = None, tokenizer: Tokenizer | None = None) -> ModelRunner:
        """A runner of what the configuration names; a model or tokenizer that is already loaded can be handed in.

        Runners that share a model must not be interleaved: each takes over its KV cache.
        """
        from specdec_hal.runner import ModelRunner

        model = self.load_model() if model is None else model
        tokenizer = self.load_tokenizer() if tokenizer is None else tokenizer
        return ModelRunner(self.config, self.backend, model, tokenizer, registry=self.registry)

    def with_config(self, config: Config) -> Runtime:
        """Another configuration of the same backend, which both share."""
        other = Runtime(config, self.registry)
        other.backend = self.backend
        return other

    def naive(self) -> Runtime:
        """The same without speculation, for comparisons."""
        return self.with_config(self.config.naive())
