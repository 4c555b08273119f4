"""The layer on each backend that works on host memory, and tensors for it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

# The layer is made of Paddle; without it there is nothing to test. `make setup` installs it.
collect_ignore_glob = [] if find_spec("paddle") else ["test_*.py"]


@pytest.fixture(params=["reference", "cpu"])
def layer(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The package, with a backend chosen."""
    import specdec_hal_fastdeploy as package

    package.use_backend(request.param)
    yield package
    package.use_backend()


@pytest.fixture
def gpu(layer: Any) -> Any:
    from specdec_hal_fastdeploy import gpu

    return gpu


@pytest.fixture
def xpu(layer: Any) -> Any:
    from specdec_hal_fastdeploy import xpu

    return xpu


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(list(request.node.name.encode()))
