"""Captured ops give what they give one by one; how runners capture whole steps is in test_engine."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_hal.ops import OPS
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.tensors.device import DeviceGraph, get_device
from tests.support.bits import assert_same_bits
from tests.support.cuda_shapes import INDEX_OPS, without_index
from tests.support.gpu import GpuCall
from tests.support.running import run

pytestmark = pytest.mark.gpu


class Step:
    """A call of every op on tensors of its own, bound."""

    def __init__(self, backend: Any, framework: str = "torch") -> None:
        ops = [op for op in OPS if op not in INDEX_OPS]
        self.inputs = {op: generate(op, 1, M=7, **without_index(op)) for op in ops}
        self.calls = {op: GpuCall(op, inputs, framework) for op, inputs in self.inputs.items()}
        self.plans = [backend.bind(op, **call.call) for op, call in self.calls.items()]

    def capture(self) -> DeviceGraph:
        """Every op in one graph, on PyTorch's stream, whichever framework holds the tensors."""
        device = get_device("cuda:0", "torch")

        def launch() -> None:
            for plan in self.plans:
                plan(device.stream())

        with device.working():
            graph = device.capture(launch)
        assert graph is not None
        return graph

    def check(self) -> None:
        for op, call in self.calls.items():
            assert_same_bits(call.results(), run(op, self.inputs[op]), op)


def test_every_op_in_one_graph(cuda, framework):
    """Capturing runs nothing."""
    step = Step(cuda, framework)
    before = {op: call.results() for op, call in step.calls.items()}
    graph = step.capture()
    for op, call in step.calls.items():
        assert_same_bits(call.results(), before[op], op)
    graph()
    step.check()


def test_nothing_waits_for_the_device(cuda):
    """While the stream is held up by a kernel, all is enqueued, graph and eager; and PyTorch sees no sync."""
    import torch

    step, eager = Step(cuda), Step(cuda)
    graph, done = step.capture(), torch.cuda.Event()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(1_000_000_000)  # half a second of clock cycles
        for plan in eager.plans:
            plan()
        graph()
        done.record()
        assert not done.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    step.check(), eager.check()


def test_an_error_inside_a_capture_is_the_one_reported(cuda):
    step = Step(cuda)
    launch = step.plans[1].launch

    def fails(stream: int) -> None:
        raise ValueError("not this step")

    step.plans[1].launch = fails
    with pytest.raises(ValueError, match="not this step"):
        step.capture()
    step.plans[1].launch = launch
    for plan in step.plans:  # the device is as good as before
        plan()
    step.check()
