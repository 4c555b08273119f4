"""Announces the backend. Everything heavy is imported by the factory, never here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import specdec_hal as sd


def _probe() -> sd.Probe:
    # A real plug-in looks for its driver here, and says what is missing and what would help.
    return sd.Probe(True, "NumPy runs on any CPU")


def _factory(options: Mapping[str, Any]) -> sd.Backend:
    from acme_npu.backend import AcmeBackend
    from specdec_hal.errors import ConfigError

    if options:
        raise ConfigError(
            f"backend.options [acme_npu]: expected none, got {', '.join(map(repr, options))}; remove them"
        )
    return AcmeBackend()


@sd.hookimpl
def specdec_backends() -> sd.BackendSpec:
    """One backend. Its priority is below the built-in ones', so `auto` never takes it: users name it."""
    return sd.BackendSpec("acme_npu", sd.API_VERSION, _probe, _factory, -10, "an example of a vendor's plug-in")
