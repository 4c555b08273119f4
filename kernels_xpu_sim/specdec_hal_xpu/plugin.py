"""Announces the simulated XPU. Imports nothing heavy: the library is loaded by the factory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_hal.backends.native_ops import probe_library
from specdec_hal.plugin.backend import API_VERSION, Backend, BackendSpec, Probe
from specdec_hal.plugin.hookspecs import hookimpl
from specdec_hal_xpu.options import LIBRARY


def _probe() -> Probe:
    return probe_library(LIBRARY, "the emulator runs on any CPU")


def _factory(options: Mapping[str, Any]) -> Backend:
    from specdec_hal_xpu.backend import XpuSimBackend
    from specdec_hal_xpu.options import Options

    return XpuSimBackend(Options.parse(options))


@hookimpl
def specdec_backends() -> BackendSpec:
    """The simulated XPU; `auto` prefers real hardware and the CPU's own kernels to it, and it to the reference."""
    description = "Kunlun XPU kernels on a CPU emulator of the device"
    return BackendSpec("xpu_sim", API_VERSION, _probe, _factory, 10, description)
