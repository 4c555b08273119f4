"""Announces the CUDA backend. Imports nothing heavy: the library is loaded by the factory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_hal.backends.cuda.probe import probe
from specdec_hal.plugin.backend import API_VERSION, Backend, BackendSpec
from specdec_hal.plugin.hookspecs import hookimpl


def _factory(options: Mapping[str, Any]) -> Backend:
    from specdec_hal.backends.cuda.backend import CudaBackend
    from specdec_hal.backends.cuda.options import Options

    return CudaBackend(Options.parse(options))


@hookimpl
def specdec_backends() -> BackendSpec:
    """NVIDIA GPUs. `auto` prefers them to the CPU."""
    return BackendSpec("cuda", API_VERSION, probe, _factory, 100, "CUDA kernels on NVIDIA GPUs")
