"""A runner's memory behaves alike in every framework. Without a GPU, the frameworks' CPU tensors stand in for it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.errors import CaptureError, UnsupportedError
from specdec_hal.tensors.device import Device, get_device
from specdec_hal.tensors.graph_capture import capturing, check_stream
from specdec_hal.tensors.on_host import HostDevice
from specdec_hal.tensors.on_paddle import PaddleDevice
from specdec_hal.tensors.on_torch import TorchDevice, TorchFramework
from specdec_hal.tensors.transfer import Field
from specdec_hal.tensors.views import describe, download, framework
from tests.support.dlpack import FakeTensor

DTYPES = ("int64", "int32", "uint8", "bool", "float32", "float16", "bfloat16")


@pytest.fixture(params=["numpy", "paddle", pytest.param("torch", marks=pytest.mark.torch)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    if request.param == "numpy":
        return HostDevice()
    if request.param == "torch":
        return TorchDevice("cpu")
    paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    monkeypatch.setattr(paddle, "CUDAPlace", lambda index: paddle.CPUPlace())
    return PaddleDevice("cuda:0")


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros(device, dtype):
    tensor = device.zeros((3, 2), dtype)
    info = describe(tensor)
    assert info is not None and (info.dtype, info.shape, info.contiguous) == (dtype, (3, 2), True)
    assert not device.download(tensor).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_uploads_are_copies(device, dtype):
    array = (np.arange(6).reshape(3, 2) % 2).astype("uint16" if dtype == "bfloat16" else dtype)
    expected = array.copy()
    tensor = device.upload(array)
    array[...] = 0
    assert describe(tensor).dtype == dtype
    assert (np.array(device.download(tensor)) == expected).all()
    again = device.copy(tensor)
    device.write(tensor, slice(None), 0)
    assert not device.download(tensor).any() and (np.array(device.download(again)) == expected).all()


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_assigning_to_a_part_writes_in_place(device, dtype):
    tensor = device.zeros((4, 3), dtype)
    part = tensor[:2]
    device.assign(part, device.upload(np.arange(6, dtype=dtype).reshape(2, 3)))
    assert device.download(tensor).tolist() == [[0, 1, 2], [3, 4, 5], [0, 0, 0], [0, 0, 0]]
    device.assign(part, tensor[2:])
    assert not device.download(tensor).any()


def test_several_rows_of_some_columns(device):
    tensor = device.zeros((3, 4), "int64")
    device.write(tensor, ([2, 0], slice(1, None)), np.array([[1, 2, 3], [4, 5, 6]]))
    assert device.download(tensor).tolist() == [[0, 4, 5, 6], [0, 0, 0, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("dtype", "index", "values", "expected"),
    [
        ("int64", 1, -(1 << 63) + 5, [0, -(1 << 63) + 5, 0, 0]),
        ("int64", 1, (1 << 53) + 1, [0, (1 << 53) + 1, 0, 0]),
        ("int32", 3, (1 << 31) - 1, [0, 0, 0, (1 << 31) - 1]),
        ("int32", slice(None), 7, [7, 7, 7, 7]),
        ("int64", slice(2), np.array([5, 6]), [5, 6, 0, 0]),
        ("int64", slice(2), [1 << 40, 3], [1 << 40, 3, 0, 0]),
        ("float32", 2, 0.1, [0, 0, np.float32(0.1), 0]),
        ("bool", [0, 3], True, [True, False, False, True]),
        ("bool", slice(None), np.array([True, False, True, True]), [True, False, True, True]),
    ],
)
def test_writes_are_exact_and_in_place(device, dtype, index, values, expected):
    tensor = device.zeros((4,), dtype)
    address = describe(tensor).address
    device.write(tensor, index, values)
    assert describe(tensor).address == address
    assert device.download(tensor).tolist() == np.array(expected, dtype).tolist()


def test_writes_into_rows(device):
    tensor = device.zeros((3, 4), "int64")
    device.write(tensor, (1, slice(2)), [8, 9])
    device.write(tensor, 2, -1)
    assert device.download(tensor).tolist() == [[0, 0, 0, 0], [8, 9, 0, 0], [-1, -1, -1, -1]]
    values = np.arange(8, dtype=np.int32)[::-2]
    values.flags.writeable = False
    device.write(tensor, (0, slice(None)), values)
    device.write(tensor, (2, slice(1, 3)), values[:2])
    assert device.download(tensor).tolist() == [[7, 5, 3, 1], [8, 9, 0, 0], [-1, 7, 5, -1]]


def test_writes_of_bits(device):
    """NumPy's bfloat16 is uint16."""
    tensor, bits = device.zeros((3,), "bfloat16"), np.array([0x3F80, 0xC000], np.uint16)
    device.write(tensor, slice(1, None), device.upload(bits))
    device.write(tensor, slice(2), bits)
    assert np.array(device.download(tensor)).view(np.uint16).tolist() == [0x3F80, 0xC000, 0xC000]


def test_entries_are_added_in_place_to_the_rows_of_their_slots(device):
    whole = device.upload(np.arange(20, dtype=np.float32).reshape(5, 4))
    slots = device.upload(np.array([2, 0, 2, -1], np.int32))
    columns = device.upload(np.array([[3, 3, 3], [1, 1, 1], [0, 2, 0]]))
    values = device.upload(np.array([[8, 8, 8], [99, 99, 99], [0.5, -2, 0.5]], np.float32))
    device.add_entries(whole[:4], slots, columns[:, :2], values[:, :2])
    expected = np.arange(20, dtype=np.float32).reshape(5, 4)
    expected[[0, 2]] += [0.5, 0, -2, 0]
    expected[1, 3] += 8
    found = np.array(device.download(whole))
    assert (found[[0, 1, 2, 4]] == expected[[0, 1, 2, 4]]).all(), "the row of no slot may be anything"


def test_rows_are_gathered_after_their_slots_starts(device):
    tensor = device.upload(np.arange(12, dtype=np.float32).reshape(6, 2))
    starts, slots, offsets = (
        device.upload(np.array(values, np.int32)) for values in ([0, 1, 4], [1, 1, 2, 0, 2], [0, 2, 1, 0, 7])
    )
    assert device.download(device.gather_rows(tensor, starts, slots, offsets))[:, 0].tolist() == [2, 6, 10, 0, 10]


def test_places_and_frameworks():
    assert isinstance(get_device("cpu", "anything"), HostDevice) and HostDevice().stream() == 0
    with pytest.raises(UnsupportedError, match=r"memory on cuda:0 \(torch, paddle\), got 'jax'; choose"):
        get_device("cuda:0", "jax")
    with pytest.raises(UnsupportedError, match=r"got 'cupy'; choose one of them, whose from_dlpack takes"):
        get_device("cuda:0", "cupy")
    with pytest.raises(UnsupportedError, match="memory on npu:1"):
        get_device("npu:1", "torch")
    assert framework("").current_stream(0)() == 0


def test_download_of_any_dlpack_tensor():
    array = np.arange(4, dtype=np.int32)
    assert (download(FakeTensor(array, (1, 0))) == array).all()
    assert download(array) is array


def test_a_paddle_stream_is_asked_for_its_handle(monkeypatch):
    paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    asked: list[Any] = []

    class Stream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 0xABC

    monkeypatch.setattr(paddle.device, "current_stream", lambda place: asked.append(place) or Stream())
    assert framework("paddle").current_stream(2)() == 0xABC and asked == ["gpu:2"]


def test_cupy_is_asked_for_the_stream_of_its_operands(monkeypatch):
    cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0xABC))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    assert framework("cupy").current_stream(2)() == 0xABC


FIELDS = {
    "flags": Field((3,), "bool"), "ids": Field((2, 5), "int64"), "none": Field((4, 0), "int64"),
    "scores": Field((7,), "float32"), "column": Field((3, 1), "int32"),
}  # fmt: skip


def values(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {name: (rng.random(field.shape) * 9 - 3).astype(field.numpy_dtype) for name, field in FIELDS.items()}


def test_inputs_reach_the_device_as_they_were_when_uploaded(device):
    inputs = device.inputs(FIELDS)
    for seed in range(6):
        for name, array in values(seed).items():
            inputs.host[name][...] = array
        inputs.upload()
        for name, field in FIELDS.items():
            info = describe(inputs.tensors[name])
            assert (info.dtype, info.shape, info.contiguous) == (field.dtype, field.shape, True)
            np.testing.assert_array_equal(device.download(inputs.tensors[name]), values(seed)[name], name)


def test_rows_of_the_last_input_that_nobody_needs_stay_away(device):
    inputs = device.inputs({"rows": Field((3,), "int32"), "masks": Field((4, 5), "int32")})
    for seen in (4, 0, 2):
        inputs.host["rows"][:] = inputs.host["masks"][:] = 7 + seen
        inputs.upload(seen)
        assert (device.download(inputs.tensors["rows"]) == 7 + seen).all()
        assert (device.download(inputs.tensors["masks"])[:seen] == 7 + seen).all()
    if inputs.host is not inputs.tensors:
        assert (device.download(inputs.tensors["masks"])[2:] == 11).all()


def test_outputs_are_fetched_as_they_were(device):
    """And stay so while later fetches are under way."""
    outputs = device.outputs(FIELDS)
    fetched = []
    for seed in range(9):
        for name, array in values(seed).items():
            device.write(outputs.tensors[name], slice(None), array)
        fetched.append((seed, outputs.fetch()))
        while len(fetched) > 1:
            at, fetch = fetched.pop(0)
            for name, array in fetch().items():
                np.testing.assert_array_equal(array, values(at)[name], f"{name} {at}")


def test_some_of_the_outputs_are_fetched(device):
    outputs = device.outputs(FIELDS)
    for name, array in values(1).items():
        device.write(outputs.tensors[name], slice(None), array)
    fetched = outputs.fetch(("scores", "flags"))()
    assert list(fetched) == ["scores", "flags"]
    for name, array in fetched.items():
        np.testing.assert_array_equal(array, values(1)[name], name)


def test_a_capture_refuses_reads_writes_and_other_streams(device):
    with capturing(5):
        with pytest.raises(CaptureError, match="prepare_inputs: expected a launch on the captured stream 0x5, got"):
            check_stream("prepare_inputs", 0)
        check_stream("prepare_inputs", 5)
        if device.framework == "torch":
            tensor = device.zeros((2,), "int32")
            with pytest.raises(CaptureError, match="got a tensor read by the host"):
                device.download(tensor)
            with pytest.raises(CaptureError, match="got a tensor written by the host"):
                device.write(tensor, 0, 1)
    check_stream("prepare_inputs", 0)


def test_a_bound_op_outside_the_captured_stream_is_refused():
    backend = ReferenceBackend()
    op = backend.bind("ngram_index_reset", index=np.zeros((1, 64), np.uint8), reset_slots=np.ones(1, bool))
    with capturing(7), pytest.raises(CaptureError, match="ngram_index_reset"):
        op(0)


@pytest.mark.torch
def test_engines_capture_on_streams_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on PyTorch's 32 shared streams. When an engine is gone, the next one gets its stream."""
    torch: Any = pytest.importorskip("torch")
    pool, made, used = itertools.cycle(range(1, 33)), itertools.count(100), [0]

    def create(handle: Any, flags: int) -> int:
        assert flags == 1, "not ordered with the default stream"
        handle._obj.value = next(made)
        return 0

    @contextmanager
    def use(stream: Any) -> Iterator[None]:
        used.append(stream.cuda_stream)
        yield
        used.pop()

    graph = SimpleNamespace(capture_begin=lambda **how: None, capture_end=lambda: None, replay=None, reset=None)
    for name, instead in (
        ("Stream", lambda device: SimpleNamespace(cuda_stream=next(pool), wait_stream=lambda other: None)),
        ("ExternalStream", lambda handle, device: SimpleNamespace(cuda_stream=handle)),
        ("stream", use),
        ("current_stream", lambda device: None),
        ("CUDAGraph", lambda: graph),
        ("graph_pool_handle", lambda: None),
    ):
        monkeypatch.setattr(torch.cuda, name, instead)
    monkeypatch.setattr(TorchFramework, "current_stream", lambda framework, index: lambda: used[-1])
    monkeypatch.setattr("ctypes.CDLL", lambda name: {"libcuda.so.1": SimpleNamespace(cuStreamCreate=create)}[name])

    def engine() -> tuple[TorchDevice, int]:
        device = TorchDevice("cuda:7")  # type: ignore[no-untyped-call]
        captured = list[int]()
        with device.working():
            for _ in range(2):
                device.capture(lambda: captured.append(device.stream()))
            assert device.stream() < 33, "launches go to another"
        assert captured[0] == captured[1] >= 100
        return device, captured[0]

    kept = [engine() for _ in range(40)]
    assert len({stream for _, stream in kept}) == 40
    free = kept.pop(5)[1]
    assert engine()[1] == free
