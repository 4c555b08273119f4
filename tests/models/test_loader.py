"""load_model: choice of framework and model, and errors."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import (
    ArgumentError,
    BackendUnavailableError,
    CheckpointError,
    InsufficientMemoryError,
    UnsupportedError,
)
from specdec_hal.models import load_model
from specdec_hal.models.loader import checkpoint_memory
from specdec_hal.tensors.on_host import HostDevice
from specdec_hal.tensors.on_torch import TorchDevice

Make = Callable[..., Path]


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of modules that are not to be found."""
    names: set[str] = set()
    find = importlib.util.find_spec

    def find_spec(name: str, *args: Any) -> Any:
        return None if name in names else find(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return names


TENSORS = {"paddle": "paddle", "transformers": "torch"}
"""Of each framework's models."""


def test_auto_takes_paddle_first(make_checkpoint: Make) -> None:
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    assert load_model(make_checkpoint()).framework == "paddle"


@pytest.mark.torch
def test_auto_takes_transformers_without_paddle(make_checkpoint: Make, absent: set[str]) -> None:
    absent.add("paddle")
    assert load_model(make_checkpoint()).framework == "torch"
    with pytest.raises(BackendUnavailableError, match=r"pip install 'specdec-hal\[paddle\]'"):
        load_model(make_checkpoint(), "paddle")


def test_no_framework(make_checkpoint: Make, absent: set[str]) -> None:
    absent.update(("paddle", "torch"))
    with pytest.raises(BackendUnavailableError, match=r"pip install 'specdec-hal\[paddle\]' or pip install 'specdec"):
        load_model(make_checkpoint())


def test_paddleformers_is_not_installed(make_checkpoint: Make, absent: set[str]) -> None:
    """An extra alone cannot install it: its requirements exclude the versions of `transformers` that are needed."""
    absent.add("paddleformers")
    lines = r"pip install 'specdec-hal\[paddleformers\]', then pip install --no-deps paddleformers==1\.2\.0"
    with pytest.raises(BackendUnavailableError, match=f"expected paddleformers to compute .*, got none; {lines}"):
        load_model(make_checkpoint(), "paddleformers")


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_unknown_framework(make_checkpoint: Make, name: str) -> None:
    message = rf"argument 'framework': expected auto, llama\.cpp, paddle, paddleformers or transformers, got '{name}'"
    with pytest.raises(ArgumentError, match=message):
        load_model(make_checkpoint(), name)


def test_unknown_architecture(make_checkpoint: Make) -> None:
    folder = make_checkpoint(architectures=("MambaForCausalLM",))
    with pytest.raises(UnsupportedError, match=r"unknown model MambaForCausalLM \(paddle\)"):
        load_model(folder, "paddle")


def test_architecture_is_llama_unless_named(make_checkpoint: Make, framework: str) -> None:
    folder = make_checkpoint()
    raw = json.loads((folder / "config.json").read_text())
    del raw["architectures"]
    (folder / "config.json").write_text(json.dumps(raw))
    assert load_model(folder, framework).framework == TENSORS[framework]


def test_bad_files_are_found_before_a_framework_is_imported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a checkpoint folder"):
        load_model(tmp_path / "nowhere")


def test_bad_device(make_checkpoint: Make, framework: str) -> None:
    for device in ("tpu", "cpu:1:2", "gpu:99" if framework == "transformers" else "gpu:x"):
        with pytest.raises(ArgumentError, match=f"argument 'device': expected .*, got '{device}'"):
            load_model(make_checkpoint(), framework, device=device)


@pytest.mark.torch
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bad_dtype(make_checkpoint: Make, device: str) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    with pytest.raises(ArgumentError, match="argument 'dtype': expected one of float32, float16, bfloat16, got 'int8'"):
        load_model(make_checkpoint(), "transformers", device=device, dtype="int8")


def test_paddle_computes_in_float32(make_checkpoint: Make) -> None:
    with pytest.raises(ArgumentError, match=r"'dtype': expected float32, got 'bfloat16'; use model\.framework"):
        load_model(make_checkpoint(), "paddle", dtype="bfloat16")


@pytest.mark.torch
def test_no_gpu(make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    pytest.importorskip("triton", reason="Triton is not installed")
    for count, device in ((0, "cuda"), (2, "cuda:2")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        with pytest.raises(ArgumentError, match=rf"expected one of the {count} CUDA GPUs .*, got '{device}'; use"):
            load_model(make_checkpoint(), "transformers", device=device)


def test_weights_that_do_not_fit(make_checkpoint: Make, framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before they are read; half of them fit if two ranks share the model."""
    folder = make_checkpoint()
    memory = checkpoint_memory(folder, framework)
    assert memory is not None
    needed = sum(memory.weights.values())
    monkeypatch.setattr(HostDevice, "free_bytes", lambda self: needed)
    load_model(folder, framework)
    monkeypatch.setattr(HostDevice, "free_bytes", lambda self: needed - 1)
    message = r"expected at most the .* free on cpu, got a need of .* \(weights.*\); use a smaller checkpoint"
    with pytest.raises(InsufficientMemoryError, match=message) as caught:
        load_model(folder, framework)
    assert str(caught.value).startswith(str(folder))


@pytest.mark.torch
def test_weights_that_do_not_fit_on_a_gpu(make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    folder = make_checkpoint()
    memory = checkpoint_memory(folder, "transformers", device="cuda:1")
    assert memory is not None
    needed = sum(memory.weights.values())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(TorchDevice, "free_bytes", lambda self: needed // 2 if self.name == "cuda:1" else 0)
    with pytest.raises(InsufficientMemoryError, match="free on cuda:1"):
        load_model(folder, "transformers", device="cuda:1")
    ranks = type("Ranks", (), {"size": 2, "rank": 0})()
    with pytest.raises((RuntimeError, AssertionError), match="CUDA"):  # each of two takes half: loading begins
        load_model(folder, "transformers", device="cuda:1", group=ranks)


def test_weights_that_are_not_finite(make_checkpoint: Make, framework: str) -> None:
    from safetensors.numpy import load_file, save_file

    folder, name = make_checkpoint(), "model.layers.1.mlp.up_proj.weight"
    weights = load_file(folder / "model.safetensors")
    weights[name][0, :3] = np.nan, np.inf, -np.inf
    save_file(weights, folder / "model.safetensors")
    message = rf"expected finite numbers in {name}.*, got 3 that are not; export the weights again"
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(folder, framework)
    assert str(caught.value).startswith(str(folder))


@pytest.mark.torch
def test_an_mtp_module_that_is_not_finite(make_checkpoint: Make) -> None:
    """Its weights are read once it is wanted."""
    from safetensors.numpy import load_file, save_file

    folder = make_checkpoint()
    weights = load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("eh_proj.weight"))
    weights[name][2, 1] = np.nan
    save_file(weights, folder / "model.safetensors")
    model: Any = load_model(folder, "transformers")
    model.allocate(1, 8)
    with pytest.raises(CheckpointError, match=rf"expected finite numbers in {name} as float16, got 1 that are not"):
        model.mtp_module()


def test_old_paddle(make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    monkeypatch.setattr(paddle, "__version__", "3.2.2")
    with pytest.raises(BackendUnavailableError, match=r"expected PaddlePaddle >= 3\.3, got 3\.2\.2; pip install -U"):
        load_model(make_checkpoint(), "paddle")


def test_importing_loads_no_framework() -> None:
    heavy = "[m for m in ('paddle', 'torch', 'tokenizers') if m in sys.modules]"
    imports = "from specdec_hal.models import load_model, load_tokenizer, Tokenizer"
    code = f"import sys; {imports}; from specdec_hal.plugin import model, proposer; print({heavy})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
