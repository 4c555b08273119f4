"""A wheel, installed far from the checkout. `make wheel` builds it and names it (`--wheel`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.environments import Environment


@pytest.fixture(scope="session")
def wheel(request: pytest.FixtureRequest) -> Path:
    path = request.config.getoption("--wheel")
    if path is None:
        pytest.skip("no wheel is named (--wheel); `make wheel` builds one and tests it")
    return Path(path).resolve(strict=True)


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A user's environment: the wheel and its requirements, nothing else."""
    return Environment.make(tmp_path_factory.mktemp("installed"), [f"{wheel}[conformance]"])


@pytest.fixture(scope="session")
def installed_with_paddle(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel beside this environment's PaddlePaddle, which is too large to be installed once more."""
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    return Environment.make(tmp_path_factory.mktemp("installed_with_paddle"), [wheel], borrowed=True)
