"""Announces the reference backend. Imports nothing heavy: the backend itself is loaded by the factory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_hal.errors import ConfigError
from specdec_hal.plugin.backend import API_VERSION, Backend, BackendSpec, Probe
from specdec_hal.plugin.hookspecs import hookimpl


def _probe() -> Probe:
    return Probe(True, "NumPy is always installed")


def _factory(options: Mapping[str, Any]) -> Backend:
    from specdec_hal.backends.reference.backend import ReferenceBackend

    if options:
        raise ConfigError(
            f"backend.options: the reference backend has no options, got {', '.join(options)}; remove them"
        )
    return ReferenceBackend()


@hookimpl
def specdec_backends() -> BackendSpec:
    """The NumPy reference, with the lowest priority: `auto` takes it only if no other backend runs."""
    return BackendSpec("reference", API_VERSION, _probe, _factory, 0, "NumPy oracle: defines the right answer")
