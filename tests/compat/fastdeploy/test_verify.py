"""Verification and status updates, against FastDeploy's semantics in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compat.fastdeploy import models
from tests.compat.fastdeploy.batches import Batch, equal, tensor, tensors, values
from tests.compat.fastdeploy.chains.kernels_tokens import naive_update_model_status, unified_update_model_status

ROUNDS = range(25)
TOPP, GREEDY, TARGET_MATCH = 0, 1, 2


def verify_args(b: Batch, strategy: int, judged: list[Any], reasoning: Any, column: bool = False) -> list[Any]:
    """The call's arguments; `column`: per-slot tensors as [N, 1]."""
    stale = b.rng.integers(0, 9, b.drafts.shape), b.rng.integers(0, 5, b.slots).astype(np.int32)

    def slots(array: Any) -> Any:
        return tensor(array.reshape(-1, 1) if column else array)

    top_p = np.full(b.slots, 0.9, np.float32)
    return [
        *tensors(*stale, b.drafts), *judged, slots(top_p), slots(b.stop), slots(b.enc), slots(b.slt), slots(b.ends),
        tensor(b.paused), slots(b.cu_out), slots(reasoning), slots(b.limit), slots(b.step),
        64, 2, strategy, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("strategy", [GREEDY, TARGET_MATCH])
@pytest.mark.parametrize("reject", [False, True])
@pytest.mark.parametrize("column", [False, True])
def test_verify_by_token(gpu: Any, rng: Any, strategy: int, reject: bool, column: bool) -> None:
    for _ in ROUNDS:
        b = Batch(rng)
        reasoning = (rng.random(b.slots) < 0.2).astype(np.int32)
        targets = b.targets()
        judged = [tensor(targets.reshape(-1, 1) if column else targets), None, None, None]
        args = verify_args(b, strategy, judged, reasoning, column)
        args[-2] = reject
        gpu.verify_draft_tokens(*args)
        ids, lens = models.verify(
            b.drafts, targets, b.stop, b.enc, b.slt, b.ends.tolist(), b.paused, b.cu_out, reasoning, b.limit, b.step,
            reject,
        )  # fmt: skip
        equal(args[0], ids)
        equal(args[1], lens)


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
    b = Batch(rng, slots=1, width=4)
    b.drafts, b.slt, b.enc = np.array([[7, 11, 12, 13]]), np.array([4], np.int32), np.array([0], np.int32)
    b.stop, b.paused, b.cu_out = np.array([False]), np.array([False]), np.array([0], np.int32)  # exactly real_bsz of it
    b.ends, b.step, b.limit = np.array(ends), np.array([step]), np.array([limit])
    args = verify_args(b, GREEDY, [tensor(np.array(targets)), None, None, None], np.zeros(1, np.int32))
    for _ in range(2):  # planned, and run again
        gpu.verify_draft_tokens(*args)
        equal(args[0], [ids])
        equal(args[1], [count])


def test_xpu_keeps_what_follows_the_emitted_tokens(xpu: Any, rng: Any) -> None:
    """Rows of slots that emit nothing stay whole; counts are exact everywhere."""
    for _ in ROUNDS:
        b = Batch(rng)
        targets, reasoning = b.targets(), np.zeros(b.slots, np.int32)
        args = verify_args(b, GREEDY, [tensor(targets), None, None, None], reasoning)
        before = values(args[0]).copy()
        for _ in range(2):
            xpu.verify_draft_tokens(*args)
            ids, lens = models.verify(
                b.drafts, targets, b.stop, b.enc, b.slt, b.ends.tolist(), b.paused, b.cu_out, reasoning, b.limit,
                b.step, False,
            )  # fmt: skip
            equal(args[0], np.where(np.arange(b.width) < lens[:, None], ids, before))
            equal(args[1], lens)


def test_slots_that_are_not_in_use_are_cleared(gpu: Any, rng: Any) -> None:
    b = Batch(rng, slots=4, width=3)
    b.slt = b.slt[:2]
    args = verify_args(b, GREEDY, [tensor(b.targets()), None, None, None], np.zeros(4, np.int32))
    gpu.verify_draft_tokens(*args)
    equal(args[0][2:], np.full((2, 3), -1))
    equal(args[1][2:], [0, 0])


def test_top_p_accepts_candidates_and_draws_among_them(gpu: Any, rng: Any) -> None:
    drawn = set()
    for _ in ROUNDS:
        b = Batch(rng, slots=6, width=4)
        ids = np.argsort(rng.random((max(b.rows, 1), b.vocabulary)), 1)[:, :3]
        scores = np.full(ids.shape, 0.3, np.float32)
        lens = rng.integers(1, 4, len(ids)).astype(np.int32)
        args = verify_args(b, TOPP, [None, *tensors(ids, scores, lens)], np.zeros(6, np.int32))
        gpu.verify_draft_tokens(*args)
        for slot in np.flatnonzero(values(args[1])):
            count = int(values(args[1])[slot])
            emitted, first = values(args[0])[slot, :count], b.cu_out[slot]
            for i, token in enumerate(emitted[:-1]):
                assert token == b.drafts[slot, i + 1]
            last = first + count - 1
            allowed = {*ids[last, : lens[last]].tolist(), int(b.ends[0])}
            assert int(emitted[-1]) in allowed | {int(b.drafts[slot, count]) if count < 4 else -1}
            drawn.add(ids[last].tolist().index(emitted[-1]) if emitted[-1] in ids[last] else -1)
    assert {0, 1, 2} <= drawn


def test_top_p_draws_differ_between_slots_and_calls(gpu: Any, rng: Any) -> None:
    b = Batch(rng, slots=16, width=1)
    b.enc[:], b.slt[:], b.stop[:], b.paused[:] = 0, 1, False, False
    b.step[:], b.limit[:], b.ends[:], b.cu_out = 5, 99, 999, np.arange(17, dtype=np.int32)
    ids = np.tile(np.arange(8), (16, 1))
    judged = [None, *tensors(ids, np.full((16, 8), 0.125, np.float32), np.full(16, 8, np.int32))]
    args = verify_args(b, TOPP, judged, np.zeros(16, np.int32))
    calls = []
    for again in range(4):
        if again == 2:  # the same values in new tensors
            args = verify_args(b, TOPP, [None, *(t.clone() for t in judged[1:])], np.zeros(16, np.int32))
        gpu.verify_draft_tokens(*args)
        calls.append(values(args[0])[:, 0].tolist())
    assert len({tuple(call) for call in calls}) == 4
    assert all(len(set(call)) > 3 for call in calls)


def test_a_call_without_length_limits(gpu: Any, rng: Any) -> None:
    b = Batch(rng, slots=5, width=4)
    targets = b.targets()
    args = verify_args(b, GREEDY, [tensor(targets), None, None, None], np.zeros(5, np.int32))
    gpu.verify_draft_tokens(*args[:15], *args[17:])
    ids, lens = models.verify(
        b.drafts, targets, b.stop, b.enc, b.slt, b.ends.tolist(), b.paused, b.cu_out, np.zeros(5), b.limit + 10**9,
        b.step, False,
    )  # fmt: skip
    equal(args[0], ids)
    equal(args[1], lens)


NAMES = (
    "enc", "dec", "running", "draft", "out", "num", "stop", "slt", "paused", "all", "prompt", "step", "ends", "limit",
)  # fmt: skip


def status(b: Batch) -> dict[str, Any]:
    """A batch after verification."""
    rng = b.rng
    num = np.where(b.stop | b.paused | (b.slt == 0), 0, rng.integers(1, b.width + 1, b.slots)).astype(np.int32)
    num = np.where(b.enc > 0, np.minimum(num, 1), num).astype(np.int32)
    out = rng.integers(0, b.vocabulary, b.drafts.shape)
    return {
        "enc": b.enc, "dec": b.dec, "running": np.zeros(1, np.bool_), "draft": b.drafts, "out": out, "num": num,
        "stop": b.stop, "slt": b.slt, "paused": b.paused, "all": b.text, "prompt": b.prompt, "step": b.step,
        "ends": b.ends, "limit": b.limit,
    }  # fmt: skip


def test_unified_update_model_status(gpu: Any, rng: Any) -> None:
    for _ in ROUNDS:
        b = Batch(rng)
        state = status(b)
        given = {name: tensor(state[name]) for name in NAMES}
        gpu.unified_update_model_status(*given.values())
        unified_update_model_status(*(state[name] for name in NAMES))
        for name in NAMES:
            kept = state["num"] if name == "out" else None
            if kept is None:
                equal(given[name], state[name])
            for slot, count in enumerate(kept if kept is not None else []):
                equal(given[name][slot, :count], state[name][slot, :count])


def test_unified_update_of_older_versions(xpu: Any, rng: Any) -> None:
    for naive in (False, True):
        for _ in ROUNDS:
            b = Batch(rng)
            state = status(b)
            before, decoding, ran = b.slt.copy(), b.enc <= 0, ~b.stop & ~b.paused
            rollback = tensor(np.full(b.slots, 7, np.int32))
            given = {name: tensor(state[name]) for name in NAMES}
            args = [*given.values()]
            if naive:
                state["num"][:] = 1
            xpu.unified_update_model_status(
                *args[:4], tensor(b.slt), *args[4:9], rollback, *args[9:], naive, b.width - 1
            )
            unified_update_model_status(*(state[name] for name in NAMES))
            running = ~state["stop"]
            slt = np.where(running, 1, 0) if naive else state["slt"]
            for name in ("enc", "dec", "num", "stop", "step", "running"):
                equal(given[name], state[name])
            equal(given["slt"], slt)
            equal(rollback, np.where(ran, np.where(running & decoding, before - state["num"], 0), 7))
    with pytest.raises(NotImplementedError, match="prefill_one_step_stop"):
        xpu.unified_update_model_status(*args[:4], tensor(b.slt), *args[4:9], rollback, *args[9:], False, True)


@pytest.mark.parametrize("column", [False, True])
def test_naive_update_model_status(gpu: Any, rng: Any, column: bool) -> None:
    for _ in ROUNDS:
        b = Batch(rng)
        tokens, num = rng.integers(0, 9, b.drafts.shape), rng.integers(0, 5, b.slots).astype(np.int32)
        drawn = rng.integers(0, b.vocabulary, max(b.rows, 1))
        given = tensors(tokens, num, b.slt, drawn.reshape(-1, 1) if column else drawn, b.cu_out)
        for _ in range(2):
            gpu.naive_update_model_status(*given)
            naive_update_model_status(tokens, num, b.slt, drawn, b.cu_out)
            for tensor_, wanted in zip(given, (tokens, num, b.slt), strict=False):
                equal(tensor_, wanted)
