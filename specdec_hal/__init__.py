"""specdec_hal: one interface to speculative decoding for every kind of hardware.

    import specdec_hal as sd
    backend = sd.get_backend("reference")
    backend.verify_draft_tokens(...)

Importing this package loads no framework and no compiled library; names below are resolved on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_hal.backend import API_VERSION, Backend, BackendSpec, BoundOp, Capability, Layout, Probe
    from specdec_hal.drafter import Drafter
    from specdec_hal.engine import LLM, AsyncEngine
    from specdec_hal.errors import SpecDecError
    from specdec_hal.functional import sample, verify
    from specdec_hal.hookspecs import hookimpl
    from specdec_hal.ops.enums import AcceptPolicy, MatchPolicy, Strategy, TokenOrder
    from specdec_hal.registry import explain, get_backend
    from specdec_hal.runner import ModelRunner, Request, SamplingParams
    from specdec_hal.runtime import Runtime, load
    from specdec_hal.state import DecodeState

__version__ = "0.1.0"

_HOME = {
    "API_VERSION": "backend",
    "Backend": "backend",
    "BackendSpec": "backend",
    "BoundOp": "backend",
    "Capability": "backend",
    "Layout": "backend",
    "Probe": "backend",
    "Drafter": "drafter",
    "AsyncEngine": "engine",
    "LLM": "engine",
    "SpecDecError": "errors",
    "sample": "functional",
    "verify": "functional",
    "hookimpl": "hookspecs",
    "AcceptPolicy": "ops.enums",
    "MatchPolicy": "ops.enums",
    "Strategy": "ops.enums",
    "TokenOrder": "ops.enums",
    "explain": "registry",
    "get_backend": "registry",
    "ModelRunner": "runner",
    "Request": "runner",
    "SamplingParams": "runner",
    "Runtime": "runtime",
    "load": "runtime",
    "DecodeState": "state",
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
    "SpecDecError",
    "Strategy",
    "TokenOrder",
    "explain",
    "get_backend",
    "hookimpl",
    "load",
    "sample",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specdec_hal' has no attribute '{name}'")
    value = getattr(import_module(f"specdec_hal.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
