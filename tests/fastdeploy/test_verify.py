"""Verification by FastDeploy's worked examples and at its edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fastdeploy.batches import Batch, equal, tensor, tensors, values

ROUNDS = range(25)
TOPP, GREEDY, TARGET_MATCH = 0, 1, 2


def verify_args(b: Batch, strategy: int, targets: list[Any], reasoning: Any, column: bool = False) -> list[Any]:
    """The call's arguments; `column`: per-slot tensors as [N, 1]."""
    stale = b.rng.integers(0, 9, b.drafts.shape), b.rng.integers(0, 5, b.slots).astype(np.int32)

    def slots(array: Any) -> Any:
        return tensor(array.reshape(-1, 1) if column else array)

    top_p = np.full(b.slots, 0.9, np.float32)
    return [
        *tensors(*stale, b.drafts), *targets, slots(top_p), slots(b.stop), slots(b.enc), slots(b.slt), slots(b.ends),
        tensor(b.paused), slots(b.cu_out), slots(reasoning), slots(b.limit), slots(b.step),
        64, 2, strategy, False, False,
    ]  # fmt: skip


def one_slot(rng: Any) -> Batch:
    """With three drafts."""
    b = Batch(rng, slots=1, width=4)
    b.drafts, b.slt, b.enc = np.array([[7, 11, 12, 13]]), np.array([4], np.int32), np.array([0], np.int32)
    b.stop, b.paused, b.cu_out = np.array([False]), np.array([False]), np.array([0], np.int32)  # exactly real_bsz of it
    b.ends, b.step, b.limit = np.array([1]), np.array([5]), np.array([100])
    return b


CASES = [
    # targets, end tokens, step, limit, ids, len: the worked examples of FastDeploy's rule, counts exact
    ([11, 12, 99, 50], [1], 5, 100, [11, 12, 99, -1], 3),
    ([11, 12, 13, 50], [1], 5, 100, [11, 12, 13, 50], 4),
    ([11, 12, 13, 50], [12], 5, 100, [11, 12, -1, -1], 2),
    ([11, 12, 13, 50], [1, 2], 5, 7, [11, 1, -1, -1], 2),
    ([99, 12, 13, 50], [1, 2], 5, 6, [1, -1, -1, -1], 1),
    ([11, 1, 13, 50], [1], 5, 100, [11, 1, -1, -1], 2),
]


@pytest.mark.parametrize(("targets", "ends", "step", "limit", "ids", "count"), CASES)
def test_worked_examples(
    gpu: Any, rng: Any, targets: list[int], ends: list[int], step: int, limit: int, ids: list[int], count: int
) -> None:
    b = one_slot(rng)
    b.ends, b.step, b.limit = np.array(ends), np.array([step]), np.array([limit])
    args = verify_args(b, GREEDY, [tensor(np.array(targets)), None, None, None], np.zeros(1, np.int32))
    for _ in range(2):  # planned, and run again
        gpu.verify_draft_tokens(*args)
        equal(args[0], [ids])
        equal(args[1], [count])
    if limit == 100:  # no older call has limits
        gpu.verify_draft_tokens(*args[:15], *args[17:])
        equal(args[0], [ids])


@pytest.mark.parametrize(
    ("window", "third", "ids"),
    [(1, 99, [11, 12, 99, -1]), (2, 99, [50, -1, -1, -1]), (2, 13, [11, 12, 13, 60]), (3, 13, [50, -1, -1, -1])],
)
def test_a_second_choice_before_first_ones(gpu: Any, rng: Any, window: int, third: int, ids: list[int]) -> None:
    """Is taken where first choices fill the window after it."""
    b = one_slot(rng)
    choices = np.array([[50, 11], [12, 0], [third, 0], [60, 0]])
    scores = np.array([[0.5, 0.3]] * 4, np.float32)
    targets = [None, *tensors(choices, scores, np.ones(4, np.int32))]
    args = verify_args(b, TOPP, targets, np.zeros(1, np.int32))
    args[-4] = window
    gpu.verify_draft_tokens(*args)
    equal(args[0], [ids])


def test_the_older_update_takes_no_part_of_a_prompt(xpu: Any, rng: Any) -> None:
    b, one = Batch(rng, slots=2, width=3), np.ones(2, np.int64)
    state = [b.enc, b.dec, np.zeros(1, bool), b.drafts, b.slt, b.drafts, b.slt, b.stop, b.slt, b.paused, b.slt]
    with pytest.raises(NotImplementedError, match="prefill_one_step_stop"):
        xpu.unified_update_model_status(*tensors(*state, b.text, b.prompt, b.step, b.ends, one), False, True)


def test_slots_that_are_not_in_use_are_cleared(gpu: Any, rng: Any) -> None:
    b = Batch(rng, slots=4, width=3)
    b.slt = b.slt[:2]
    args = verify_args(b, GREEDY, [tensor(b.targets()), None, None, None], np.zeros(4, np.int32))
    gpu.verify_draft_tokens(*args)
    equal(args[0][2:], np.full((2, 3), -1))
    equal(args[1][2:], [0, 0])


def test_top_p_draws_differ_between_slots_and_calls(gpu: Any, rng: Any) -> None:
    b = Batch(rng, slots=16, width=1)
    b.enc[:], b.slt[:], b.stop[:], b.paused[:] = 0, 1, False, False
    b.step[:], b.limit[:], b.ends[:], b.cu_out = 5, 99, 999, np.arange(17, dtype=np.int32)
    ids = np.tile(np.arange(8), (16, 1))
    targets = [None, *tensors(ids, np.full((16, 8), 0.125, np.float32), np.full(16, 8, np.int32))]
    args = verify_args(b, TOPP, targets, np.zeros(16, np.int32))
    calls = []
    for again in range(4):
        if again == 2:  # the same values in new tensors
            args = verify_args(b, TOPP, [None, *(t.clone() for t in targets[1:])], np.zeros(16, np.int32))
        gpu.verify_draft_tokens(*args)
        calls.append(values(args[0])[:, 0].tolist())
    assert len({tuple(call) for call in calls}) == 4
    assert all(len(set(call)) > 3 for call in calls)
