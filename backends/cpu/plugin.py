"""Announces the CPU backend. Imports nothing heavy: the library is loaded by the factory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_hal.backends.cpu.options import LIBRARY
from specdec_hal.backends.native_ops import probe_library
from specdec_hal.plugin.backend import API_VERSION, Backend, BackendSpec, Probe
from specdec_hal.plugin.hookspecs import hookimpl
from specdec_hal.tensors import cpu_threads


def _probe() -> Probe:
    return probe_library(LIBRARY, f"up to {cpu_threads.available()} threads")


def _factory(options: Mapping[str, Any]) -> Backend:
    from specdec_hal.backends.cpu.backend import CpuBackend
    from specdec_hal.backends.cpu.options import Options

    return CpuBackend(Options.parse(options))


@hookimpl
def specdec_backends() -> BackendSpec:
    """The host's CPU, which `auto` takes where there is no accelerator."""
    return BackendSpec("cpu", API_VERSION, _probe, _factory, 50, "C++ kernels on the host's CPU")
