"""Every op on a GPU gives the reference's bits, in guarded memory, on poisoned outputs, whatever values come in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.cuda.backend import CudaBackend
from specdec_hal.conformance.inputs.generate import cases, generate, hostile
from specdec_hal.conformance.subject import REFERENCE, written
from specdec_hal.conformance.wide import WideCase, wide_cases
from specdec_hal.ops import OPS, MatchPolicy
from specdec_hal.ops.spec import FLOATS
from tests.support import wide_rows
from tests.support.bits import assert_same_bits
from tests.support.cuda_shapes import LARGE
from tests.support.gpu import GpuCall, from_torch, run_on_gpu, to_torch
from tests.support.running import run

pytestmark = pytest.mark.gpu

INDEX_OPS = ("ngram_index_update", "ngram_index_reset")


def without_index(op: str) -> dict[str, Any]:
    return {"index": False} if any(o.optional and o.name == "index" for o in OPS[op].operands) else {}


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


HISTORY = ("token_ids_all", "prompt_lens", "step_idx", "seq_lens_encoder", "seq_lens_decoder")


def indexed(op: str, options: dict[str, Any], backend: CudaBackend) -> tuple[dict[str, Any], np.ndarray]:
    """Inputs of a look-up without its index, and the index that the kernels have built for them."""
    inputs = generate(op, index=True, pre_ids=False, workspace=backend.workspace, **options)
    sizes = {name: inputs[name] for name in ("min_ngram_size", "max_ngram_size")}
    index = inputs.pop("index")
    everywhere = {"index": index, "reset_slots": np.ones(len(index), np.bool_)}
    index = run_on_gpu("ngram_index_reset", everywhere, backend)["index"]
    update = {"index": index, **{name: inputs[name] for name in HISTORY}, **sizes}
    return inputs, run_on_gpu("ngram_index_update", update, backend)["index"]


@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram"])
def test_an_index_changes_nothing(op, cuda):
    found = 0
    for options in cases(op, 100):
        inputs, index = indexed(op, options, cuda)
        for policy in MatchPolicy:
            call = {**inputs, "match_policy": policy}
            expected = run(op, call)
            actual = run_on_gpu(op, {**call, "index": index}, cuda)
            actual.pop("index")
            assert_same_bits(actual, expected, (options, policy))
            found += int((expected["draft_tokens"] != inputs["draft_tokens"]).any())
    assert found > 30


@pytest.mark.parametrize("op", [*INDEX_OPS, "ngram_match", "hybrid_mtp_ngram"])
def test_an_overflowed_index_stays_in_bounds(op, cuda):
    """Results for random bits are undefined, but nothing outside the outputs is written."""
    option = {} if op in INDEX_OPS else {"index": True}
    for options in cases(op, 60):
        inputs = hostile(op, workspace=cuda.workspace, **options, **option)
        gpu = GpuCall(op, inputs)
        getattr(cuda, op)(**gpu.call)
        gpu.results()


def test_a_reset_forgets_the_slots_it_names_and_no_others(cuda):
    for seed in range(20):
        options = {"seed": seed, "M": 6, "B": 6, "states": ("decode",), "S": 6, "L": 40, "V": 4}
        inputs, index = indexed("ngram_match", options, cuda)
        flags = np.random.default_rng(seed).random(6) < 0.5
        kept = run_on_gpu("ngram_index_reset", {"index": index, "reset_slots": flags}, cuda)["index"]
        assert (kept[~flags] == index[~flags]).all()
        fresh = {"index": np.full_like(index, 0xA5), "reset_slots": np.ones(6, np.bool_)}
        empty = run_on_gpu("ngram_index_reset", fresh, cuda)["index"]
        sizes = {name: inputs[name] for name in ("min_ngram_size", "max_ngram_size")}
        # A slot that was reset behaves as one that was never used.
        for start in (kept, np.where(flags[:, None], empty, index)):
            update = {"index": start, **{name: inputs[name] for name in HISTORY}, **sizes}
            updated = run_on_gpu("ngram_index_update", update, cuda)["index"]
            actual = run_on_gpu("ngram_match", {**inputs, "index": updated}, cuda)
            actual.pop("index")
            assert_same_bits(actual, run("ngram_match", inputs), seed)
