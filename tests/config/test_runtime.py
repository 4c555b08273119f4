"""A Runtime builds each object of a configuration once, with one registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specdec_hal as sd
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


def test_automatic_choice(read: Read, registry: Registry) -> None:
    assert Runtime(read(""), registry).backend.name == "fast"


def test_refused_options_name_the_file(read: Read, registry: Registry) -> None:
    with pytest.raises(ConfigError, match=r"^c.yaml:backend.options: 'bad' is not an option; remove it$"):
        _ = Runtime(read("backend: {options: {bad: 1}}"), registry).backend
    with pytest.raises(ConfigError, match=r"^--set:backend.options: 'bad' is not an option; remove it$"):
        _ = Runtime(read("", "backend.options={bad: 1}"), registry).backend


def test_naive_shares_the_backend(read: Read, registry: Registry) -> None:
    runtime = Runtime(read("speculative: {method: ngram}"), registry)
    naive = runtime.naive()
    assert naive.config.speculative.method == "naive"
    assert naive.backend is runtime.backend and naive.registry is registry


def test_load_reads_a_file(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "c.yaml").write_text("backend: {name: slow}")
    runtime = sd.load(tmp_path / "c.yaml", ["sampling.seed=4"], registry=registry)
    assert (runtime.backend.name, runtime.config.sampling.seed) == ("slow", 4)
    assert runtime.registry is registry
