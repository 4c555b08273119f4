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

from tests.models.conftest import Shape, write_checkpoint
from tests.models.conftest import triton_device as triton_device
from tests.parallel.cuda_ranks import ROOT, run_ranks
from tests.parallel.ranks import Threads

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

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
    how = (triton_device, "gloo", "3")
    whole, split = (
        json.loads(run_ranks("cuda_runner_rank", folder, size, tmp_path / f"{size}.json", *how).read_text())
        for size in (0, ranks)
    )
    assert len(whole) >= 4 and split == whole


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_make_up_the_weights(tmp_path: Path, shape: str, size: int) -> None:
    """Every row and column is on a rank, and a KV head on all that share it."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from specdec_hal.models.transformers.tensor_parallel import divide

    folder = write_checkpoint(tmp_path / "checkpoint", SHAPES[shape])
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    config = whole.config
    parts = []
    for rank in range(size):
        part = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        divide(part, Threads(size).rank(rank))
        parts.append({name.replace(".part", ""): weight for name, weight in part.state_dict().items()})
    heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    for name, weight in whole.state_dict().items():
        mine = [part[name] for part in parts]
        if name.endswith(("q_proj.weight", "gate_proj.weight", "up_proj.weight")):
            assert torch.equal(torch.cat(mine), weight)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            assert torch.equal(torch.cat(mine, 1), weight)
        elif name.endswith(("k_proj.weight", "v_proj.weight")):
            for rank, rows in enumerate(mine):
                # A rank's query heads find the KV heads of their groups here.
                queries = range(rank * heads // size, (rank + 1) * heads // size)
                wanted = sorted({head * kv_heads // heads for head in queries})
                assert torch.equal(rows, torch.cat([weight[head * width : (head + 1) * width] for head in wanted]))
        elif name == "lm_head.weight":
            head = torch.cat(mine)
            assert torch.equal(head[: len(weight)], weight) and not head[len(weight) :].any()
            assert len(head) % (1024 * size) == 0
        else:
            assert all(torch.equal(one, weight) for one in mine)
