"""Memory is computed before it is allocated, and what does not fit is refused with the numbers."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.errors import InsufficientMemoryError
from specdec_hal.models import load_model
from specdec_hal.models.checkpoint import read_config
from specdec_hal.models.weights import expected_shapes
from specdec_hal.plugin.hookspecs import ModelSpec, hookimpl
from specdec_hal.plugin.model import ModelMemory
from specdec_hal.plugin.registry import BUILTINS, Registry
from specdec_hal.runner import build_runner
from specdec_hal.runner.footprint import footprint, with_storage
from specdec_hal.tensors.on_host import HostDevice
from tests.runner.conftest import make_runner
from tests.support.bounded import bounded
from tests.support.history_model import DeviceHistoryModel, HistoryModel

SLOTS = 64
DRAFT = Path(__file__).parents[2] / "models/tiny-py-lm-draft"


def sections(**changes: Any) -> dict[str, Any]:
    runner = {"max_num_seqs": SLOTS, "max_model_len": 64, "prefill_chunk": 16}
    return {"runner": {**runner, **changes}, "speculative": {"method": "ngram", "num_speculative_tokens": 4}}


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """free(n): n bytes are free."""
    return lambda size: monkeypatch.setattr(HostDevice, "free_bytes", lambda self: size)


@pytest.mark.parametrize("kind", [HistoryModel, DeviceHistoryModel])
def test_it_is_what_a_runner_allocates(kind: type[HistoryModel]) -> None:
    make_runner(model=kind(), **sections())  # imports and what is kept once
    model, config = kind(), parse(sections(max_num_seqs=512))
    tracemalloc.start()
    try:
        runner = make_runner(model=model, **sections(max_num_seqs=512))
        allocated = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    parts = footprint(config, model, runner.max_model_len, runner.max_model_len)
    assert model.cache.nbytes == parts.get("KV cache", model.cache.nbytes)
    grown = 0 if "KV cache" in parts else model.cache.nbytes  # a cache of its own
    # What the ngram proposer keeps, and Python's own objects, are not in the sum.
    assert sum(parts.values()) + grown <= allocated <= 1.5 * (sum(parts.values()) + grown)


def test_what_does_not_fit_is_refused_before_it_is_allocated(free: Any) -> None:
    free(20 << 20)
    model = DeviceHistoryModel()
    with bounded(), pytest.raises(InsufficientMemoryError) as caught:
        make_runner(model=model, **sections(max_num_seqs=8192))
    message = str(caught.value)
    assert message.startswith("runner: expected at most the 20.0 MiB that are free on cpu, got a need of ")
    for part in ("states of slots ", "logits ", "hidden states ", "KV cache "):
        assert part in message
    assert "lower runner.max_num_seqs (8192; " in message and "runner.num_kv_blocks (8192)" in message
    assert not hasattr(model, "block_size")


def test_the_number_that_would_fit_fits(free: Any) -> None:
    free(20 << 20)
    with pytest.raises(InsufficientMemoryError) as caught:
        make_runner(**sections(max_num_seqs=8192))
    fits = int(str(caught.value).partition("(8192; ")[2].split()[0])
    assert 100 < fits < 8192
    make_runner(**sections(max_num_seqs=fits))
    with pytest.raises(InsufficientMemoryError):
        make_runner(**sections(max_num_seqs=fits + 1))


def test_nothing_is_refused_where_nobody_knows(free: Any) -> None:
    free(None)
    make_runner(**sections())


@pytest.mark.parametrize("change", [{"max_num_seqs": 8192, "max_model_len": 1 << 15}, {"num_kv_blocks": (1 << 31) - 1}])
def test_on_this_machine(change: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gigabytes, for real: a check that came too late would have taken them."""
    real = HostDevice.free_bytes
    monkeypatch.setattr(HostDevice, "free_bytes", lambda self: min(real(self) or 1 << 31, 1 << 31))
    model = DeviceHistoryModel()
    model.config = model.config.__class__(
        vocab_size=model.config.vocab_size, hidden_size=model.config.hidden_size, max_position_embeddings=1 << 16
    )
    with bounded(), pytest.raises(InsufficientMemoryError):
        make_runner(model=model, **sections(**change))


def test_strategies_and_logprobs_count() -> None:
    model = HistoryModel()
    plain = footprint(parse(sections()), model, 64, 64)
    rejection = {**sections(), "sampling": {"logprobs": 2}}
    rejection["speculative"] = {**rejection["speculative"], "verify_strategy": "rejection"}
    more = footprint(parse(rejection), model, 64, 64)
    rows = SLOTS * 5
    assert more["probabilities"] == plain["logits"] == rows * model.config.vocab_size * 4
    assert more["log-probabilities"] == plain["logits"] + rows * 3 * (8 + 4)
    assert "probabilities" not in plain and "log-probabilities" not in plain


@pytest.fixture
def rows_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """rows_of(width, build, ...): bytes of the tensors with rows of this width that `build(...)` makes."""
    zeros = HostDevice.zeros

    def measure(width: int, build: Callable[..., object], *args: Any, **options: Any) -> int:
        made = list[Any]()
        with monkeypatch.context() as patch:
            patch.setattr(HostDevice, "zeros", lambda *args: (made.append(zeros(*args)), made[-1])[1])
            build(*args, **options)
        return sum(tensor.nbytes for tensor in made if tensor.shape[-1:] == (width,))

    return measure


@pytest.mark.parametrize("kind", [HistoryModel, DeviceHistoryModel])
def test_the_mtp_module_counts(kind: type[HistoryModel], free: Any, rows_of: Any) -> None:
    wanted, width = sections(), kind.config.hidden_size
    without = rows_of(width, make_runner, model=kind(), **wanted)
    wanted["speculative"] = {"method": "mtp", "num_speculative_tokens": 4}
    model: Any = kind()
    rows = rows_of(width, make_runner, model=model, **wanted)
    parts = footprint(parse(wanted), model, 64, 64)
    assert parts["MTP module's hidden states"] == rows - without > 0
    if kind is DeviceHistoryModel:
        assert parts["MTP module's KV cache"] == model.module.cache.nbytes
    free(sum(parts.values()) - 1)
    with pytest.raises(InsufficientMemoryError, match="MTP module's hidden states"):
        make_runner(model=kind(), **wanted)


def with_draft_model(strategy: str, **model: str) -> dict[str, Any]:
    drafts = {"method": "draft_model", "num_speculative_tokens": 4, "draft_model": {"path": str(DRAFT)}}
    return {**sections(), "speculative": {**drafts, "verify_strategy": strategy}, "model": model}


@pytest.mark.parametrize("strategy", ["target_match", "rejection"])
def test_the_draft_model_counts(strategy: str, free: Any, rows_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits without its draft model is refused before its weights are read or a tensor is made."""
    wanted = with_draft_model(strategy, framework="paddle")
    model = load_model(DRAFT, "paddle")
    parts = footprint(parse(wanted), model, 64, 64)
    ngram = {**wanted, "speculative": {**sections()["speculative"], "verify_strategy": strategy}}
    rows, without = (
        rows_of(model.config.vocab_size, build_runner, parse(some), ReferenceBackend(), model)
        for some in (wanted, ngram)
    )
    assert parts["drafts' logits"] + parts.get("drafts' probabilities", 0) == rows - without > 0
    assert ("drafts' probabilities" in parts) == (strategy == "rejection")
    stored = sum(math.prod(shape) for shape in expected_shapes(read_config(DRAFT)).values())
    assert parts["draft model's weights as float32"] == 4 * stored
    assert parts["draft model's largest file"] == (DRAFT / "model.safetensors").stat().st_size
    without = footprint(parse(sections()), model, 64, 64)
    assert sum(without.values()) + (1 << 20) < sum(parts.values()) - 1
    for size in (sum(parts.values()) - 1, sum(without.values()) + (1 << 20)):
        free(size)
        monkeypatch.setattr(model, "allocate", lambda *sizes: pytest.fail("allocated"))
        with pytest.raises(InsufficientMemoryError, match=r"^runner: .*draft model's weights as float32 "):
            build_runner(parse(wanted), ReferenceBackend(), model)


def test_a_draft_model_in_blocks_counts(rows_of: Any) -> None:
    """If the target has blocks, the draft model has as many, of its own size; None: unknown."""
    need = ModelMemory({"weights": 1000}, kv_position=48, hidden_row=64)
    draft = DeviceHistoryModel()
    for memory in (None, lambda path, device: need):
        models = ModelSpec("LlamaForCausalLM", "other", lambda path, device: draft, memory)
        registry = Registry(builtins=BUILTINS, entry_points=(), environ={})
        registry.register(SimpleNamespace(specdec_models=hookimpl(lambda models=models: models)), "other")
        config = parse(with_draft_model("target_match", framework="other"), registry=registry)
        model = DeviceHistoryModel()
        parts = footprint(config, model, 64, 64, registry=registry)
        if memory is None:
            assert not any(name.startswith("draft model's") for name in parts)
            continue
        ngram, width = parse(sections()), model.config.hidden_size
        rows = rows_of(width, build_runner, config, ReferenceBackend(), model, registry=registry)
        without = rows_of(width, build_runner, ngram, ReferenceBackend(), model)
        assert parts["draft model's weights"] == 1000
        assert parts["draft model's KV cache"] == draft.cache.size * 48
        assert parts["draft model's hidden states"] == (rows - without) // (4 * width) * 64


@pytest.mark.parametrize(
    ("device", "drafts", "wanted", "chosen"),
    [
        ("cuda", 3, "auto", "replay"), ("cuda", 2, "auto", "states"), ("cpu", 3, "auto", "states"),
        ("cpu", 3, "replay", "replay"), ("cuda", 3, "states", "states"),
    ],
)  # fmt: skip
def test_the_storage_of_recurrent_states(device: str, drafts: int, wanted: str, chosen: str) -> None:
    backend, model = ReferenceBackend(), HistoryModel()
    backend.device = device
    speculative = {"method": "ngram", "num_speculative_tokens": drafts}
    config = parse({"speculative": speculative, "runner": {"recurrent_storage": wanted}})
    assert with_storage(config, backend, model) is config
    model.capabilities = replace(model.capabilities, recurrent=True)
    assert with_storage(config, backend, model).runner.recurrent_storage == chosen
    backend.capabilities = {op: one for op, one in backend.capabilities.items() if op != "advance_checkpoints"}
    if wanted == "auto":
        assert with_storage(config, backend, model).runner.recurrent_storage == "states"
