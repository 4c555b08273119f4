"""Where the kernels over slots take another way: aligned rows, points all over a vocabulary, rows without mass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.ops.inputs.generate import generate, hostile
from tests.support.bits import assert_same_bits
from tests.support.gpu import run_on_gpu
from tests.support.running import run

pytestmark = pytest.mark.gpu

MOVES = ("adjust_batch", "recover_batch", "gather_next_token")


def run_aligned(op: str, inputs: dict[str, Any], backend: Any) -> np.ndarray:
    """`out`, with every tensor in an allocation of its own, as frameworks hand them out."""
    torch = pytest.importorskip("torch")
    call = {n: torch.from_numpy(v).cuda() if isinstance(v, np.ndarray) else v for n, v in inputs.items()}
    getattr(backend, op)(**call)
    return call["out"].cpu().numpy()


@pytest.mark.parametrize("make", [generate, hostile])
@pytest.mark.parametrize("width", [4, 12, 256, 2048, 2052, 5000])
@pytest.mark.parametrize("op", MOVES)
def test_aligned_rows(op, width, make, cuda):
    """Of float32: several a block, one a block, several blocks each."""
    for seed in range(12):
        inputs = make(op, seed, D=width, dtype="float32")
        assert_same_bits({"out": run_aligned(op, inputs, cuda)}, run(op, inputs), (width, seed))


def one_slot_each(vocabulary: int, probs: np.ndarray, drafts: np.ndarray) -> dict[str, Any]:
    """REJECTION with a draft (-1: none) and two rows of probabilities for every slot."""
    m = len(drafts)
    slt = np.where(drafts < 0, 1, 2).astype(np.int32)
    zeros = np.zeros(m, np.int64)
    return {
        "draft_tokens": np.stack([zeros, drafts], axis=1), "target_probs": probs, "seed": np.arange(m) * 977,
        "prompt_lens": zeros, "step_idx": np.arange(m), "max_dec_len": zeros + (1 << 40),
        "stop_flags": np.zeros(m, np.bool_), "is_block_step": np.zeros(m, np.bool_),
        "seq_lens_encoder": np.zeros(m, np.int32), "seq_lens_decoder": np.ones(m, np.int32), "seq_lens_this_time": slt,
        "cu_seqlens_q_output": np.concatenate([[0], np.cumsum(slt)]).astype(np.int32),
        "reasoning_status": np.zeros(m, np.int32), "end_tokens": np.array([vocabulary], np.int64),
        "accept_tokens": np.zeros((m, 2), np.int64), "accept_num": np.zeros(m, np.int32), "strategy": "REJECTION",
        "verify_window": 1, "accept_policy": "NORMAL", "end_at_limit": False,
    }  # fmt: skip


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 31, 1023, 1025, 8191, 50_001, 151_936, 262_144])
@pytest.mark.parametrize("slots", [3, 70, 300])
def test_a_draw_finds_every_place(slots, vocabulary, cuda):
    """All mass of a row on one token, at the ends of what warps and blocks take and anywhere else."""
    slots = min(slots, max(3, (1 << 25) // vocabulary))
    rng = np.random.default_rng([slots, vocabulary])
    edges = [0, vocabulary - 1, vocabulary // 2, 1, 2, 3, vocabulary - 2, vocabulary - 3, vocabulary // 16]
    tokens = np.clip([*edges, *rng.integers(0, vocabulary, slots)][:slots], 0, vocabulary - 1)
    probs = np.zeros((slots, vocabulary), np.float32)
    probs[np.arange(slots), tokens] = 0.25
    inputs = one_slot_each(vocabulary, probs, np.full(slots, -1))
    actual = run_on_gpu("verify_draft_tokens", inputs, cuda)
    np.testing.assert_array_equal(actual["accept_tokens"][:, 0], tokens)


@pytest.mark.parametrize("vocabulary", [5, 700, 50_001, 262_144])
def test_rows_without_residual_mass(vocabulary, cuda):
    """The argmax of p: of all tokens where p has no mass, and the rejected draft where nothing else has any."""
    slots = 40
    rng = np.random.default_rng(vocabulary)
    drafts = rng.integers(0, vocabulary, slots)
    drafts[::4] = -1
    slt = np.where(drafts < 0, 1, 2)
    first = np.concatenate([[0], np.cumsum(slt)])
    probs = np.zeros((first[-1], vocabulary), np.float32)
    for b in np.flatnonzero(drafts >= 0):
        probs[first[b], drafts[b]] = 0.5
        probs[first[b] + 1] = np.float32(2**-41)  # too little for a unit of mass
    inputs = one_slot_each(vocabulary, probs, drafts)
    expected = run("verify_draft_tokens", inputs)
    assert_same_bits(run_on_gpu("verify_draft_tokens", inputs, cuda), expected, vocabulary)
    rejected = (drafts >= 0) & (expected["accept_num"] == 1)
    assert 3 < rejected.sum() < 27 and (expected["accept_tokens"][rejected, 0] == drafts[rejected]).all()
