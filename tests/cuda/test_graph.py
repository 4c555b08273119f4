"""A captured decode step gives what the same ops give one by one, on the GPU and in the reference, random draws too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.tensors.device import get_device
from specdec_hal.tensors.on_host import HostDevice
from tests.support.bits import assert_same_bits
from tests.support.token_plane import TokenPlane

pytestmark = pytest.mark.gpu

STEPS = 25


def plane(backend: Any, device: Any, slots: int) -> TokenPlane:
    return TokenPlane(backend, device, slots=slots, k=4, vocabulary=501, seed=slots)


@pytest.mark.parametrize("slots", [1, 7, 300])
def test_replays_equal_eager_steps_and_the_reference(slots, cuda, framework):
    device = get_device("cuda:0", framework)
    planes = {
        "reference": plane(ReferenceBackend(), HostDevice(), slots),
        "eager": plane(cuda, device, slots),
        "graph": plane(cuda, device, slots),
    }
    graph = cuda.capture_step(planes["graph"].plans)
    accepted = 0
    for step in range(STEPS):
        for name, one in planes.items():
            one.write_logits(step)
            if name == "graph":
                graph()
            else:
                for plan in one.plans:
                    plan()
        values = {name: one.values() for name, one in planes.items()}
        for name in ("eager", "graph"):
            assert_same_bits(values[name], values["reference"], (name, step))
        accepted += int((values["reference"]["accept_num"] > 1).sum())
    assert accepted >= slots  # some steps emit more than one token


def test_capturing_runs_nothing(cuda):
    one = plane(cuda, get_device("cuda:0", "torch"), 5)
    before = one.values()
    cuda.capture_step(one.plans)
    assert_same_bits(one.values(), before)


def test_a_graph_keeps_its_tensors(cuda):
    import torch

    device = get_device("cuda:0", "torch")
    one = plane(cuda, device, 6)
    expected = plane(ReferenceBackend(), HostDevice(), 6)
    graph, values = cuda.capture_step(one.plans), one.values
    one.plans = []
    torch.cuda.empty_cache()
    filler = [torch.full((1 << 20,), 99, device="cuda") for _ in range(20)]
    graph()
    for plan in expected.plans:
        plan()
    del filler
    assert_same_bits(values(), expected.values())


def test_nothing_waits_for_the_device(cuda):
    """While the stream is held up by a kernel, a whole step is enqueued, graph and eager; and PyTorch sees no sync."""
    import torch

    one = plane(cuda, get_device("cuda:0", "torch"), 9)
    graph = cuda.capture_step(one.plans)
    graph()
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(1_000_000_000)  # half a second of clock cycles
        for plan in one.plans:
            plan()
        graph()
        done.record()
        assert not done.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert done.query()


def test_an_op_that_cannot_be_captured_is_named(cuda, monkeypatch):
    from dataclasses import replace

    from specdec_hal.errors import UnsupportedError

    one = plane(cuda, get_device("cuda:0", "torch"), 2)
    table = {**cuda.capabilities}
    table["sample_target"] = replace(table["sample_target"], graph_safe=False)
    monkeypatch.setattr(cuda, "capabilities", table, raising=False)
    with pytest.raises(UnsupportedError, match=r"capture_step .*sample_target on cuda cannot be captured"):
        cuda.capture_step(one.plans)


def test_an_error_inside_a_capture_is_the_one_reported(cuda):
    one = plane(cuda, get_device("cuda:0", "torch"), 2)

    def fails(stream: int) -> None:
        raise ValueError("not this step")

    one.plans[1].launch = fails
    with pytest.raises(ValueError, match="not this step"):
        cuda.capture_step(one.plans)
    one.plans[0]()  # the device is as good as before
    assert np.isfinite(one.values()["logprobs"]).all()
