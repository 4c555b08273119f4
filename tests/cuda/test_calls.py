"""Everything that the host can check is refused before a launch. Needs the library, but no GPU: tensors are fakes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.backends.cuda import plugin
from specdec_hal.backends.cuda.backend import CudaBackend
from specdec_hal.backends.cuda.options import Options
from specdec_hal.backends.cuda.probe import LIBRARY
from specdec_hal.errors import ConfigError, UnsupportedError
from specdec_hal.ops import OPS, TokenOrder
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.vocabulary import SERVED
from specdec_hal.tensors.native import library_path
from tests.support.dlpack import CUDA, FakeTensor

pytestmark = [
    pytest.mark.usefixtures("little_garbage"),
    pytest.mark.skipif(
        library_path(LIBRARY) is None, reason="libspecdec_cuda.so is not built here (there was no nvcc)"
    ),
]


def faked(inputs: dict[str, Any]) -> dict[str, Any]:
    return {n: FakeTensor(v, (CUDA, 0)) if isinstance(v, np.ndarray) else v for n, v in inputs.items()}


def test_every_op_is_there_and_can_be_captured(cuda):
    for status in cuda.explain():
        assert status.available, status
        assert cuda.capability(status.op).graph_safe
    assert set(cuda.capabilities) == set(OPS) and cuda.token_order is TokenOrder.SLOT


@pytest.mark.parametrize("op", OPS)
def test_calls_on_device_tensors_are_accepted(op, cuda):
    for seed in range(4):
        inputs = generate(op, seed, workspace=cuda.workspace, dtype="float16", M=5, S=3)
        cuda.bind(op, **faked(inputs))
        gc.collect()


@pytest.mark.parametrize(
    ("op", "sizes", "symbol"),
    [
        ("build_sampling_params", {"M": 8193, "S": 1}, "M"),
        ("prepare_inputs", {"M": 8193, "S": 1, "I_cap": 1}, "M"),
        ("verify_draft_tokens", {"M": 1, "S": 33, "V": 4}, "S"),
        ("ngram_match", {"M": 1, "S": 33, "L": 64}, "S"),
        ("ngram_match", {"M": 1, "S": 2, "L": (1 << 20) + 1}, "L"),
        ("sample_target", {"M": 1, "S": 1, "R_cap": 1, "V": (1 << 18) + 1}, "V"),
    ],
)
def test_more_than_the_kernels_take(op, sizes, symbol, cuda):
    option = {"index": False} if op == "ngram_match" else {}
    inputs = generate(op, 0, **sizes, **option)
    with pytest.raises(
        UnsupportedError, match=rf"{op} \[cuda\].*{symbol} = {sizes[symbol]} \(largest: {SERVED[symbol]}\)"
    ):
        cuda.bind(op, **faked(inputs))


def test_a_host_backend_cannot_stand_in(cuda):
    """A fallback would have to copy silently."""
    backend = CudaBackend(Options())
    backend.capabilities = {}
    backend.set_fallback([sd.get_backend("reference")])
    with pytest.raises(UnsupportedError, match=r"cuda: the op is missing; reference: it works on cpu, not cuda"):
        backend.bind("ngram_index_reset", **faked(generate("ngram_index_reset", 0, workspace=cuda.workspace)))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"devices": 1}, r"options\.devices: unknown option.*did you mean 'device'"),
        ({"index_from": 0}, r"options\.index_from: unknown option"),
        ({"device": -1}, r"options\.device: expected an integer in \[0, 1023\], got -1"),
        ({"device": "0"}, r"options\.device: .*got '0'"),
        ({"device": True}, r"options\.device: .*got True"),
    ],
)
def test_bad_options(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        plugin.specdec_backends().factory(options)


def test_the_option_says_where_a_runner_puts_its_tensors():
    backend = plugin.specdec_backends().factory({"device": 3})
    assert backend.device_name == "cuda:3" and backend.device == "cuda"
