"""Announces the simulated XPU. Imports nothing heavy: the library is loaded by the factory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_hal.backends.xpu_sim.options import LIBRARY
from specdec_hal.plugin.backend import API_VERSION, Backend, BackendSpec, Probe
from specdec_hal.plugin.hookspecs import hookimpl
from specdec_hal.tensors.native import library_path


def _probe() -> Probe:
    if library_path(LIBRARY) is None:
        return Probe(
            False,
            f"the native library lib{LIBRARY}.so is not installed",
            "build it: `make setup` in a clone, or `pip install --no-build-isolation -e .` in your own environment",
        )
    return Probe(True, "the emulator runs on any CPU")


def _factory(options: Mapping[str, Any]) -> Backend:
    from specdec_hal.backends.xpu_sim.backend import XpuSimBackend
    from specdec_hal.backends.xpu_sim.options import Options

    return XpuSimBackend(Options.parse(options))


@hookimpl
def specdec_backends() -> BackendSpec:
    """The simulated XPU; `auto` prefers real hardware to it, and it to the reference."""
    description = "Kunlun XPU kernels on a CPU emulator of the device"
    return BackendSpec("xpu_sim", API_VERSION, _probe, _factory, 10, description)
