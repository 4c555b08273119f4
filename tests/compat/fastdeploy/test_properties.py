"""What holds for every batch: of verification, and of a step's bookkeeping."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.compat.fastdeploy import gpu
from tests.compat.fastdeploy.batches import Batch, equal, tensor, tensors, values
from tests.compat.fastdeploy.test_verify import verify_args

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(0, 4))
def test_free_slots_after_those_in_use_change_nothing(seed: int, free: int) -> None:
    b = Batch(np.random.default_rng(seed))
    targets, reasoning = tensor(b.targets()), np.zeros(b.slots, np.int32)
    args = verify_args(b, 1, [targets, None, None, None], reasoning)
    used = values(args[10]), values(args[13])
    padded = [
        tensor(np.concatenate([values(arg), np.repeat(values(arg)[:1], free, 0)]))
        if hasattr(arg, "numpy") and arg.shape[:1] == [b.slots] and i not in (3, 10, 11, 13)
        else arg
        for i, arg in enumerate(args)
    ]
    gpu.verify_draft_tokens(*args)
    gpu.verify_draft_tokens(*padded)
    equal(padded[0][: b.slots], values(args[0]))
    equal(padded[1][: b.slots], values(args[1]))
    assert not values(padded[1])[b.slots :].any()
    equal(args[10], used[0])
    equal(args[13], used[1])


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_what_is_accepted_is_what_the_target_says(seed: int) -> None:
    """All emitted tokens but a replaced last one are the target's own; each slot emits at least one, or none at all."""
    b = Batch(np.random.default_rng(seed))
    targets = b.targets()
    args = verify_args(b, 2, [tensor(targets), None, None, None], np.zeros(b.slots, np.int32))
    gpu.verify_draft_tokens(*args)
    for slot, count in enumerate(values(args[1]).tolist()):
        silent = b.stop[slot] or b.paused[slot] or b.slt[slot] == 0
        assert (count == 0) == bool(silent) and count <= max(b.rows_per_slot[slot], 0)
        own = targets[b.cu_out[slot] : b.cu_out[slot] + count]
        emitted = values(args[0])[slot, :count]
        assert (emitted[:-1] == own[:-1]).all()
        assert count == 0 or emitted[-1] in (own[-1], b.ends[0])
        assert b.step[slot] + count <= b.limit[slot] or count == 0


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_packed_rows_are_those_of_their_slots(seed: int) -> None:
    b = Batch(np.random.default_rng(seed))
    out = gpu.speculate_pre_process(b.tokens, *tensors(b.input_ids, b.slt, b.drafts, b.enc, b.dec))
    ids, slots, cu_q, _, cu_out, row_slots, count = map(values, out)
    assert count[0] == cu_out[-1] == len(row_slots[row_slots >= 0])
    for row, slot in enumerate(slots):
        source = b.input_ids if b.enc[slot] > 0 else b.drafts
        assert ids[row] == source[slot, row - cu_q[slot]]
