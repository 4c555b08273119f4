"""Tests marked `gpu` run where the CUDA backend and PyTorch with CUDA are there, and else say what is missing."""

from __future__ import annotations

import pytest

from specdec_hal.plugin.backend import Backend


def why_not(framework: str) -> str:
    """The missing requirement of GPU tests with a framework, or ""."""
    from specdec_hal.backends.cuda.probe import probe

    found = probe()
    if not found.available:
        return f"the CUDA backend is unavailable: {found.reason}"
    try:
        if framework == "torch":
            import torch

            return "" if torch.cuda.is_available() else "PyTorch has no CUDA (pip install 'specdec-hal[torch]')"
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except ImportError as error:
        return f"{error.name} is not installed"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.get_closest_marker("gpu") and "tests/cuda" in item.path.as_posix()]
    if here and (missing := why_not("torch")):
        for item in here:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def cuda() -> Backend:
    from specdec_hal.backends.cuda.backend import CudaBackend
    from specdec_hal.backends.cuda.options import Options

    return CudaBackend(Options())


@pytest.fixture(params=["torch", "cupy"])
def framework(request: pytest.FixtureRequest) -> str:
    missing = why_not(request.param)
    if missing:
        pytest.skip(missing)
    return str(request.param)
