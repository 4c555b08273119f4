"""Kernels work in place on the tensors of other frameworks, bfloat16 included, for as long as a plan lives."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.ops import OPS
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.tensors.views import as_numpy
from tests.support.running import assert_same, searched, written

pytestmark = pytest.mark.usefixtures("little_garbage")


def paddle_tensor(array):
    import paddle

    if array.dtype == np.uint16:
        return paddle.to_tensor(array.view(np.int16)).view("bfloat16")
    return paddle.to_tensor(array)


def torch_tensor(array):
    import torch

    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


@pytest.mark.parametrize("tensor", [paddle_tensor, pytest.param(torch_tensor, marks=pytest.mark.torch)])
@pytest.mark.parametrize("op", OPS)
def test_in_place(op, tensor):
    if tensor is paddle_tensor:
        pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    backend = sd.get_backend("xpu_sim")
    takes_floats = {"logits", "x"} & OPS[op].by_name.keys()
    for seed, dtype in enumerate(("float32", "float16", "bfloat16") if takes_floats else ("float32",)):
        inputs = generate(op, seed, workspace=backend.workspace, M=4, S=3, L=16, V=40, dtype=dtype)
        call = {n: tensor(v) if isinstance(v, np.ndarray) and v.size else v for n, v in inputs.items()}
        plan = backend.bind(op, **call)
        gc.collect()
        plan(0)
        outputs = {name: as_numpy(value) for name, value in call.items() if name in written(op, inputs)}
        assert_same(outputs, searched(op, inputs), (seed, dtype))
