"""Every op on a GPU gives the reference's bits, in guarded memory, on poisoned outputs, whatever values come in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.cuda.backend import CudaBackend
from specdec_hal.ops import OPS
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.spec import FLOATS
from specdec_hal_conformance.subject import REFERENCE, written
from specdec_hal_conformance.wide import WideCase, wide_cases
from tests.support import recurrent_shapes, wide_rows
from tests.support.bits import assert_same_bits
from tests.support.cuda_shapes import LARGE, without_index
from tests.support.gpu import GpuCall, from_torch, run_on_gpu, to_torch
from tests.support.running import run

pytestmark = pytest.mark.gpu


def check(op: str, inputs: dict[str, Any], backend: CudaBackend, context: object, framework: str = "torch") -> None:
    actual = run_on_gpu(op, inputs, backend, framework)
    assert_same_bits(actual, run(op, inputs), (op, context))


@pytest.mark.parametrize(
    ("name", "offset", "complaint"),
    [
        ("reset_slots", 0, "byte 0 of its input 'reset_slots'"),
        ("reset_slots", -1, "1 bytes before 'reset_slots'"),
        ("index", "end", "0 bytes after the end of 'index'"),
    ],
)
def test_the_guards_see_stray_writes(name, offset, complaint, cuda):
    """This harness can fail."""
    inputs = generate("ngram_index_reset", 1, workspace=cuda.workspace)
    gpu = GpuCall("ngram_index_reset", inputs)
    cuda.ngram_index_reset(**gpu.call)
    gpu.results()
    gpu.buffer[gpu.offsets[name] + (inputs[name].nbytes if offset == "end" else offset)] += 1
    with pytest.raises(AssertionError, match=complaint):
        gpu.results()


@pytest.mark.parametrize("op", LARGE)
def test_large(op, cuda):
    for seed in range(4):
        check(op, generate(op, seed, **LARGE[op], **without_index(op)), cuda, seed)


@pytest.mark.parametrize("op", ["causal_conv1d", "gated_delta_rule", "mamba2_step"])
def test_recurrent_layers(op, cuda):
    """Kernels that load whole vectors need aligned tensors; others take the rest."""
    for seed in range(3):
        for context, inputs in (*recurrent_shapes.calls(op, seed), *recurrent_shapes.prompts(op, seed)):
            expected = run(op, inputs)
            for aligned in (True, False):
                actual = run_on_gpu(op, inputs, cuda, aligned=aligned)
                assert_same_bits(actual, expected, (op, context, seed, aligned))


@pytest.mark.parametrize("op", LARGE)
def test_the_most_slots(op, cuda):
    sizes = {"M": 8192, "S": 3, "L": 32} | ({"V": 7} if op == "verify_draft_tokens" else {})
    check(op, generate(op, 5, **sizes, **without_index(op)), cuda, sizes)


@pytest.mark.parametrize("strategy", ["REJECTION", "TOPP"])
def test_a_wide_vocabulary(strategy, cuda):
    for seed in range(6):
        options = {"M": 5, "S": 4, "V": 50_001} | ({"C": 900} if strategy == "TOPP" else {"C": 1})
        inputs = generate("verify_draft_tokens", seed, strategy=strategy, accept_policy="NORMAL", **options)
        check("verify_draft_tokens", inputs, cuda, (strategy, seed))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", wide_rows.STYLES)
def test_wide_rows(style, dtype, cuda):
    for seed, v in enumerate((1, 17, 1023, 1025, 4096, 20_011, 151_937)):
        inputs = wide_rows.sampling(style, dtype, v, seed, some=8)
        check("sample_target", inputs, cuda, (style, v))
        check("processed_probs", wide_rows.probabilities(inputs), cuda, (style, v))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", wide_rows.STYLES)
def test_few_rows(style, dtype, cuda):
    """Those without filters have clusters of 16 blocks."""
    for seed, v in enumerate((70_011, 151_936)):
        check("sample_target", wide_rows.few(style, dtype, v, seed), cuda, (style, v))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("style", ["smooth", "tied", "+inf"])
@pytest.mark.parametrize(("some", "v"), [(len(wide_rows.PARAMS), 100_001), (30, 151_937)])
def test_rows_that_do_not_fit_in_shared_memory(some, v, style, dtype, cuda):
    """So many rows that a cluster is two or four blocks at most, and so wide that these have to read them again."""
    inputs = wide_rows.sampling(style, dtype, v, 0, some=some)
    check("sample_target", inputs, cuda, style)
    check("processed_probs", wide_rows.probabilities(inputs), cuda, style)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 21])
def test_logprobs_of_many_rows(n, dtype, cuda):
    """A block each, which has to read its row again."""
    for style in ("smooth", "tied", "mostly -inf", "leading"):
        check("token_logprobs", wide_rows.logprobs(style, dtype, 60_011, n, rows=150), cuda, (style, n))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", wide_rows.STYLES)
def test_wide_logprobs(style, dtype, cuda):
    for v in (1000, 4096, 20_011, 151_937, 262_144):
        for n in (1, 21, 100):
            check("token_logprobs", wide_rows.logprobs(style, dtype, v, n), cuda, (style, v, n))


@pytest.mark.parametrize("dtype", FLOATS)
def test_penalties_of_a_wide_vocabulary(dtype, cuda):
    """Which takes several windows of tallies."""
    for seed, v in enumerate((57_000, 60_001, 151_937, 262_144)):
        inputs = generate("apply_penalties", seed, M=4, S=4, L=900, V=v, W=20, dtype=dtype)
        check("apply_penalties", inputs, cuda, (dtype, v))


def test_penalties_round_every_16_bit_logit(cuda):
    for inputs in wide_rows.rounding():
        check("apply_penalties", inputs, cuda, inputs["repetition"])


@pytest.mark.parametrize("c", [1, 5, 20, 128, 300])
def test_wide_candidates(c, cuda):
    for v in (c, c + 1, 500, 3001, 20_011, 262_144):
        check("top_p_candidates", wide_rows.candidates(v, c, 0.9), cuda, (c, v))


BEYOND = [case for op in OPS for case in wide_cases(op) if isinstance(case, WideCase)]


@pytest.mark.parametrize("case", BEYOND, ids=[f"{case.op}-{case.name}" for case in BEYOND])
def test_rows_beyond_32_bits(case, cuda):
    """Tensors of more than 2^31 elements; the last rows are tested."""
    import torch

    call = case.make()
    tensors = {name: value for name, value in call.items() if isinstance(value, np.ndarray)}
    needed, free = sum(tensor.nbytes for tensor in tensors.values()), torch.cuda.mem_get_info()[0]
    if needed > 0.8 * free:
        pytest.skip(f"{needed} bytes of tensors do not fit the {free} that the device has free")
    on_gpu = {**call, **{name: to_torch(tensor) for name, tensor in tensors.items()}}
    getattr(cuda, case.op)(**on_gpu)
    names = written(case.op, call)
    actual = {name: from_torch(on_gpu[name][case.look.get(name, ...)], call[name]) for name in names}
    del on_gpu
    torch.cuda.empty_cache()
    getattr(REFERENCE, case.op)(**call)
    assert_same_bits(actual, {name: call[name][case.look.get(name, ...)] for name in names}, case.name)
