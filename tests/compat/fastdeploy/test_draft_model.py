"""The state of an MTP proposer's slots, through its substeps, against FastDeploy's semantics in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from specdec_hal.errors import ArgumentError
from tests.compat.fastdeploy import models
from tests.compat.fastdeploy.batches import Batch, equal, tensor, tensors

STATE = ("draft_tokens", "input_ids", "stop_flags", "tt", "enc", "dec", "step_idx")
TARGET = ("accept_tokens", "accept_num", "target_enc", "target_dec", "target_step", "target_stop", "max_dec_len")


class Slots:
    """A draft model's slots after a step of the target: NumPy arrays, and the layer's tensors of the same values."""

    def __init__(self, rng: Any, *, width: int = 5, widths: tuple[int, int, int] = (5, 5, 5)) -> None:
        """`widths`: of the draft model's drafts, of the accepted tokens, and of the target's drafts."""
        b = self.batch = Batch(rng, width=width)
        n = self.count = b.slots
        decoding = (b.enc == 0) & (b.slt > 0)
        accepted = np.where(b.enc > 0, 1, np.where(decoding, rng.integers(1, width + 1, n), 0)).astype(np.int32)
        step = np.where(b.enc > 0, 1, accepted + rng.integers(1, 12, n)) * (accepted > 0)
        arrays: dict[str, Any] = {
            "draft_tokens": rng.integers(0, 40, (n, widths[0])), "input_ids": b.input_ids,
            "stop_flags": rng.random(n) < 0.5,
            "tt": b.slt, "enc": b.enc, "dec": b.dec, "step_idx": rng.integers(0, 9, (n, 1)), "running": [True],
            "pre_ids": np.full((n, 40), -1),
            "accept_tokens": rng.integers(0, 40, (n, widths[1])), "accept_num": accepted,
            "target_enc": 0 * b.enc, "target_dec": b.dec + width, "target_step": step.reshape(n, 1),
            "target_stop": b.stop, "max_dec_len": (step + rng.integers(1, 9, n)).reshape(n, 1),
            "target_drafts": rng.integers(0, 40, (n, widths[2])),
        }  # fmt: skip
        self.arrays = {name: np.array(array) for name, array in arrays.items()}
        self.given = dict(zip(self.arrays, tensors(*self.arrays.values()), strict=True))

    def preprocess(self, ops: Any, steps: int, split: bool) -> None:
        names = (*STATE, "running", "pre_ids", *TARGET, "target_drafts")
        ops.draft_model_preprocess(*(self.given[name] for name in names), steps, split)
        models.draft_model_preprocess(self.arrays, steps, split)

    def update(self, ops: Any, tokens: Any, substep: int) -> None:
        given, cu, ends = self.given, tensor(np.zeros(self.count + 1, np.int32)), tensor(np.zeros((1, 1), np.int64))
        own = (given[name] for name in ("draft_tokens", "pre_ids", "tt", "enc", "dec", "step_idx"))
        state = (given[name] for name in ("stop_flags", "running", "max_dec_len"))
        ops.draft_model_update(tensor(tokens), *own, cu, *state, ends, given["target_drafts"], 64, substep)
        models.draft_model_update(self.arrays, tokens.reshape(-1), substep)

    def compare(self) -> None:
        for name, array in self.arrays.items():
            np.testing.assert_array_equal(self.given[name].numpy(), array, name)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("platform", ["gpu", "xpu"])
def test_the_substeps_of_a_proposer(layer: Any, request: Any, rng: Any, platform: str, split: bool) -> None:
    ops = request.getfixturevalue(platform)
    drafted = 0
    for steps in (1, 2, 4) * 8:
        slots = Slots(rng)
        slots.preprocess(ops, steps, split)
        slots.compare()
        for substep in range(steps):
            tokens = rng.integers(0, 40, (max(int((slots.arrays["tt"] > 0).sum()), 1), 1))
            slots.update(ops, tokens, substep)
            slots.compare()
        drafted += int((slots.arrays["target_drafts"][:, 1:] >= 0).sum())
        dec = np.where(slots.arrays["target_stop"], 0, 1).astype(np.int32)
        given = slots.given
        lens, enc = tensors(dec, 0 * dec)
        ops.draft_model_postprocess(given["target_drafts"], lens, enc, given["target_stop"])
        drafts = slots.arrays["target_drafts"][:, 1:]
        equal(lens, np.where(slots.arrays["target_stop"], 0, 1 + (drafts >= 0).sum(1)))
    assert drafted > 50


WIDTHS = [(4, 5, 100), (100, 5, 6), (5, 100, 5), (5, 4, 6), (100, 100, 4)]


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("platform", ["gpu", "xpu"])
def test_buffers_of_any_widths(layer: Any, request: Any, rng: Any, platform: str, widths: tuple[int, int, int]) -> None:
    """Each has its own stride, and what no column of a step is stays as it was."""
    ops, steps = request.getfixturevalue(platform), min(widths[2] - 1, 3)
    for _ in range(4):
        slots = Slots(rng, width=min(*widths[:2], 6), widths=widths)
        for again in range(2):  # the second round is made of kept plans
            slots.preprocess(ops, steps, False)
            slots.compare()
            for substep in range(steps):
                tokens = rng.integers(0, 40, (max(int((slots.arrays["tt"] > 0).sum()), 1), 1))
                slots.update(ops, tokens, substep)
                slots.compare()
            for name in ("enc", "dec", "tt"):
                if not again:
                    slots.arrays[name][:] = getattr(slots.batch, {"tt": "slt"}.get(name, name))
                    slots.given[name].set_value(slots.arrays[name])


def test_a_flag_of_no_dimension(gpu: Any, rng: Any) -> None:
    """not_need_stop as paddle.to_tensor(True) makes it."""
    slots = Slots(rng)
    slots.given["running"] = paddle.to_tensor(False)
    slots.arrays["target_stop"][:] = False
    slots.arrays["max_dec_len"][:] = 99
    slots.given |= {name: tensor(slots.arrays[name]) for name in ("target_stop", "max_dec_len")}
    slots.preprocess(gpu, 1, False)
    assert slots.given["running"].shape == [] and slots.given["running"].item()


def test_a_slot_that_has_accepted_nothing_runs(gpu: Any, rng: Any) -> None:
    slots = Slots(rng)
    for name, value in (("accept_num", 0), ("target_stop", False), ("max_dec_len", 99)):
        slots.arrays[name][:] = value
        slots.given[name] = tensor(slots.arrays[name])
    slots.preprocess(gpu, 2, False)
    slots.compare()
    assert slots.arrays["running"][0]


def test_the_drafts_of_substeps_are_what_hybrid_mtp_ngram_continues(gpu: Any, rng: Any) -> None:
    """Its text, of the target's tokens and the drafts, is `pre_ids`, and step_idx is the column of the last draft."""
    text, steps = [3, 1, 2, 9, 1, 2, 9, 1], 2
    slots = Slots(rng)
    accepted = np.zeros((slots.count, 5), np.int64)
    accepted[:, 0] = text[-1]
    for name, value in (
        ("accept_num", 1), ("accept_tokens", accepted), ("enc", 0), ("target_stop", False), ("max_dec_len", 99),
        ("target_step", len(text)), ("target_dec", len(text)), ("pre_ids", [*text[:-1], *[-1] * 33]),
    ):  # fmt: skip
        slots.arrays[name][:] = value
        slots.given[name] = tensor(slots.arrays[name])
    slots.preprocess(gpu, steps, False)
    for substep, token in enumerate((2, 9)):
        slots.update(gpu, np.full(slots.count, token), substep)
    slots.compare()
    equal(slots.given["pre_ids"][:, : len(text) + 2], [[*text, 2, 9]] * slots.count)
    history, one = np.zeros((slots.count, 40), np.int64), np.ones(slots.count, np.int32)
    history[:, : len(text)] = text
    given = slots.given
    lens = tensor(one * 3)
    gpu.hybrid_mtp_ngram(
        *tensors(history, np.zeros((slots.count, 1), np.int64)), given["pre_ids"], given["step_idx"], tensor(one),
        given["target_drafts"], lens, tensor(one * len(text)), given["max_dec_len"], 3, 1, 4, False,
    )  # fmt: skip
    equal(lens, one * 5)
    equal(given["target_drafts"][:, 1:], [[2, 9, 1, 2]] * slots.count)


def test_of_xpu_s_older_version_the_name_is_known(xpu: Any, rng: Any) -> None:
    some = tensor(np.zeros(2, np.int32))
    with pytest.raises(NotImplementedError, match=r"draft_model_preprocess .FastDeploy.*26 arguments are XPU's"):
        xpu.draft_model_preprocess(*[some] * 22, 1, False, False, False)


def test_wrong_tensors_are_named_as_in_fastdeploy(gpu: Any, rng: Any) -> None:
    slots = Slots(rng)
    slots.given["target_dec"] = tensor(slots.arrays["target_dec"].astype(np.int64))
    with pytest.raises(ArgumentError, match=r"draft_model_preprocess.*argument 'target_model_seq_lens_decoder'"):
        slots.preprocess(gpu, 2, False)


def test_an_older_update_is_refused_by_name(gpu: Any) -> None:
    t = tensor(np.zeros(1, np.int64))
    with pytest.raises(NotImplementedError, match=r"draft_model_update .FastDeploy.*17 arguments are those of 2025"):
        gpu.draft_model_update(*[t] * 15, 64, 0)
