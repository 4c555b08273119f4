"""Calling what plug-ins announced: whatever goes wrong is theirs, and the message says whose.

:mod:`specdec_hal.plugins` loads them; :mod:`specdec_hal.registry` decides which of them is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from specdec_hal.backend import Backend, BackendSpec, Probe
from specdec_hal.errors import PluginError, SpecDecError
from specdec_hal.plugins import Plugin
from specdec_hal.wording import describe, short


def call(what: str, part: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a plug-in's function; whatever it raises that is no SpecDecError becomes a PluginError."""
    try:
        return function(*args, **kwargs)
    except (SpecDecError, KeyboardInterrupt):
        raise
    except BaseException as error:  # see plugins.load
        raise PluginError(f"{what}: its {part} raised {describe(error)}") from error


def check_members(what: str, built: object, *, methods: Iterable[str], values: Iterable[str]) -> None:
    """Refuse what a plug-in built if it lacks a part of its protocol."""
    for name in (*methods, *values):
        if not hasattr(built, name) or (name in methods and not callable(getattr(built, name))):
            raise PluginError(f"{what}: {short(built)} has no {'method' if name in methods else 'attribute'} '{name}'")


def probe(spec: BackendSpec) -> tuple[Probe, str]:
    """The probe's answer, and its fault if it did not give one."""
    try:
        answer = spec.probe()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # see plugins.load
        fault = f"its probe raised {describe(error)}"
        return Probe(False, fault), fault
    if not isinstance(answer, Probe):
        fault = f"its probe returned {short(answer)} instead of a Probe"
        return Probe(False, fault), fault
    if not answer.available and not answer.reason:
        return Probe(False, "its probe gave no reason", answer.cure), ""
    return answer, ""


def build_backend(plugin: Plugin, spec: BackendSpec, options: Mapping[str, Any], debug: bool) -> Backend:
    """Call a backend's factory."""
    what = f"backend '{spec.name}' of {plugin.label}"
    backend = call(what, "factory", spec.factory, dict(options))
    if not isinstance(backend, Backend):
        raise PluginError(f"{what}: its factory returned {short(backend)} instead of a Backend")
    call(what, "table of capabilities", backend.check_capabilities)
    if debug:
        backend.debug = True
    return backend
