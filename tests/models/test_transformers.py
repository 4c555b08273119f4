"""Random checkpoints that transformers writes, and its logits: every implementation of the model on each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytestmark = pytest.mark.torch

Floats = npt.NDArray[np.float32]

LENGTH = 90
ORIGINAL = 32
"""Positions before scaling, fewer than the texts have."""

TOLERANCE = 1e-4
"""Of the largest logit; a wrong frequency or scale shows at 1e-2."""

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
CASES: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "untied, in shards": {"tie_word_embeddings": False, "shards": True},
    "ungrouped": {"num_key_value_heads": 4},
    "one kv head": {"num_key_value_heads": 1, "head_dim": 24},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.5}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
        }
    },
    "yarn": {"rope_parameters": YARN},
    "yarn with its own ramp": {"rope_parameters": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}},
    "yarn with mscale": {"rope_parameters": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.5}},
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16", "shards": True},
}
# Which of them the GPU model's kernels compute, where Triton's interpreter takes seconds for each.
ON_TRITON = ("untied, in shards", "one kv head", "yarn", "float16")


def write(folder: Path, case: dict[str, Any]) -> Floats:
    """Write a checkpoint by save_pretrained; transformers' logits [LENGTH, V] of a text, in float32."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    options = {"num_key_value_heads": 2, "tie_word_embeddings": False, **case}
    dtype, shards = getattr(torch, options.pop("dtype", "float32")), options.pop("shards", False)
    if "rope_parameters" in options:
        options["rope_parameters"] = {"rope_theta": 10_000.0, **options["rope_parameters"]}
    config = transformers.LlamaConfig(
        vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=4 * ORIGINAL, rms_norm_eps=1e-5, initializer_range=0.3, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.normal_(1.0, 0.1)
        model.to(dtype).save_pretrained(folder, **({"max_shard_size": "50KB"} if shards else {}))
        assert len(list(folder.glob("*.safetensors"))) > 1 or not shards
        stored = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        logits: Floats = stored(torch.as_tensor(text())[None]).logits[0].numpy()
    return logits


def text() -> npt.NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, 131, LENGTH)


@pytest.fixture(scope="module", params=CASES, ids=list(CASES))
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Floats]:
    """Name, folder and logits of each case."""
    folder = tmp_path_factory.mktemp("transformers")
    return request.param, folder, write(folder, CASES[request.param])


def test_logits(stored: tuple[str, Path, Floats], framework: str, make_driver: Callable[..., Any]) -> None:
    """In chunks, so that positions come from the cache, too."""
    _, folder, want = stored
    got = make_driver(folder, framework, length=4 * ORIGINAL).whole(text(), 37)
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * np.abs(want).max())


def test_logits_of_the_gpu_model(stored: tuple[str, Path, Floats], triton_device: str) -> None:
    """Products of more than one tile skip the rows that a step does not use."""
    name, folder, want = stored
    if triton_device == "cpu" and name not in ON_TRITON:
        pytest.skip("takes seconds in Triton's interpreter and covers nothing that the other cases do not")
    from tests.support.device_models import device_model
    from tests.support.paged import Paged

    # The stored numbers, widened: what differs then is rounding, and how the checkpoint was read.
    calls: set[Any] = set()
    model = device_model(folder, triton_device, calls=calls)
    calls.clear()
    paged = Paged(model, 2, 4 * ORIGINAL)
    tokens = text()
    parts = [(0, tokens[:80]), (80, tokens[80:89]), (89, tokens[89:])]
    got = np.concatenate([paged.step({1: part}, padding=2)[1].cpu().numpy() for part in parts])
    counts = {(rows, count) for _, rows, columns, count in calls if columns != 131}  # without the head
    assert counts == {(82, 80), (11, None), (3, None)}
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * np.abs(want).max())


def test_half_precision_of_the_gpu_model(tmp_path: Path, triton_device: str) -> None:
    """By itself the model computes in the dtype of its checkpoint."""
    want = write(tmp_path, CASES["float16"])
    from tests.support.device_models import device_model
    from tests.support.paged import Paged

    model = device_model(tmp_path, triton_device, "auto")
    assert model.capabilities.hidden_dtype == "float16"
    got = Paged(model, 1, 40).step({0: (0, text()[:40])})[0].cpu().numpy()
    assert np.sqrt(((got - want[:40]) ** 2).mean()) < 0.01 * want.std()
