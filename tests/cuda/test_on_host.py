"""The CUDA kernels, compiled for the CPU, give the reference's bits in whatever order their threads run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal import get_backend
from specdec_hal.ops import OPS
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.ops.inputs.rows import to_logits
from specdec_hal.ops.spec import FLOATS
from specdec_hal_conformance import checks
from specdec_hal_conformance.generated import drawn_cases
from specdec_hal_conformance.guarded import GuardedHost
from specdec_hal_conformance.report import FAILED
from specdec_hal_conformance.subject import Subject
from specdec_hal_conformance.suite import Settings, Unit, run_unit
from specdec_hal_conformance.trial import Trial
from tests.support import recurrent_shapes, wide_rows
from tests.support.bits import assert_same_bits
from tests.support.cuda_on_host import ARCHS, CudaOnHost, why_not
from tests.support.cuda_shapes import LARGE
from tests.support.running import run, searched

ROOT = Path(__file__).parents[2]
needs_library = pytest.mark.skipif(bool(why_not()), reason=why_not() or "never")
CASES = 5  # of each kind, for an op and a compute capability
LONG = ("sample_target", "verify_draft_tokens")
"""Ops with the most edges."""
MANY_SLOTS = ("eagle_gather_hidden_states", "eagle_get_self_hidden_states")
"""Ops with an edge of 300 wide rows."""


@needs_library
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("op", OPS)
def test_equal_to_the_reference(op, arch):
    for group, seed in (("generated", 1), ("hostile", 2)):
        for number, case in enumerate(drawn_cases(op, group, CASES, arch + seed)):
            subject = Subject(CudaOnHost(arch, seed=number), GuardedHost())
            trial = Trial(subject, case)
            for check in (checks.EQUALITY, checks.SENTINELS):
                wrong = check(trial)
                assert wrong is None, (case.id, "order", number, check.name, wrong)


@needs_library
@pytest.mark.parametrize("op", [pytest.param(op, marks=pytest.mark.slow) if op in LONG else op for op in OPS])
def test_every_rule_by_name(op):
    """Both compute capabilities in turn, in changing order; of the longest ops the newer one alone."""
    results = [
        result
        for arch in (ARCHS[:1] if op in LONG + MANY_SLOTS else ARCHS)
        for result in run_unit(Subject(CudaOnHost(arch, seed=arch), GuardedHost()), Unit(op, "edges"), Settings())
    ]
    assert results
    assert [(result.case, result.check, result.detail) for result in results if result.status == FAILED] == []


def check(op: str, inputs: dict[str, Any], number: int, context: object) -> None:
    """Both compute capabilities in turn, each time in another order."""
    backend = CudaOnHost(ARCHS[number % len(ARCHS)], seed=number)
    assert_same_bits(run(op, inputs, backend), run(op, inputs), (op, number, context))


@needs_library
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("op", ["ngram_match", "hybrid_mtp_ngram", "ngram_index_update"])
def test_no_index_is_kept(op, arch):
    """Its rows are small, however long the histories are; its contents are neither used nor changed."""
    backend = CudaOnHost(arch, seed=arch)
    assert backend.workspace(op, M=512, L=1 << 17, max_ngram_size=3)["index"].shape == (512, 16)
    for seed in range(CASES):
        option = {} if op == "ngram_index_update" else {"index": True, "pre_ids": False}
        inputs = generate(op, seed, workspace=backend.workspace, **option)
        inputs["index"][:] = np.random.default_rng(seed).integers(0, 256, inputs["index"].shape)
        assert_same_bits(run(op, inputs, backend), searched(op, inputs), (op, arch, seed))


@needs_library
@pytest.mark.parametrize("op", LARGE)
def test_large(op):
    number = list(LARGE).index(op)
    check(op, generate(op, number, **LARGE[op]), number, LARGE[op])


@needs_library
@pytest.mark.parametrize("op", ["causal_conv1d", "gated_delta_rule", "mamba2_step"])
def test_widths_of_recurrent_layers(op):
    for number, (context, inputs) in enumerate(recurrent_shapes.calls(op)):
        check(op, inputs, number, context)


@needs_library
@pytest.mark.parametrize("op", ["causal_conv1d", "gated_delta_rule", "mamba2_step"])
def test_prompts_of_recurrent_layers(op):
    """Slots with many rows have a launch of their own, beside those of others."""
    for number, (context, inputs) in enumerate(recurrent_shapes.prompts(op)):
        check(op, inputs, number, context)


def styles_and_dtypes():
    """Each style in one dtype; in the others where slow tests run."""
    for at, style in enumerate(wide_rows.STYLES):
        for number, dtype in enumerate(FLOATS):
            yield pytest.param(style, dtype, marks=() if number == at % len(FLOATS) else pytest.mark.slow)


@needs_library
@pytest.mark.parametrize(("style", "dtype"), styles_and_dtypes())
def test_wide_rows(style, dtype):
    """Rows that clusters of blocks share, in shared memory and not; of whole chunks and not, aligned and not."""
    at = (wide_rows.STYLES.index(style) + FLOATS.index(dtype)) % len(FLOATS)  # each style in one dtype by one width
    for number, v in ((0, 1025), (1, 4096), (2, 20_011))[at : at + 1]:
        inputs = wide_rows.sampling(style, dtype, v, number, some=8)
        # Each width in another order, on the newer compute capability for the one op and on the older for the other.
        check("sample_target", inputs, 2 * number + 1, (style, v))
        check("processed_probs", wide_rows.probabilities(inputs), 2 * number, (style, v))


@needs_library
def test_rows_that_reach_one_chunk_more_than_their_warps():
    """Eight blocks have 96 warps. Some rows of 96 chunks less an element begin between 16 bytes and reach a 97th."""
    inputs = wide_rows.sampling("smooth", "float32", 96 * 1024 - 1, 3, some=3)
    rows = np.flatnonzero((inputs["row_top_p"] > 0) & (inputs["row_top_p"] < 1))[:3]
    chosen = {name: x[rows] if isinstance(x, np.ndarray) else x for name, x in inputs.items()}
    check("sample_target", chosen, 0, rows)


@needs_library
@pytest.mark.parametrize(("style", "dtype"), list(zip(("smooth", "nan", "leading"), FLOATS, strict=True)))
def test_widest_clusters(style, dtype):
    """Rows without filters have 16 blocks; in rows with filters that are launched with them, half of those return."""
    check("sample_target", wide_rows.few(style, dtype, 70_011, 1), 0, style)


@needs_library
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("style", ["smooth", "tied", "leading"])
def test_wide_logprobs(style, dtype):
    for number, n in enumerate((1, 1, 21, 21)):
        inputs = wide_rows.logprobs(style, dtype, 30_011, n, number, rows=3)
        check("token_logprobs", inputs, number, (style, n))


@needs_library
@pytest.mark.parametrize("c", [1, 20, 300])
def test_wide_candidates(c):
    for number, v in enumerate((1, 500, 20_011)):
        check("top_p_candidates", wide_rows.candidates(max(v, c), c, 0.9), number, v)


@needs_library
@pytest.mark.parametrize("strategy", ["REJECTION", "TOPP"])
def test_a_wide_vocabulary(strategy):
    for number in range(4):
        options = {"M": 5, "S": 4, "V": 50_001} | ({"C": 900} if strategy == "TOPP" else {"C": 1})
        inputs = generate("verify_draft_tokens", number, strategy=strategy, accept_policy="NORMAL", **options)
        check("verify_draft_tokens", inputs, number, (strategy, options))


@needs_library
@pytest.mark.parametrize("dtype", FLOATS)
def test_masks_of_every_density(dtype):
    """Words that forbid nothing, one token, some, all but one and all; rows and tokens that begin anywhere."""
    shares = (0, 1 / 32, 0.1, 0.3, 0.5, 0.9, 31 / 32, 1)
    for number, (v, first_token) in enumerate(((4099, 0), (2048, 32), (1001, 37), (70, 5))):
        rng = np.random.default_rng([number, FLOATS.index(dtype)])
        words = (v + first_token) // 32  # fewer than the row has columns: tokens beyond them are forbidden
        bits = rng.random((5, words, 32)) >= rng.choice(shares, (5, words, 1))
        inputs = {
            "logits": to_logits(rng.normal(size=(7, v)).astype(np.float32), dtype),
            "bitmask": np.packbits(bits.reshape(5, -1), axis=1, bitorder="little").view(np.int32),
            "bitmask_rows": np.array([0, 1, 2, -1, 4, 3, 4], np.int32),
            "first_token": first_token,
        }
        check("apply_token_bitmask", inputs, number, (v, first_token))


@needs_library
def test_thoughts_that_end_with_any_number_of_new_tokens():
    """Each slot knows another number of its 70 tokens; its boundary ends with these, or with the drafts after them."""
    text, width, rng = 70, 3, np.random.default_rng(0)
    m = text + 2
    for number, shift in enumerate(range(-1, width)):
        tokens = np.full((m, text + width), 5)
        tokens[:, text + shift - 4 : text + shift] = (6, 7, 6, 6)  # 7 ends thinking, 6 breaks a line
        inputs = {
            "logits": rng.normal(size=(m * width, 9)).astype(np.float32),
            "token_ids_all": tokens[:, :text].copy(), "prompt_lens": np.zeros(m, np.int64),
            "step_idx": np.full(m, text), "stop_flags": np.zeros(m, bool), "seq_lens_encoder": np.zeros(m, np.int32),
            "allowed_tokens": np.array([2]), "reasoning_status": np.zeros(m, np.int32),
            "cu_seqlens_q_output": np.arange(m + 1, dtype=np.int32) * width, "enable_thinking": np.ones(m, bool),
            "reasoning_seen": np.arange(-1, text + 1), "draft_tokens": np.pad(tokens[:, text:-1], ((0, 0), (1, 0))),
            "think_end_id": 7, "line_break_id": 6,
        }  # fmt: skip
        masked = run("reasoning_constraint", inputs)["logits"] != inputs["logits"]
        assert masked.any() == (shift >= 0)
        check("reasoning_constraint", inputs, number, shift)


@needs_library
def test_rows_that_no_grid_covers_are_refused():
    inputs = generate("adjust_batch", 3, M=1, D=1)
    width = 0xFFFF * 1024 + 1  # of two bytes, and odd, so that they are not moved in larger units
    inputs |= {name: np.zeros((1, width), np.uint16) for name in ("x", "out")}
    with pytest.raises(ValueError, match=rf"rows: expected at most {width - 1} units of 2 bytes, got {width};"):
        run("adjust_batch", inputs, CudaOnHost())


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """planted(name, seed): runs a kernel of host/planted.cu."""
    program = tmp_path_factory.mktemp("planted") / "planted"
    runtime = [path for path in (ROOT / "kernels_cuda" / "host").glob("*.cc") if path.name != "export.cc"]
    emulator = ROOT / "kernels_xpu_sim" / "sim"
    folders = [ROOT / "kernels_cuda" / "host" / "include", ROOT / "kernels_cuda" / "host", emulator / "include"]
    folders.append(ROOT / "kernels_common" / "include")
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    command += ["-DSPECDEC_HOST_ARCH=900", *(f"-I{folder}" for folder in folders)]
    command += ["-x", "c++", str(ROOT / "tests" / "cuda" / "host" / "planted.cu")]
    command += [*map(str, runtime), str(emulator / "src" / "fiber.cc"), "-pthread", "-o", str(program)]
    subprocess.run(command, check=True)

    def run(name: str, seed: int = 0) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(program), name, str(seed)], capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize("name", ["neighbour", "used_again", "unwritten"])
def test_what_depends_on_the_order_shows(name, planted):
    found = {kind: {planted(f"{name}_{kind}", seed).stdout for seed in range(6)} for kind in ("good", "bad")}
    assert len(found["good"]) == 1 and "" not in found["good"]
    assert len(found["bad"]) > 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("parted", "31 wait for other lanes (first: thread 33 of block 0); 33 wait at __syncthreads (first: thread 0"),
        ("two_instructions", "thread 1 of block 0: lanes of a warp meet at different instructions"),
        ("not_in_the_mask", "thread 20 of block 0: is not in the mask of the lanes that it wants to meet"),
        ("too_early", "thread 0 of block 0: reaches for the memory of block 1 of its cluster, which may not have"),
        ("too_late", "reaches for the memory of block 3 of its cluster, which has ended"),
    ],
)
def test_what_may_not_be_is_refused(name, message, planted):
    for seed in range(3):
        done = planted(f"{name}_good", seed)
        assert (done.returncode, done.stderr) == (0, "")
    done = planted(f"{name}_bad")
    assert done.returncode == 1
    assert message in done.stderr


def test_dynamic_shared_memory_has_an_end(planted):
    assert set(planted("beyond_the_end_good").stdout.split()) == {"16"}
    assert planted("beyond_the_end_bad").returncode == -11  # SIGSEGV


def test_functions_of_the_language(planted):
    for seed in range(4):
        assert set(planted("functions", seed).stdout.split()) == {"1"}
    assert planted("rounding").returncode == 0


@pytest.mark.torch
@pytest.mark.parametrize("op", ["ngram_match", "draft_model_preprocess"])
def test_an_optional_tensor_without_memory_is_there(op):
    """PyTorch gives one without elements a null address."""
    torch = pytest.importorskip("torch")
    for seed in range(40):
        inputs = {**generate(op, seed, pre_ids=True, P=0, **({"index": False} if op == "ngram_match" else {}))}
        expected = run(op, inputs)
        tensors = {n: torch.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v for n, v in inputs.items()}
        assert tensors["pre_ids"].data_ptr() == 0
        for backend in (CudaOnHost(), get_backend("cpu")):
            call = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in tensors.items()}
            getattr(backend, op)(**call)
            assert_same_bits({n: call[n].numpy() for n in expected}, expected, (backend.name, seed))
