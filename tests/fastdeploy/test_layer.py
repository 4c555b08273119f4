"""Putting the layer in FastDeploy's place, choosing what serves it, its plans and its errors."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

import specdec_hal_fastdeploy as package
from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal_fastdeploy.adaptor import Adaptor
from specdec_hal_fastdeploy.unserved import LEFT
from tests.fastdeploy.batches import Batch, equal, tensor, tensors

OPS = "fastdeploy.model_executor.ops"


@pytest.fixture
def clean() -> Iterator[None]:
    """No FastDeploy before, and none after."""
    assert not [name for name in sys.modules if name.partition(".")[0] == "fastdeploy"]
    yield
    package.uninstall()
    for name in [name for name in sys.modules if name.partition(".")[0] == "fastdeploy"]:
        del sys.modules[name]


COMPILED = "def ngram_match(*args): return 'compiled'\ndef append_attention(*args): return 'theirs'\n"
OPS_PACKAGE = """
import importlib
try:
    module = importlib.import_module('.fastdeploy_ops', __name__)
except ImportError:
    module = None
for name in dir(module) if module else ():
    if not name.startswith('_'):
        globals()[name] = getattr(module, name)
"""


@pytest.fixture
def fastdeploy(clean: None, tmp_path: Path, monkeypatch: Any) -> Path:
    """A package tree like FastDeploy's, without compiled ops; `ngram` binds an op as its proposer does."""
    root = tmp_path / "fastdeploy"
    for folder in ("", "model_executor", "model_executor/ops", "spec_decode"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "__init__.py").write_text("")
    for platform in ("gpu", "xpu"):
        folder = root / "model_executor/ops" / platform
        folder.mkdir()
        (folder / "__init__.py").write_text(OPS_PACKAGE)
    (root / "spec_decode/ngram.py").write_text(f"from {OPS}.gpu import ngram_match\n")
    monkeypatch.syspath_prepend(tmp_path)
    return root


def test_without_fastdeploy_its_op_packages_are_the_layer(clean: None) -> None:
    report = package.install("reference")
    gpu = importlib.import_module(f"{OPS}.gpu")
    compiled = importlib.import_module(f"{OPS}.xpu.fastdeploy_ops")
    assert gpu.ngram_match is package.ADAPTORS["gpu"]["ngram_match"]
    assert compiled.adjust_batch is package.ADAPTORS["xpu"]["adjust_batch"]
    assert "FastDeploy is not installed" in report.how["gpu"]
    assert "ngram_match" in report.taken["gpu"] and "speculate_schedule_cache" in report.left["gpu"]
    assert "served: " in str(report) and "the engine's: " in str(report)
    package.uninstall()
    assert not [name for name in sys.modules if name.split(".")[0] == "fastdeploy"]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{OPS}.gpu")


def test_without_fastdeploy_there_are_its_enumerations(clean: None) -> None:
    package.install("reference")
    types = importlib.import_module("fastdeploy.spec_decode.types")
    strategy, method = importlib.import_module("fastdeploy.spec_decode").VerifyStrategy, types.SpecMethod
    assert [strategy.from_string(name) for name in ("topp", "Greedy", "TARGET_MATCH")] == [0, 1, 2]
    with pytest.raises(ValueError, match="expected one of topp, greedy, target_match, got 'best'"):
        strategy.from_string("best")
    with pytest.raises(TypeError, match="expected a string, got int"):
        strategy.from_string(1)
    assert method("ngram_match") is method.NGRAM == "ngram"
    assert method.MTP.needs_kv_cache and not method.NGRAM.needs_kv_cache and not method.NAIVE.needs_proposer
    with pytest.raises(ValueError, match="guess"):
        method("guess")


LATE = f"from {OPS}.gpu import ngram_match, ngram_match as look_up\nimport {OPS}.gpu as ops\nelsewhere = object()\n"


@pytest.mark.parametrize("compiled", [True, False])
def test_modules_imported_after_install_are_put_back(fastdeploy: Path, compiled: bool) -> None:
    if compiled:
        (fastdeploy / "model_executor/ops/gpu/fastdeploy_ops.py").write_text(COMPILED)
    (fastdeploy / "late.py").write_text(LATE)
    package.install("reference")
    late = importlib.import_module("fastdeploy.late")
    gpu = importlib.import_module(f"{OPS}.gpu")
    served = package.ADAPTORS["gpu"]["ngram_match"]
    assert late.ngram_match is late.look_up is gpu.ngram_match is served
    kept = late.elsewhere
    assert not compiled or gpu.append_attention() == "theirs"
    package.uninstall()
    assert not hasattr(gpu, "verify_draft_tokens")
    if compiled:
        assert late.ngram_match() == late.look_up() == gpu.ngram_match() == "compiled"
    held = [value for module in (late, gpu) for value in vars(module).values()]
    assert not [value for value in held if isinstance(value, Adaptor)]
    assert late.elsewhere is kept and late.ops is gpu


def test_xpus_own_get_infer_param_stays_where_it_is_compiled(fastdeploy: Path) -> None:
    ops = "def get_infer_param(*args): return 'compiled'\ndef adjust_batch(*args): return 'compiled'\n"
    (fastdeploy / "model_executor/ops/xpu/fastdeploy_ops.py").write_text(ops)
    report = package.install("reference")
    xpu = importlib.import_module(f"{OPS}.xpu")
    assert xpu.get_infer_param() == "compiled"
    assert xpu.adjust_batch is package.ADAPTORS["xpu"]["adjust_batch"]
    assert "get_infer_param" in report.left["xpu"] and "get_infer_param" not in report.taken["xpu"]


def test_modules_that_have_bound_an_op_are_told(fastdeploy: Path) -> None:
    (fastdeploy / "model_executor/ops/gpu/fastdeploy_ops.py").write_text(COMPILED)
    ngram = importlib.import_module("fastdeploy.spec_decode.ngram")
    assert ngram.ngram_match() == "compiled"
    report = package.install("reference")
    assert ngram.ngram_match is package.ADAPTORS["gpu"]["ngram_match"]
    assert "fastdeploy.spec_decode.ngram" in report.how["gpu"]
    package.uninstall()
    assert ngram.ngram_match() == "compiled"


def test_a_second_install_changes_the_backend_alone(clean: None) -> None:
    first = package.install("reference")
    assert package.install("cpu") is first
    args = small_call()
    with pytest.raises(ValueError, match=r"ngram_match \[cpu\]"):
        package.ADAPTORS["gpu"]["ngram_match"](*args[:-2], 99, 3)


def small_call(slots: int = 2) -> list[Any]:
    """Arguments of ngram_match."""
    b = Batch(np.random.default_rng(0), slots=slots, width=4)
    wanted = np.full(slots, 3, np.int32)
    return [*tensors(b.text, b.prompt, b.step, wanted, b.drafts, b.slt, b.enc, b.dec, b.limit), 3, 3]


def test_the_backend_comes_from_a_file_or_the_environment(monkeypatch: Any) -> None:
    """Errors name it."""
    none = (paddle.ones([1, 1]), paddle.ones([1]), None, 1, 1)
    monkeypatch.setenv("SPECDEC_HAL_BACKEND", "reference")
    for config, name in ((None, "reference"), ("configs/cpu.yaml", "cpu")):
        package.use_backend(config=config)
        with pytest.raises(ValueError, match=rf"^top_p_candidates \[{name}\]"):
            package.ADAPTORS["gpu"]["top_p_candidates"](*none)
    monkeypatch.delenv("SPECDEC_HAL_BACKEND")
    package.use_backend()


def test_one_import_installs(clean: None, monkeypatch: Any) -> None:
    monkeypatch.delitem(sys.modules, f"{package.__name__}.auto", raising=False)
    importlib.import_module(f"{package.__name__}.auto")
    assert importlib.import_module(f"{OPS}.gpu").ngram_match is package.ADAPTORS["gpu"]["ngram_match"]


def test_numpy_numbers_are_attributes(gpu: Any) -> None:
    args, again = small_call(), small_call()
    gpu.ngram_match(*args, True)
    gpu.ngram_match(*again[:9], np.int64(3), np.int32(3), np.bool_(True))
    equal(again[4], args[4].numpy())


def test_plans_with_operations_of_paddle_end_with_their_tensors(gpu: Any) -> None:
    one, lens = np.ones((2, 1), np.int64), np.ones(2, np.int32)
    cu, rows = np.arange(3, dtype=np.int32), np.zeros((2, 4), np.float32)
    calls = {
        gpu.naive_update_model_status: tensors(one, lens, lens, one, cu),
        gpu.speculate_get_accept_tokens_and_logits: tensors(one[:, 0], rows, rows, cu, cu, lens, lens * 0, lens, one),
        gpu.hybrid_mtp_ngram: [
            *tensors(np.ones((2, 8), np.int64), one, one, one, lens, one.repeat(3, 1), lens, lens, one * 9),
            2, 1, 2, False,
        ],
        gpu.speculate_get_token_penalty_multi_scores: [
            *tensors(np.ones((2, 8), np.int64), one, rows, *[lens.astype(np.float32)] * 4, one, one, one, one, one[:1]),
            *tensors(lens, cu[:2], cu), 8,
        ],
    }  # fmt: skip
    for op, args in calls.items():
        op.forget()
        op(*args)
        assert len(op.plans) == 1, op
    for op, args in calls.items():
        for position in [i for i, arg in enumerate(args) if isinstance(arg, paddle.Tensor)]:
            op(*args)
            assert len(op.plans) == 1, op
            args[position] = args[position].clone()  # the others live on, as a runner's buffers do
            assert not op.plans, (op, position)


def test_the_plug_in_that_fastdeploy_finds(fastdeploy: Path, monkeypatch: Any) -> None:
    """As its loader does: every entry point of the group is loaded and called; the backend's variable decides."""
    group = "fastdeploy.model_register_plugins"
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = text.split(f'[project.entry-points."{group}"]\n')[1].split("\n\n")[0]
    name, value = section.replace('"', "").split(" = ")
    plugin = EntryPoint(name, value, group).load()
    monkeypatch.delenv("SPECDEC_HAL_BACKEND", raising=False)
    package.use_backend()  # another test may have chosen one
    plugin()
    assert importlib.import_module(f"{OPS}.gpu").__dict__.get("ngram_match") is None
    monkeypatch.setenv("SPECDEC_HAL_BACKEND", "reference")
    plugin()
    proposer = importlib.import_module("fastdeploy.spec_decode.ngram")
    assert proposer.ngram_match is package.ADAPTORS["gpu"]["ngram_match"]
    with pytest.raises(ValueError, match=r"^ngram_match \[reference\]: argument 'max_ngram_size'"):
        proposer.ngram_match(*small_call()[:9], "three", 3)


def test_what_a_backend_lacks_is_told_of_fastdeploys_op(layer: Any, gpu: Any, monkeypatch: Any) -> None:
    layer.use_backend(backend := ReferenceBackend())
    args = small_call()
    gpu.ngram_match(*args)
    monkeypatch.setattr(backend, "capabilities", {})
    gpu.ngram_match.forget()
    with pytest.raises(NotImplementedError, match=r"^ngram_match \[FastDeploy on .*the op is missing"):
        gpu.ngram_match(*args)


def test_a_kept_plan_sees_new_values_and_new_memory(gpu: Any) -> None:
    def lens_of(args: list[Any]) -> list[int]:
        gpu.ngram_match(*args)
        lens: list[int] = args[5].tolist()
        return lens

    args = small_call(6)
    args[6], args[7] = paddle.zeros([6], "int32"), paddle.ones([6], "int32")  # all decode
    assert lens_of(args) == lens_of(args) and min(lens_of(args)) >= 1
    args[7][2] = 0
    assert lens_of(args)[2] == 0
    idle = paddle.zeros([6], "int32")
    idle._share_buffer_to(args[7])
    assert lens_of(args) == [0] * 6


def test_no_more_plans_are_kept_than_the_bound(layer: Any, gpu: Any) -> None:
    calls = [small_call() for _ in range(70)]
    gpu.ngram_match.forget()
    for args in calls:
        gpu.ngram_match(*args)
    assert len(gpu.ngram_match.plans) <= 64


def test_arguments_by_name(gpu: Any) -> None:
    args, again = small_call(), small_call()
    gpu.ngram_match(*args)
    names = gpu.ngram_match.forms[0].names
    gpu.ngram_match(*again[:4], **dict(zip(names[4:], again[4:], strict=False)))
    equal(args[5], again[5].numpy())
    with pytest.raises(ValueError, match="argument 'max_ngram': expected one of"):
        gpu.ngram_match(*again[:9], max_ngram=3, max_draft_tokens=3)
    with pytest.raises(ValueError, match="argument 'max_draft_tokens': expected a value"):
        gpu.ngram_match(*again[:9], max_ngram_size=3)


@pytest.mark.parametrize(
    ("position", "make", "message"),
    [
        (5, lambda t: t.astype("int64"), "argument 'seq_lens_this_time': expected dtype int32, got int64"),
        (3, lambda t: t[:1], r"argument 'draft_token_num': expected shape \[M\]"),
        (4, lambda t: t[:, ::2], "argument 'draft_tokens': expected a C-contiguous tensor"),
        (1, lambda t: t.numpy(), "argument 'prompt_lens': expected a paddle.Tensor, got"),
        (9, lambda t: "three", "argument 'max_ngram_size': expected int, got"),
        (9, lambda t: 99, "argument 'max_ngram_size': expected int in .1, 16., got 99"),
    ],
)
def test_bad_arguments_are_named_as_fastdeploy_names_them(gpu: Any, position: int, make: Any, message: str) -> None:
    args = small_call()
    args[position] = make(args[position])
    before = [arg.numpy().copy() for arg in args if isinstance(arg, paddle.Tensor)]
    with pytest.raises(ValueError, match=rf"^ngram_match \[\w+\]: {message}"):
        gpu.ngram_match(*args)
    for arg, values in zip([a for a in args if isinstance(a, paddle.Tensor)], before, strict=True):
        equal(arg, values)


def test_an_unknown_number_of_arguments_names_those_known(gpu: Any) -> None:
    with pytest.raises(ValueError, match=r"expected 11, 12, 13 arguments .*got 8, as of another version"):
        gpu.ngram_match(*small_call()[:8])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("append_attention", "it is no op of speculative decoding"),
        ("speculate_schedule_cache", "KV blocks and their scheduler are the engine's"),
        ("speculate_get_output", "an op of speculative decoding whose arguments this layer does not know"),
        ("speculate_rebuild_append_padding", "replaced in FastDeploy itself in 2026"),
        ("mtp_of_next_year", "an op of speculative decoding that it does not know"),
    ],
)
def test_a_refusal_says_what_the_op_is_part_of(name: str, reason: str) -> None:
    for platform in ("gpu", "xpu"):
        module = importlib.import_module(f"specdec_hal_fastdeploy.{platform}")
        with pytest.raises(NotImplementedError, match=f"^{name} .*: {reason}; .*Served on {platform}: "):
            getattr(module, name)(1, 2)
        assert not hasattr(module, "__path__")


def test_the_page_names_every_op() -> None:
    page = (Path(__file__).parents[2] / "docs/use/fastdeploy.md").read_text()
    for platform in ("gpu", "xpu"):
        for name in {*package.ADAPTORS[platform], *LEFT[platform]} - {"hybird_mtp_ngram"}:
            assert f"`{name}`" in page, name


def test_a_column_without_elements_is_taken(gpu: Any) -> None:
    """Paddle calls it strided; a thinking limit without inject tokens comes like this."""
    tokens, counts, one = *tensors(np.array([[7, 8]]), np.array([2], np.int32)), np.array([[1]], np.int32)
    state = tensors(99 * one, -one, np.array([[9]]), 0 * one)
    ends, inject = tensors(np.array([[2]]), np.zeros((0, 1), np.int64))
    gpu.speculate_limit_thinking_content_length(
        tokens, *state, counts, tensor(np.array([[False]])), ends, inject, 3, False
    )
    equal(tokens, [[7, 8]])


def test_the_layer_needs_no_package_of_the_server() -> None:
    """FastDeploy has a server of its own."""
    missing = ("fastapi", "httptools", "jinja2", "msgspec", "prometheus_client", "starlette", "uvicorn", "zmq")
    code = f"import sys; sys.modules |= dict.fromkeys({missing}); import specdec_hal_fastdeploy as layer"
    subprocess.run([sys.executable, "-c", f"{code}; layer.install('reference')"], check=True, timeout=60)
