"""Paddle, PyTorch and NumPy tensors in the same ops, without copies."""

from __future__ import annotations

import importlib.util
from itertools import product

import numpy as np
import pytest

from specdec_hal.errors import ArgumentError
from specdec_hal.ops import OPS
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.inputs.rows import to_logits
from specdec_hal.tensors.views import TensorInfo, as_numpy, describe
from specdec_hal_conformance.building import build
from tests.support.calls import valid_call
from tests.support.dlpack import CPU, FakeTensor
from tests.support.running import BACKEND, copied, run


class Paddle:
    """How tests make Paddle tensors. They copy: the tensor has memory of its own."""

    def __init__(self):
        import paddle

        paddle.set_device("cpu")
        self.paddle = paddle

    def tensor(self, array):
        if array.dtype == np.uint16:
            return self.paddle.to_tensor(array.view(np.int16)).view("bfloat16")
        return self.paddle.to_tensor(array)

    def strided(self, array):
        return self.tensor(array).transpose([1, 0])

    def floats(self, tensor):
        return tensor.astype("float32").tolist()

    def tracked(self, array):
        tensor = self.tensor(array)
        tensor.stop_gradient = False
        return tensor


class Torch:
    def __init__(self):
        import torch

        self.torch = torch

    def tensor(self, array):
        if array.dtype == np.uint16:
            return self.torch.from_numpy(array.view(np.int16).copy()).view(self.torch.bfloat16)
        return self.torch.from_numpy(array.copy())

    def strided(self, array):
        return self.tensor(array).t()

    def floats(self, tensor):
        return tensor.float().tolist()

    def tracked(self, array):
        return self.tensor(array).requires_grad_()


class AnyDLPack:
    """Something that only speaks DLPack (no bfloat16, which NumPy cannot read through it)."""

    def tensor(self, array):
        return FakeTensor(array.copy(), (CPU, 0))


def absent(name, extra):
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed (pip install 'specdec-hal[{extra}]')")


FRAMEWORKS = [
    pytest.param(Paddle, marks=absent("paddle", "paddle"), id="paddle"),
    pytest.param(Torch, marks=[pytest.mark.torch, absent("torch", "torch")], id="torch"),
]


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    return request.param()


@pytest.fixture(params=[*FRAMEWORKS, pytest.param(AnyDLPack, id="dlpack")])
def producer(request):
    return request.param()


def test_every_op_writes_into_the_callers_tensors(producer):
    """Called at once, and bound."""
    for op, seed in product(OPS, range(2)):
        call = valid_call(op, seed=seed)
        if isinstance(producer, AnyDLPack) and "logits" in call:
            call = valid_call(op, seed=seed, dtype="float32")
        expected = run(op, call)
        tensors = {n: producer.tensor(v) if isinstance(v, np.ndarray) else v for n, v in call.items()}
        if seed:
            BACKEND.bind(op, **tensors)()
        else:
            getattr(BACKEND, op)(**tensors)
        for name, array in expected.items():
            np.testing.assert_array_equal(as_numpy(tensors[name]), array, f"{op} {name} {seed}")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_logits_of_every_dtype(dtype, framework):
    for seed in range(10):
        call = generate("sample_target", seed, dtype=dtype)
        expected = run("sample_target", call)["target_tokens"]
        tensors = {n: framework.tensor(v) if isinstance(v, np.ndarray) else v for n, v in call.items()}
        assert describe(tensors["logits"]).dtype == dtype
        BACKEND.sample_target(**tensors)
        np.testing.assert_array_equal(as_numpy(tensors["target_tokens"]), expected)


def test_bfloat16_is_written_in_place(framework):
    call = build(
        "apply_penalties", logits=to_logits(np.array([[1.0, 2.0, 3.0]], np.float32), "bfloat16"), token_ids_all=[[0]],
        draft_tokens=[[0]], cu_seqlens_q_output=[0, 1], batch_id_per_token_output=[0], bad_tokens=[[1]], end_tokens=[2],
    )  # fmt: skip
    tensors = {n: framework.tensor(v) for n, v in call.items()}
    BACKEND.apply_penalties(**tensors)
    assert framework.floats(tensors["logits"]) == [[1.0, -np.inf, 3.0]]


def test_frameworks_mix(framework):
    call = valid_call("update_model_status")
    expected = run("update_model_status", call)
    arrays = [name for name, value in call.items() if isinstance(value, np.ndarray)]
    mixed = {**copied(call), **{name: framework.tensor(call[name]) for name in arrays[1::2]}}
    BACKEND.update_model_status(**mixed)
    for name, array in expected.items():
        np.testing.assert_array_equal(as_numpy(mixed[name]), array)


def test_facts(framework):
    tensor = framework.tensor(np.arange(6, dtype=np.int32).reshape(2, 3))
    info = describe(tensor)
    assert info == TensorInfo("int32", (2, 3), "cpu", True, True, tensor.data_ptr(), 24)
    part = tensor[1:]
    assert describe(part).address == info.address + 12 and describe(part).shape == (1, 3)
    for dtype in ("int64", "int32", "uint8", "float32", "float16", "float64", "bool"):
        assert describe(framework.tensor(np.zeros(3, dtype))).dtype == dtype
    as_numpy(tensor)[1, 2] = 99
    assert tensor[1, 2].item() == 99


def test_strided_tensors_are_refused(framework):
    call = valid_call("update_model_status")
    call["accept_tokens"] = framework.strided(np.ascontiguousarray(call["accept_tokens"].T))
    with pytest.raises(ArgumentError, match="'accept_tokens': expected a C-contiguous tensor, got a strided view"):
        BACKEND.update_model_status(**call)


def test_tensors_that_track_gradients_are_read_and_not_written(framework):
    call = valid_call("top_p_candidates")
    expected = run("top_p_candidates", call)
    BACKEND.top_p_candidates(**{**call, "probs": framework.tracked(call["probs"])})
    np.testing.assert_array_equal(call["candidate_ids"], expected["candidate_ids"])
    call["candidate_scores"] = framework.tracked(call["candidate_scores"])
    with pytest.raises(ArgumentError, match=r"'candidate_scores': expected a writable tensor.*tracks gradients"):
        BACKEND.top_p_candidates(**call)


def test_aliases_across_frameworks(framework):
    call = valid_call("update_model_status")
    tensor = framework.tensor(call["step_idx"])
    for other in (tensor, as_numpy(tensor), tensor[:]):
        with pytest.raises(ArgumentError, match="memory of its own"):
            BACKEND.update_model_status(**{**call, "step_idx": tensor, "max_dec_len": other})
    neighbours = framework.tensor(np.concatenate([call["step_idx"], call["max_dec_len"]]))
    m = len(call["step_idx"])
    expected = run("update_model_status", call)
    BACKEND.update_model_status(**{**call, "step_idx": neighbours[:m], "max_dec_len": neighbours[m:]})
    np.testing.assert_array_equal(as_numpy(neighbours)[:m], expected["step_idx"])


@pytest.mark.torch
@absent("torch", "torch")
def test_torch_subclasses_and_other_devices():
    import torch

    parameter = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16), requires_grad=False)
    assert describe(parameter).dtype == "bfloat16" and as_numpy(parameter).dtype == np.uint16

    class Mine(torch.Tensor):
        pass

    mine = torch.ones(3, dtype=torch.bfloat16).as_subclass(Mine)
    assert describe(mine).dtype == "bfloat16" and as_numpy(mine).tolist() == [0x3F80] * 3
    call = valid_call("update_model_status")
    call["step_idx"] = torch.zeros(len(call["step_idx"]), dtype=torch.int64, device="meta")
    with pytest.raises(ArgumentError, match="expected a tensor on cpu, got one on meta"):
        BACKEND.update_model_status(**call)


def test_numpy_subclasses(tmp_path):
    call = valid_call("ngram_index_reset")
    mapped = np.memmap(tmp_path / "index", np.uint8, "w+", shape=call["index"].shape)
    mapped[:] = 1
    BACKEND.ngram_index_reset(mapped, call["reset_slots"])
    assert not mapped[call["reset_slots"]].any() and mapped[~call["reset_slots"]].all()
    assert describe([1]) is None and describe(None) is None and describe(np.float32(1)) is None


def test_bfloat16_as_uint16():
    rows = to_logits(np.array([[1.0, 2.0]], np.float32), "bfloat16")
    assert rows.tolist() == [[0x3F80, 0x4000]]
    greedy = build("sample_target", logits=rows, row_temperature=[0])
    assert run("sample_target", greedy)["target_tokens"].tolist() == [1]
