"""Fake plug-ins: modules in memory with fake entry points, for any Registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specdec_hal.plugin.backend import API_VERSION, Backend, BackendSpec, Capability, Probe
from specdec_hal.plugin.hookspecs import hookimpl
from specdec_hal.plugin.registry import Registry


@dataclass
class FakeEntryPoint:
    name: str
    target: object
    value: str = "some.module"
    dist: Any = None

    def load(self) -> object:
        if isinstance(self.target, BaseException):
            raise self.target
        return self.target


class FakeBackend(Backend):
    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.name = name
        self.options = options
        self.capabilities = {"ngram_match": Capability()}


def backend_spec(name: str, /, **changes: Any) -> BackendSpec:
    fields: dict[str, Any] = {
        "name": name, "api_version": API_VERSION, "probe": lambda: Probe(True),
        "factory": lambda options: FakeBackend(name, dict(options)), "priority": 0,
        "description": f"the {name} backend",
    }  # fmt: skip
    return BackendSpec(**{**fields, **changes})


def module_with(**hooks: Callable[..., Any]) -> ModuleType:
    """A module whose functions are marked with hookimpl."""
    module = ModuleType("fake")
    for name, function in hooks.items():
        setattr(module, name, hookimpl(function))
    return module


def announcing(*specs: Any) -> ModuleType:
    """A module that announces these backends."""

    def specdec_backends() -> list[Any]:
        return list(specs)

    return module_with(specdec_backends=specdec_backends)


@pytest.fixture
def fakes() -> SimpleNamespace:
    """The helpers of this file, and `registry(name=plug-in, ...)`."""

    def registry(environ: dict[str, str] | None = None, **plugins: object) -> Registry:
        dist = SimpleNamespace(name="acme", version="1.2")
        entry_points = [FakeEntryPoint(name, plugin, f"acme.{name}", dist) for name, plugin in plugins.items()]
        return Registry(builtins=(), entry_points=entry_points, environ=environ or {})  # type: ignore[arg-type]

    return SimpleNamespace(
        registry=registry, spec=backend_spec, module=module_with, announcing=announcing, backend=FakeBackend
    )
