"""A Runtime builds each object of a configuration once, with one registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specdec_hal.config import Config
from specdec_hal.engine.runtime import Runtime
from specdec_hal.errors import ConfigError
from specdec_hal.plugin.registry import Registry

Read = Callable[..., Config]


def test_the_backend_is_built_once_with_everything(read: Read, registry: Registry) -> None:
    text = "backend: {name: slow, options: {a: 1}}\nfallback: {allow: [fast]}\nrunner: {debug: true}"
    runtime = Runtime(read(text), registry)
    backend: Any = runtime.backend
    assert (backend.name, backend.options, backend.debug) == ("slow", {"a": 1}, True)
    assert [helper.name for helper in backend.fallbacks] == ["fast"]
    assert runtime.backend is backend


def test_refused_options_name_the_file(read: Read, registry: Registry) -> None:
    with pytest.raises(ConfigError, match=r"^c.yaml:backend.options: 'bad' is not an option; remove it$"):
        _ = Runtime(read("backend: {options: {bad: 1}}"), registry).backend
    with pytest.raises(ConfigError, match=r"^--set:backend.options: 'bad' is not an option; remove it$"):
        _ = Runtime(read("", "backend.options={bad: 1}"), registry).backend
