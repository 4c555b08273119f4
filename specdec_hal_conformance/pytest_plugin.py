"""The suite as pytest tests: ``pytest --pyargs specdec_hal_conformance --specdec-backend NAME [-n 2]``.

Every pytest in the environment loads this plug-in, so it imports the suite only on demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from specdec_hal_conformance.subject import Subject
    from specdec_hal_conformance.suite import Settings
    from specdec_hal_conformance.xfail import ExpectedFailures

NEEDED = "name the backend under test: --specdec-backend NAME"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, in their own group."""
    group = parser.getgroup("specdec", "conformance of specdec_hal backends")
    group.addoption("--specdec-backend", metavar="NAME", help="the backend under test")
    group.addoption("--specdec-op", metavar="OP", action="append", help="only this op; may be repeated")
    group.addoption("--specdec-level", default="quick", choices=("quick", "full"), help="how much (default: quick)")
    group.addoption("--specdec-seed", type=int, default=0, help="of the generated cases (default: 0)")
    group.addoption("--specdec-device", metavar="D", help="where the tensors are, such as cuda:1")
    group.addoption("--specdec-option", metavar="KEY=VALUE", action="append", default=[], help="the backend's option")
    group.addoption("--specdec-xfail", metavar="FILE", type=Path, help="expected failures, 'PATTERN # reason' a line")
    group.addoption("--specdec-samples", type=int, help="requests per distribution test")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per op and group of cases."""
    if "conformance_unit" not in metafunc.fixturenames:
        return
    from specdec_hal_conformance.suite import units

    config = metafunc.config
    if config.getoption("specdec_backend") is None:
        nothing = pytest.param(None, marks=pytest.mark.skip(reason=NEEDED))
        metafunc.parametrize("conformance_unit", [nothing], ids=["none"])
        return
    chosen = units(config.getoption("specdec_op"), config.getoption("specdec_level"))
    metafunc.parametrize("conformance_unit", chosen, ids=map(str, chosen))


@pytest.fixture(scope="session")
def conformance_subject(request: pytest.FixtureRequest) -> Subject:
    """The backend under test."""
    from specdec_hal.plugin import registry
    from specdec_hal_conformance.guarded import device_for
    from specdec_hal_conformance.options import parse_options
    from specdec_hal_conformance.subject import Subject

    config = request.config
    backend = registry.get_backend(
        config.getoption("specdec_backend"), options=parse_options(config.getoption("specdec_option"))
    )
    return Subject(backend, device_for(backend, config.getoption("specdec_device")))


@pytest.fixture(scope="session")
def conformance_settings(request: pytest.FixtureRequest) -> Settings:
    """Level and seed."""
    from specdec_hal_conformance.options import parse_options
    from specdec_hal_conformance.suite import Settings

    config = request.config
    settings = Settings(config.getoption("specdec_level"), config.getoption("specdec_seed"))
    settings.options = parse_options(config.getoption("specdec_option"))
    if config.getoption("specdec_samples") is not None:
        settings.samples = config.getoption("specdec_samples")
    return settings


@pytest.fixture(scope="session")
def conformance_expected(request: pytest.FixtureRequest) -> Iterator[ExpectedFailures]:
    """The file of expected failures."""
    from specdec_hal_conformance.xfail import ExpectedFailures

    path = request.config.getoption("specdec_xfail")
    yield ExpectedFailures.read(path) if path else ExpectedFailures([])
