"""Passes of trained drafters with Triton's kernels, against their PyTorch operators."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.models import load_model
from specdec_hal.models.dflash import dflash_shapes, read_dflash
from specdec_hal.models.drafter import Blocks, read_drafter_weights, target_of
from specdec_hal.plugin.model import ForwardBatch, Segment
from tests.models.conftest import Shape, write_checkpoint
from tests.support.dflash import Drafter

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")
pytest.importorskip("triton", reason="Triton is not installed")

TARGET = Shape(vocab_size=24, hidden_size=24, intermediate_size=20, num_hidden_layers=5, head_dim=8, eos_token_id=23,
               num_nextn_predict_layers=0)  # fmt: skip


SECOND = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 8, "selector_top_k": 5}


@pytest.mark.parametrize("second", [{}, SECOND])
def test_a_block_is_the_same_with_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: dict[str, int]
) -> None:
    """Of two slots, the second one idle in the first step: the context of both steps, and blocks of three."""
    from specdec_hal.models import draft_pass
    from specdec_hal.models.triton_kernels.launcher import Launcher

    model: Any = load_model(write_checkpoint(tmp_path / "target", TARGET, seed=2), "transformers")
    drafter = Drafter(vocab_size=24, hidden_size=24, taps=(1, 3, 5), head_dim=8, second=second).randomize(4)
    folder = drafter.write_zlab(tmp_path / "drafter", 5)
    config = read_dflash(folder, target_of(model, "dflash"))

    def logits() -> Any:
        weights = read_drafter_weights(folder, dflash_shapes(config), config)
        block = draft_pass.BlockPass(model, config, weights, Blocks(2, 64), 3)
        rng = np.random.default_rng(0)
        for positions in ({0: (0, 5)}, {0: (5, 2), 1: (0, 3)}):
            fed, masked, end, count = [], [], 0, len(positions)
            for slot, (position, length) in positions.items():
                fed.append(Segment(slot, end, length, position))
                masked.append(Segment(slot, 4 * len(masked), 4, position + length))
                end += length
            hidden = torch.tensor(rng.standard_normal((end, 24)), dtype=torch.float32)
            ids = np.tile([7, drafter.mask, drafter.mask, drafter.mask], count)
            given = ForwardBatch(rng.integers(0, 24, end), fed), hidden, ForwardBatch(ids, masked)
            block.forward_block(*given, np.full(4 * count, -1, np.int32))
        rows = np.zeros((2, block.width))
        return np.stack([np.nan_to_num(block.host_draft_logits(n, range(2), rows), neginf=-9) for n in range(3)])

    expected = logits()
    monkeypatch.setattr(draft_pass, "kernels_of", lambda device: partial(Launcher, device))
    found = logits()
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(found, expected, atol=1e-4)
