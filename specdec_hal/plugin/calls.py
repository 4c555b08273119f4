"""Calls into plug-ins: every failure becomes an error that names the plug-in.

:mod:`specdec_hal.plugin.discovery` loads them; :mod:`specdec_hal.plugin.registry` selects among them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from specdec_hal.errors import PluginError, SpecDecError
from specdec_hal.plugin.backend import Backend, BackendSpec, Probe
from specdec_hal.plugin.discovery import Plugin, faults
from specdec_hal.text import short

_MISSPELT = 0.85
"""Similarity of a misspelt name: a letter missing or too many."""


def call(what: str, part: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a plug-in's function; exceptions other than SpecDecError become PluginError."""
    with faults(f"{what}: its {part} raised", SpecDecError):
        return function(*args, **kwargs)


def check_members(
    what: str, built: object, *, methods: Iterable[str], values: Iterable[str] = (), defaults: Mapping[str, str] = {}
) -> None:
    """Refuse a plug-in's object that lacks a part of its protocol.

    `defaults`: names with a default in a protocol, and the protocol; a similar name is refused too.
    """
    names = (*methods, *values)
    for name in names:
        if not hasattr(built, name) or (name in methods and not callable(getattr(built, name))):
            kind = "method" if name in methods else "attribute"
            hint = f"; derive it from {defaults[name]}, which has a default" if name in defaults else ""
            raise PluginError(f"{what}: {short(built)} has no {kind} '{name}'{hint}")
    for name in {name for name in dir(built) if not name.startswith("_")}.difference(names):
        if meant := difflib.get_close_matches(name, defaults, n=1, cutoff=_MISSPELT):
            raise PluginError(f"{what}: {short(built)} has '{name}', which no caller uses; did you mean '{meant[0]}'?")


def probe(spec: BackendSpec) -> tuple[Probe, str]:
    """The probe's answer, and its error if it gave none."""
    try:
        with faults("its probe raised"):
            answer = spec.probe()
    except PluginError as fault:
        return Probe(False, str(fault)), str(fault)
    if not isinstance(answer, Probe):
        fault = f"its probe returned {short(answer)} instead of a Probe"
        return Probe(False, fault), fault
    if not answer.available and not answer.reason:
        return Probe(False, "its probe gave no reason", answer.hint), ""
    return answer, ""


def build_backend(plugin: Plugin, spec: BackendSpec, options: Mapping[str, Any], debug: bool) -> Backend:
    """Call a backend's factory."""
    what = f"backend '{spec.name}' of {plugin.label}"
    backend = call(what, "factory", spec.factory, dict(options))
    if not isinstance(backend, Backend):
        raise PluginError(f"{what}: its factory returned {short(backend)} instead of a Backend")
    call(what, "hooks", backend.check_hooks)
    call(what, "table of capabilities", backend.check_capabilities)
    if debug:
        backend.debug = True
    return backend
