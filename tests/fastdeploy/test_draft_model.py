"""The state of an MTP proposer's slots in buffers of any widths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import ArgumentError
from tests.fastdeploy import kernels_drafts
from tests.fastdeploy.batches import Batch, equal, tensor, tensors
from tests.fastdeploy.lockstep import Buffer, Lockstep

STATE = ("draft_tokens", "input_ids", "stop_flags", "tt", "enc", "dec", "step_idx", "running", "pre_ids")
TARGET = (
    "accept_tokens", "accept_num", "target_enc", "target_dec", "target_step", "target_stop", "max_dec_len",
    "target_drafts",
)  # fmt: skip
UPDATED = ("draft_tokens", "pre_ids", "tt", "enc", "dec", "step_idx")


def slots_after_a_step(rng: Any, width: int, widths: tuple[int, int, int]) -> dict[str, Any]:
    """A draft model's slots; `widths`: of its drafts, of the accepted tokens, and of the target's drafts."""
    b = Batch(rng, width=width)
    n, decoding = b.slots, (b.enc == 0) & (b.slt > 0)
    accepted = np.where(b.enc > 0, 1, np.where(decoding, rng.integers(1, width + 1, n), 0)).astype(np.int32)
    step = np.where(b.enc > 0, 1, accepted + rng.integers(1, 12, n)) * (accepted > 0)
    return {
        "draft_tokens": rng.integers(0, 40, (n, widths[0])), "input_ids": b.input_ids,
        "stop_flags": rng.random(n) < 0.5, "tt": b.slt, "enc": b.enc, "dec": b.dec,
        "step_idx": rng.integers(0, 9, (n, 1)), "running": np.array([True]), "pre_ids": np.full((n, 40), -1),
        "accept_tokens": rng.integers(0, 40, (n, widths[1])), "accept_num": accepted, "target_enc": b.enc,
        "target_dec": (b.dec + accepted).astype(np.int32), "target_step": step.reshape(-1, 1),
        "target_stop": b.stop | (accepted == 0), "max_dec_len": (step + rng.integers(0, 9, n)).reshape(-1, 1),
        "target_drafts": rng.integers(0, 40, (n, widths[2])),
    }  # fmt: skip


def test_an_xpus_draft_model_is_fed_prompts_first(xpu: Any, gpu: Any) -> None:
    """Slot 0 decodes, with one of two tokens accepted; slot 1 feeds a prompt of three."""
    lens, enc, accepted = [1, 3], [0, 3], [1, 1]
    state = [np.array(array, np.int32) for array in (lens, enc, [9, 0])]
    state += [np.zeros(2, bool), np.array(accepted, np.int32), np.array([2, 3], np.int32), np.array(enc, np.int32)]
    for shape in ((2,), (2, 1)):
        slots = tensors(*(array.reshape(shape) for array in state))
        adjusted = tensor(np.array([[10], [11], [12], [50], [51]], np.float32))
        equal(xpu.eagle_get_hidden_states(adjusted, *slots, 1)[:, 0], [10, 11, 12, 50])
        in_slot_order = tensor(np.array([[50], [51], [10], [11], [12]], np.float32))
        rows, count = gpu.eagle_get_hidden_states(in_slot_order, *slots, 1)
        equal(rows[: count.item(), 0], [50, 10, 11, 12])


@pytest.mark.parametrize("widths", [(5, 5, 5), (4, 5, 100), (100, 5, 6), (5, 100, 5), (100, 100, 4)], ids=str)
@pytest.mark.parametrize("split", [False, True])
def test_buffers_of_any_widths(gpu: Any, rng: Any, split: bool, widths: tuple[int, int, int]) -> None:
    """Each has its own stride, and what no column of a step is stays as it was."""
    ops, steps = Lockstep(vars(kernels_drafts), gpu), min(widths[2] - 1, 3)
    for _ in range(4):
        arrays = slots_after_a_step(rng, min(*widths[:2], 6), widths)
        slots = {name: Buffer(array) for name, array in arrays.items()}
        for _ in range(2):  # the second round is made of kept plans
            for name in ("enc", "dec", "tt"):
                slots[name].array[:] = arrays[name]
                slots[name].flush()
            ops.run("draft_model_preprocess", *(slots[name] for name in STATE + TARGET), steps, split)
            for substep in range(steps):
                tokens = Buffer(rng.integers(0, 40, (max(int((slots["tt"].array > 0).sum()), 1), 1)))
                ops.run(
                    "draft_model_update", tokens, *(slots[name] for name in UPDATED),
                    Buffer(np.zeros(len(arrays["tt"]) + 1, np.int32)), slots["stop_flags"], slots["running"],
                    slots["max_dec_len"], Buffer(np.zeros((1, 1), np.int64)), slots["target_drafts"], 64, substep,
                )  # fmt: skip


def test_older_versions_are_refused_by_name(gpu: Any, xpu: Any) -> None:
    some, wide = tensor(np.zeros(2, np.int32)), tensor(np.zeros(1, np.int64))
    with pytest.raises(NotImplementedError, match=r"draft_model_preprocess .FastDeploy.*26 arguments are XPU's"):
        xpu.draft_model_preprocess(*[some] * 22, 1, False, False, False)
    with pytest.raises(NotImplementedError, match=r"draft_model_update .FastDeploy.*17 arguments are those of 2025"):
        gpu.draft_model_update(*[wide] * 15, 64, 0)


def test_wrong_tensors_are_named_as_in_fastdeploy(gpu: Any, rng: Any) -> None:
    arrays = slots_after_a_step(rng, 5, (5, 5, 5))
    arrays["target_dec"] = arrays["target_dec"].astype(np.int64)
    with pytest.raises(ArgumentError, match=r"draft_model_preprocess.*argument 'target_model_seq_lens_decoder'"):
        gpu.draft_model_preprocess(*(tensor(arrays[name]) for name in STATE + TARGET), 2, False)
