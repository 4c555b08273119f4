"""Settings for all tests: reproducible property tests, and skips that name what is absent."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import settings

# The same examples everywhere: a failure on one machine is a failure on all. Deadlines would be timing asserts.
settings.register_profile("specdec_hal", deadline=None, derandomize=True)
settings.load_profile("specdec_hal")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--wheel", metavar="FILE", help="the wheel that tests/wheel installs and tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("torch") is None:
        absent = pytest.mark.skip(reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")
        for item in items:
            if item.get_closest_marker("torch"):
                item.add_marker(absent)
