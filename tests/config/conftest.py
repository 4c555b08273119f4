"""A registry with two backends, three proposers, a model and nothing installed, and `read`: YAML text to Config."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specdec_hal.config import Config, load
from specdec_hal.errors import ConfigError
from specdec_hal.plugin.backend import API_VERSION, Backend, BackendSpec, Probe
from specdec_hal.plugin.hookspecs import ModelSpec, ProposerSpec, hookimpl
from specdec_hal.plugin.registry import Registry
from specdec_hal.proposers.ngram import NgramSettings


class FakeBackend(Backend):
    def __init__(self, name: str, options: Any) -> None:
        super().__init__()
        self.name = name
        self.options = dict(options)
        if "bad" in self.options:
            raise ConfigError("backend.options: 'bad' is not an option; remove it")


@pytest.fixture
def registry() -> Registry:
    plugin = ModuleType("fake")

    @hookimpl
    def specdec_backends() -> list[BackendSpec]:
        return [
            BackendSpec("fast", API_VERSION, lambda: Probe(True), lambda options: FakeBackend("fast", options), 5),
            BackendSpec("slow", API_VERSION, lambda: Probe(True), lambda options: FakeBackend("slow", options), 1),
        ]

    @hookimpl
    def specdec_proposers() -> list[ProposerSpec]:
        ngram = ProposerSpec("ngram", dict, lambda: NgramSettings)
        return [ProposerSpec("naive", dict), ngram, ProposerSpec("mtp", dict)]

    @hookimpl
    def specdec_models() -> list[ModelSpec]:
        return [ModelSpec("Llama", framework, dict) for framework in ("paddle", "torch")]

    for hook in (specdec_backends, specdec_proposers, specdec_models):
        setattr(plugin, hook.__name__, hook)
    registry = Registry(builtins=(), entry_points=(), environ={})
    registry.register(plugin, "fake")
    return registry


@pytest.fixture
def read(tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """Write the text to c.yaml in the working directory and load it."""
    monkeypatch.chdir(tmp_path)

    def read(text: str, *overrides: str) -> Config:
        Path("c.yaml").write_text(text, encoding="utf-8")
        return load("c.yaml", overrides, registry=registry)

    return read


@pytest.fixture
def problems(read: Callable[..., Config]) -> Callable[..., list[str]]:
    """The lines of the ConfigError that the text gives."""

    def problems(text: str, *overrides: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            read(text, *overrides)
        return str(caught.value).splitlines()

    return problems
