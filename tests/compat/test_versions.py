"""A missing engine or an untested version is one clear error."""

from __future__ import annotations

import importlib.metadata

import pytest

from specdec_hal.errors import UnsupportedError
from specdec_hal.plugin.versions import require


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return versions


def test_a_missing_engine(installed: dict[str, str]) -> None:
    with pytest.raises(
        UnsupportedError, match=r"engine is not installed; versions known to work: 1\.2 to 1\.4; pip install"
    ):
        require("engine", ["1.2", "1.3", "1.4"], ["engine", "engine-cpu"])


@pytest.mark.parametrize("version", ["1.5.0", "2.0", "1.1.9", "1.20.3", "1"])
def test_a_version_that_is_not_known(installed: dict[str, str], version: str) -> None:
    installed["engine-cpu"] = version
    with pytest.raises(
        UnsupportedError, match=rf"engine {version}: .*known to work with \(1\.2\); pip install 'engine-cpu==1\.2"
    ):
        require("engine", ["1.2"], ["engine", "engine-cpu"])


def test_a_known_version_under_any_of_its_names(installed: dict[str, str]) -> None:
    installed["engine-cpu"] = "1.3.0.post1"
    assert require("engine", ["1.2", "1.3"], ["engine", "engine-cpu"]) == "1.3.0.post1"
