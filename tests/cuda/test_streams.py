"""Launches go to the stream and the device that they should go to."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_hal.ops.inputs.generate import generate
from tests.support.bits import assert_same_bits
from tests.support.gpu import GpuCall, run_on_gpu
from tests.support.running import run

pytestmark = pytest.mark.gpu

OP = "update_model_status"
HOLD = 200_000_000  # clock cycles: a tenth of a second


def inputs_of(seed: int) -> dict[str, Any]:
    return generate(OP, seed, M=50, S=5, L=60)


def two_devices() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device only")


def test_many_streams_at_once(cuda):
    import torch

    streams = [torch.cuda.Stream() for _ in range(8)]
    calls = [GpuCall(OP, inputs_of(i)) for i in range(len(streams))]
    plans = [cuda.bind(OP, **call.call) for call in calls]
    torch.cuda.synchronize()
    for plan, stream in zip(plans, streams, strict=True):
        plan(stream.cuda_stream)
    torch.cuda.synchronize()
    for i, call in enumerate(calls):
        assert_same_bits(call.results(), run(OP, inputs_of(i)), i)


@pytest.mark.parametrize("how", ["explicit", "current", "unbound"])
def test_ordered_after_the_stream_and_no_other(how, cuda):
    """The inputs come late on a side stream; the default stream holds only uninitialised values at that time."""
    import torch

    inputs = inputs_of(3)
    call, late = GpuCall(OP, inputs), GpuCall(OP, inputs)
    call.buffer.fill_(0)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    plan = cuda.bind(OP, **call.call)
    with torch.cuda.stream(side):
        torch.cuda._sleep(HOLD)
        call.buffer.copy_(late.buffer)
        if how == "explicit":
            with torch.cuda.stream(torch.cuda.default_stream()):
                plan(side.cuda_stream)
        elif how == "current":
            plan()
        else:
            getattr(cuda, OP)(**call.call)
    assert not side.query()
    side.synchronize()
    assert_same_bits(call.results(), run(OP, inputs))


def test_cupys_current_stream(cuda):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    inputs = inputs_of(4)
    call, late = GpuCall(OP, inputs, "cupy"), GpuCall(OP, inputs, "cupy")
    call.buffer.fill(0)
    cupy.cuda.Device().synchronize()
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        for _ in range(200):  # some milliseconds of work before the inputs arrive
            cupy.sort(cupy.arange(1 << 20)[::-1])
        call.buffer[...] = late.buffer
        getattr(cuda, OP)(**call.call)
    side.synchronize()
    assert_same_bits(call.results(), run(OP, inputs))


def test_freed_memory_is_refused(cuda):
    import torch

    layout = cuda.workspace("ngram_match", M=2, L=32, max_ngram_size=2, min_ngram_size=1)["index"]
    index = torch.zeros(layout.shape, dtype=torch.uint8, device="cuda")
    index.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"'index'.*memory"):
        cuda.ngram_index_reset(index, torch.ones(2, dtype=torch.bool, device="cuda"))


def test_tensors_on_another_device_than_the_current_one(cuda):
    two_devices()
    import torch

    with torch.cuda.device(0):
        inputs = inputs_of(7)
        assert_same_bits(run_on_gpu(OP, inputs, cuda, device=1), run(OP, inputs))
        assert torch.cuda.current_device() == 0


def test_a_stream_of_another_device_is_refused(cuda):
    two_devices()
    import torch

    call = GpuCall(OP, inputs_of(8))
    foreign = torch.cuda.Stream(device=1)
    with pytest.raises(RuntimeError, match=rf"{OP} \[cuda\]: on cuda:0, .*; pass a live stream of the tensors' device"):
        getattr(cuda, OP)(**call.call, stream=foreign.cuda_stream)
