"""specdec_hal: one interface to speculative decoding for every kind of hardware.

    import specdec_hal as sd
    backend = sd.get_backend("reference")
    backend.verify_draft_tokens(...)

Importing this package loads no framework and no compiled library; names below are resolved on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from specdec_hal.tensors import cpu_threads as cpu_threads  # before Paddle: see there

if TYPE_CHECKING:
    from specdec_hal.engine import LLM, AsyncEngine
    from specdec_hal.engine.runtime import Runtime, load
    from specdec_hal.errors import SpecDecError
    from specdec_hal.loop.drafter import Drafter
    from specdec_hal.loop.functional import sample, verify
    from specdec_hal.ops.enums import AcceptPolicy, MatchPolicy, Strategy, TokenOrder
    from specdec_hal.plugin.backend import API_VERSION, Backend, BackendSpec, BoundOp, Capability, Layout, Probe
    from specdec_hal.plugin.hookspecs import hookimpl
    from specdec_hal.plugin.registry import explain, get_backend
    from specdec_hal.runner import ModelRunner, Request, SamplingParams, build_runner
    from specdec_hal.runner.slot_writer import SlotWriter
    from specdec_hal.runner.state import DecodeState
    from specdec_hal.version import __version__ as __version__

_HOME = {
    "__version__": "version",
    "API_VERSION": "plugin.backend",
    "Backend": "plugin.backend",
    "BackendSpec": "plugin.backend",
    "BoundOp": "plugin.backend",
    "Capability": "plugin.backend",
    "Layout": "plugin.backend",
    "Probe": "plugin.backend",
    "Drafter": "loop.drafter",
    "AsyncEngine": "engine",
    "LLM": "engine",
    "SpecDecError": "errors",
    "sample": "loop.functional",
    "verify": "loop.functional",
    "hookimpl": "plugin.hookspecs",
    "AcceptPolicy": "ops.enums",
    "MatchPolicy": "ops.enums",
    "Strategy": "ops.enums",
    "TokenOrder": "ops.enums",
    "explain": "plugin.registry",
    "get_backend": "plugin.registry",
    "ModelRunner": "runner",
    "build_runner": "runner",
    "Request": "runner",
    "SamplingParams": "runner",
    "Runtime": "engine.runtime",
    "load": "engine.runtime",
    "DecodeState": "runner.state",
    "SlotWriter": "runner.slot_writer",
}

__all__ = [
    "API_VERSION",
    "LLM",
    "AcceptPolicy",
    "AsyncEngine",
    "Backend",
    "BackendSpec",
    "BoundOp",
    "Capability",
    "DecodeState",
    "Drafter",
    "Layout",
    "MatchPolicy",
    "ModelRunner",
    "Probe",
    "Request",
    "Runtime",
    "SamplingParams",
    "SlotWriter",
    "SpecDecError",
    "Strategy",
    "TokenOrder",
    "build_runner",
    "explain",
    "get_backend",
    "hookimpl",
    "load",
    "sample",
    "verify",
]


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names are resolved on first use: `homes` maps a name to its module."""

    def resolve(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return resolve


__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
