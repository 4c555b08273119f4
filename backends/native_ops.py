"""Backends whose kernels are in a native library that exports each op under its name."""

from __future__ import annotations

from typing import Any

from specdec_hal.ops import OPS
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Capability, Probe
from specdec_hal.tensors.native import BUILD_HINT, library_path

_MOST_INT = 2**62
"""Clamp for integer attributes without a maximum (a token budget, a window); exports take 64 bits."""


def probe_library(name: str, reason: str) -> Probe:
    """Available for this `reason` if the library is installed."""
    if library_path(name) is None:
        return Probe(False, f"the native library lib{name}.so is not installed", BUILD_HINT)
    return Probe(True, reason)


def capabilities(exports: Any, *, graph_safe: bool = False) -> dict[str, Capability]:
    """Every op of the contract that the library exports, with the largest extents that it takes."""
    return {
        op: Capability(limits=dict(exports[f"{op}_limits"]().items()), graph_safe=graph_safe)
        for op in OPS
        if exports.implements_function(op)
    }


def attributes(call: Call) -> list[int]:
    """The attributes as an export takes them."""
    return [
        min(int(value), _MOST_INT if attr.maximum is None else attr.maximum)
        for attr, value in zip(call.op.attrs, call.attrs.values(), strict=True)
    ]
