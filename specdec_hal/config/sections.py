"""Sections of proposers under ``speculative:``, validated like all others."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel, Field, ValidationError, create_model

from specdec_hal.config.schema import Config, SpeculativeSettings
from specdec_hal.errors import PluginError
from specdec_hal.plugin.hookspecs import ProposerSpec
from specdec_hal.plugin.registry import Registry
from specdec_hal.text import describe, short

_TAKEN = frozenset((*dir(SpeculativeSettings), *SpeculativeSettings.model_fields))
"""Reserved names in the section ``speculative``."""

Sections = tuple[tuple[str, type[BaseModel]], ...]


def config_class(registry: Registry) -> type[Config]:
    """Config with a section for each proposer of `registry` that announces settings.

    A proposer with invalid settings is removed from the registry and its plug-in gets the error; the others remain
    usable.
    """
    sections = {}
    for plugin, spec in registry.unique_proposers():
        if spec.settings is None:
            continue
        try:
            sections[spec.name] = _settings(spec)
        except PluginError as error:
            registry.disable_proposers(plugin, f"{plugin.label}: settings of the proposer '{spec.name}': {error}")
    return _with_sections(tuple(sorted(sections.items())))


def _settings(spec: ProposerSpec) -> type[BaseModel]:
    """The class of a proposer's section."""
    name, settings = spec.name, spec.settings
    if not name.isidentifier() or name.startswith("_") or name in _TAKEN:
        raise PluginError(f"'{name}' cannot be the key of a section; choose another name for the proposer")
    if not isinstance(settings, type):
        try:
            settings = settings()  # type: ignore[misc]
        except Exception as error:
            raise PluginError(f"raised {describe(error)}") from error
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        raise PluginError(f"expected a pydantic model, or a function that returns one, got {short(settings)}")
    if settings.model_config.get("extra") != "forbid":
        raise PluginError(f"{settings.__name__} lets unknown keys pass; derive it from specdec_hal.config.Section")
    try:
        _with_sections(((name, settings),))
    except Exception as error:  # a forward reference that leads nowhere, a default that fails
        raise PluginError(f"{settings.__name__}: {describe(error)}") from error
    return settings


@lru_cache(maxsize=32)
def _with_sections(sections: Sections) -> type[Config]:
    fields: dict[str, Any] = {name: (settings, _field(settings)) for name, settings in sections}
    base = SpeculativeSettings
    speculative = create_model(base.__name__, __doc__=base.__doc__, __base__=base, **fields)
    return create_model("Config", __base__=Config, speculative=(speculative, Field(default_factory=speculative)))


def _field(settings: type[BaseModel]) -> Any:
    """A missing section takes its defaults, or is None if it has required keys."""
    try:
        settings()
    except ValidationError:
        return Field(default=None)
    return Field(default_factory=settings)
