"""Bound ops, captured in one CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_hal.errors import ArgumentError, UnsupportedError
from specdec_hal.plugin.backend import Backend, BoundOp, Launch
from specdec_hal.tensors.graph_capture import capturing
from specdec_hal.tensors.views import describe


class StepGraph:
    """``graph(stream)`` launches the captured kernels at once. Keeps the plans, and with them the tensors, alive."""

    def __init__(self, plans: tuple[BoundOp, ...], launch: Launch) -> None:
        self.plans, self._launch = plans, launch

    def __call__(self, stream: int | None = None) -> None:
        """Launch on a stream; without one, on the current stream of the first plan's framework."""
        self._launch(self.plans[0].backend.stream_of(self.plans[0].call)() if stream is None else stream)

    def __repr__(self) -> str:
        return f"<graph of {', '.join(plan.call.op.name for plan in self.plans)}>"


def capture(backend: Any, plans: Sequence[BoundOp]) -> StepGraph:
    """Capture `plans` on a stream of its own, without running them.

    Raises ArgumentError for plans of several devices or none at all, UnsupportedError for an op that is not graph-safe.
    """
    kept = tuple(plans)
    devices = {_device_of(plan) for plan in kept}
    if len(devices) != 1:
        raise ArgumentError(
            op="capture_step",
            backend=backend.name,
            argument="plans",
            expected="one or more bound ops whose tensors are on one device",
            got=", ".join(sorted(devices)) or "none",
            hint="capture one graph for each device",
        )
    for plan in kept:
        _check_graph_safe(plan, backend)

    def run(stream: int) -> None:
        with capturing(stream):
            for plan in kept:
                plan.launch(stream)

    launch = backend.exports["capture_graph"](run, int(devices.pop().partition(":")[2]))
    return StepGraph(kept, launch)


def _check_graph_safe(plan: BoundOp, backend: Backend) -> None:
    op = plan.call.op.name
    capability = plan.backend.capability(op)
    if plan.backend is not backend or capability is None or not capability.graph_safe:
        raise UnsupportedError(
            f"capture_step [{backend.name}]: {op} on {plan.backend.name} cannot be captured; call it outside the graph"
        )


def _device_of(plan: BoundOp) -> str:
    info = next((describe(tensor) for tensor in plan.call.tensors.values() if tensor is not None), None)
    return "none" if info is None else info.device
