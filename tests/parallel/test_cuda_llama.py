"""The decoder for GPUs over ranks: its sums and its vocabulary, on gloo and in Triton's interpreter or on one GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.models.checkpoint import read_config
from specdec_hal.models.tp_weights import WeightsPart
from specdec_hal.models.weights import load_weights, read_weights
from tests.models.conftest import Shape, write_checkpoint
from tests.models.conftest import triton_device as triton_device
from tests.parallel.cuda_ranks import ROOT, run_ranks

pytestmark = pytest.mark.torch

SHAPES = {
    "tied": Shape(vocab_size=1500, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4),
    "shared KV heads": Shape(
        vocab_size=1500, num_hidden_layers=1, num_key_value_heads=1, num_attention_heads=8, head_dim=8,
        tie_word_embeddings=False,
    ),
}  # fmt: skip


SMALL = Shape(
    vocab_size=1500, hidden_size=32, intermediate_size=48, num_hidden_layers=1, head_dim=8, num_nextn_predict_layers=0,
    bos_token_id=0, eos_token_id=0,
)  # fmt: skip


def check(split: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
    """Close to the undivided model, whose sums are rounded elsewhere."""
    assert set(split) == {"hidden", "tap", "logits", "drafts"} == set(whole)
    for name, tensor in split.items():
        scale = np.abs(whole[name]).max()
        np.testing.assert_allclose(tensor, whole[name], rtol=0, atol=TOLERANCE * scale, err_msg=name)


TOLERANCE = 2e-3
"""Checkpoints are float16, and so is what the ranks gather."""


@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_compute_the_model(tmp_path: Path, triton_device: str, shape: str) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", SHAPES[shape])
    whole = np.load(run_ranks("cuda_llama_rank", folder, 0, tmp_path / "whole.npz", triton_device))
    check(np.load(run_ranks("cuda_llama_rank", folder, 2, tmp_path / "split.npz", triton_device)), whole)


def test_nobody_waits_for_a_lost_rank(triton_device: str) -> None:
    """In a process of its own: it would never end."""
    environment = {**os.environ, **({"TRITON_INTERPRET": "1"} if triton_device == "cpu" else {})}
    command = [sys.executable, "-m", "tests.parallel.cuda_lost_rank", triton_device]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)


@pytest.mark.parametrize("ranks", [2])
def test_runners_over_device_tensors(tmp_path: Path, triton_device: str, ranks: int) -> None:
    """The same tokens from gathered logits and from parts of them, plain and drafted, as from one process."""
    folder = write_checkpoint(tmp_path / "checkpoint", SMALL)
    whole, split = (
        json.loads(run_ranks("cuda_runner_rank", folder, size, tmp_path / f"{size}.json", triton_device).read_text())
        for size in (0, ranks)
    )
    assert len(whole) >= 4 and split == whole


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_make_up_the_weights(tmp_path: Path, shape: str, size: int) -> None:
    """Read as parts, or cut from the whole; every row and column is on a rank, and a KV head on all that share it."""
    folder = write_checkpoint(tmp_path / "checkpoint", SHAPES[shape])
    config = read_config(folder)
    whole = read_weights(folder, config)
    parts = [WeightsPart(config, rank, size) for rank in range(size)]
    cut = [part.shard(whole) for part in parts]
    for part, mine in zip(parts, cut, strict=True):
        read = load_weights(folder, config, dtype="float32", part=part.slices)
        read |= load_weights(folder, config, dtype="float32", part=part.slices, mtp=True)
        part.cut_head(read)
        assert set(read) == set(mine)
        for name, weight in mine.items():
            np.testing.assert_array_equal(read[name].numpy(), weight, name)
    layer = "model.layers.0.self_attn"
    kv_heads, width = config.num_key_value_heads, config.head_dim
    for name, axis in (("q_proj", 0), ("o_proj", 1)):
        joined = np.concatenate([mine[f"{layer}.{name}.weight"] for mine in cut], axis)
        np.testing.assert_array_equal(joined, whole[f"{layer}.{name}.weight"])
    for rank, mine in enumerate(cut):
        # A rank's query heads find the KV heads of their groups here.
        queries = range(rank * config.num_attention_heads // size, (rank + 1) * config.num_attention_heads // size)
        heads = sorted({head * kv_heads // config.num_attention_heads for head in queries})
        rows = np.concatenate([whole[f"{layer}.k_proj.weight"][head * width : (head + 1) * width] for head in heads])
        np.testing.assert_array_equal(mine[f"{layer}.k_proj.weight"], rows)
        assert parts[rank].config.num_key_value_heads == len(heads)
    head = np.concatenate([mine["lm_head.weight"] for mine in cut])
    stored = whole["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
    np.testing.assert_array_equal(head[: config.vocab_size], stored)
    assert not head[config.vocab_size :].any() and len(head) % (1024 * size) == 0
