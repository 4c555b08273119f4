"""N-gram look-up at its edges and of older versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fastdeploy import kernels_drafts
from tests.fastdeploy.batches import Batch, equal, tensors
from tests.fastdeploy.lockstep import Buffer, Lockstep


def test_whole_buffers_of_more_slots_than_drafts(gpu: Any) -> None:
    text = np.zeros((4, 16), np.int64)
    text[0, :6] = [9, 1, 2, 3, 1, 2]
    column = [np.full((4, 1), n) for n in (4, 2)]
    one = np.ones(4, np.int32)
    given = tensors(text, *column, one * 3, np.zeros((2, 4), np.int64), one[:1], one * 0, one, column[0] * 9)
    gpu.ngram_match(*given, 3, 3)
    equal(given[5], [2])  # after 2, the prompt has one more token
    equal(given[4][0, :2], [0, 3])


def test_ngram_match_of_release_2_6(gpu: Any) -> None:
    """Column prompt_lens + step_idx has the newest token; prompts are looked up in a buffer of their own."""
    prompt = np.array([[5, 6, 7, 8], [1, 1, 1, 1]])
    text = np.array([[0, 0, 9, 5, 6, -1, -1, -1], [3, 4, 3, -1, -1, -1, -1, -1]])  # after 2 tokens, and after none
    column, one = [np.full((2, 1), n) for n in (4, 2)], np.ones(2, np.int32)
    shape = tensors(prompt, column[0], text, np.array([[2], [0]]), column[1], one * 3, np.zeros((2, 4), np.int64))
    for _ in range(2):  # planned, and run again
        given = [*shape, *tensors(one, one * 0, one, column[0] * 9)]
        assert gpu.ngram_match(*given, 3, 3)[0] is given[6]
        equal(given[7], [3, 2])
        equal(given[6][:, 1:3], [[7, 8], [4, 0]])


def test_ngram_match_of_2025(gpu: Any) -> None:
    """Prompt and generated tokens in two buffers; step_idx is the column of the newest token, which is in no text."""
    prompt, generated = np.array([[5, 6, 7, 8], [1, 1, 1, 1]]), np.array([[9, 5, 6, -1], [3, 4, 3, -1]])
    column, one = [np.full((2, 1), n) for n in (4, 2)], np.ones(2, np.int32)
    given = tensors(prompt, column[0], generated, column[1], one * 3, np.zeros((2, 4), np.int64), one, one * 0, one)
    gpu.ngram_match(*given, tensors(column[0] * 9)[0], 3, 3)
    equal(given[6], [3, 2])
    equal(given[5][:, 1:3], [[7, 8], [4, 0]])
    late = tensors(prompt, column[0], generated, column[0] * 0, one * 3, np.zeros((2, 4), np.int64), one, one * 0, one)
    gpu.ngram_match(*late, tensors(column[0] * 9)[0], 3, 3)
    equal(late[6], [1, 1])  # 9 and 3 alone: in no prompt


def test_a_budget_that_is_no_number_is_refused(gpu: Any, rng: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("INFER_WITH_REFERENCE_TOKENUM_THRESHOLD", "many")
    b = Batch(rng)
    given = tensors(b.text, b.prompt, b.step, b.slt, b.drafts, b.slt, b.enc, b.dec, b.limit)
    with pytest.raises(NotImplementedError, match="INFER_WITH_REFERENCE_TOKENUM_THRESHOLD: expected a number"):
        gpu.ngram_match(*given, 3, 3)


def test_hybrid_drafts_in_a_wider_buffer(gpu: Any, rng: Any) -> None:
    """The number of drafts is the call's: a chain's buffers are as wide as it drafts."""
    ops, drafted = Lockstep(vars(kernels_drafts), gpu), 0
    for most in (3, 4, 5) * 6:
        b = Batch(rng, slots=5, width=6)
        lens = Buffer(np.where(b.enc > 0, 0, np.minimum(b.slt, 2)).astype(np.int32))
        before, column = int(lens.array.sum()), rng.integers(-1, 20, (5, 1))
        text, own = rng.integers(0, 3, (5, 40)), rng.integers(0, 3, (5, 30))
        state = (text, b.prompt, own, column, np.zeros(5, np.int32), rng.integers(0, 3, (5, 6)))
        args = (*map(Buffer, state), lens, Buffer(b.dec), Buffer(column + 9), 3, 1, most)
        op, pad = [("hybrid_mtp_ngram", (False,)), ("hybird_mtp_ngram", ()), ("hybrid_mtp_ngram", (True,))][most - 3]
        ops.run(op, *args, *pad)
        drafted += int(lens.array.sum()) - before
    assert drafted > 30
