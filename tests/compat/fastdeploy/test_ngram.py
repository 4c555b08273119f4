"""N-gram look-up, against FastDeploy's semantics in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compat.fastdeploy import models
from tests.compat.fastdeploy.batches import Batch, equal, tensors

ROUNDS = range(30)


@pytest.mark.parametrize("budget", [None, 9, 14])
@pytest.mark.parametrize("pad", [None, False, True])
def test_ngram_match(gpu: Any, rng: Any, monkeypatch: Any, budget: int | None, pad: bool | None) -> None:
    if budget is not None:
        monkeypatch.setenv("INFER_WITH_REFERENCE_TOKENUM_THRESHOLD", str(budget))
    for _ in ROUNDS:
        b = Batch(rng)
        b.vocabulary = 3
        text = rng.integers(0, 3, b.text.shape)
        wanted = np.full(b.slots, b.width - 1, np.int32)
        given = tensors(
            text, b.prompt.reshape(-1, 1), b.step.reshape(-1, 1), wanted, b.drafts, b.slt, b.enc, b.dec, b.limit
        )
        size = int(rng.integers(1, 6))
        gpu.ngram_match(*given, size, b.width - 1, *([] if pad is None else [pad]))
        drafts, slt = b.drafts.copy(), b.slt.copy()
        models.ngram_match(
            text, b.prompt, b.step, wanted, drafts, slt, b.enc, b.dec, b.limit, size, budget or 128, bool(pad)
        )
        equal(given[5], slt)
        for slot, count in enumerate(slt):
            equal(given[4][slot, :count], drafts[slot, :count])


def test_whole_buffers_of_more_slots_than_drafts(gpu: Any) -> None:
    text = np.zeros((4, 16), np.int64)
    text[0, :6] = [9, 1, 2, 3, 1, 2]
    column = [np.full((4, 1), n) for n in (4, 2)]
    one = np.ones(4, np.int32)
    given = tensors(text, *column, one * 3, np.zeros((2, 4), np.int64), one[:1], one * 0, one, column[0] * 9)
    gpu.ngram_match(*given, 3, 3)
    equal(given[5], [2])  # behind 2, the prompt has one more token
    equal(given[4][0, :2], [0, 3])


def test_older_versions_are_refused_by_name(gpu: Any, rng: Any) -> None:
    b = Batch(rng)
    given = tensors(b.input_ids, b.prompt, b.text, b.prompt, b.step, b.slt, b.drafts, b.slt, b.enc, b.dec, b.limit)
    with pytest.raises(NotImplementedError, match=r"ngram_match .FastDeploy on .*13 arguments .* PR #7774"):
        gpu.ngram_match(*given, 3, 3)
    with pytest.raises(NotImplementedError, match="12 arguments with `pre_ids` are those of 2025"):
        gpu.ngram_match(*given[:3], *given[4:], 3, 3)


def test_a_budget_that_is_no_number_is_refused(gpu: Any, rng: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("INFER_WITH_REFERENCE_TOKENUM_THRESHOLD", "many")
    b = Batch(rng)
    given = tensors(b.text, b.prompt, b.step, b.slt, b.drafts, b.slt, b.enc, b.dec, b.limit)
    with pytest.raises(NotImplementedError, match="INFER_WITH_REFERENCE_TOKENUM_THRESHOLD: expected a number"):
        gpu.ngram_match(*given, 3, 3)


def hybrid_args(b: Batch, rng: Any) -> tuple[list[Any], Any]:
    """A batch behind a draft model, and how many tokens each slot has generated; idle slots have none."""
    b.slt = np.where(b.enc > 0, 0, b.slt).astype(np.int32)
    b.dec = np.where(b.slt > 0, b.dec, 0).astype(np.int32)
    text, step = rng.integers(0, 3, b.text.shape), rng.integers(1, 12, b.slots)
    b.drafts = rng.integers(0, 3, b.drafts.shape)
    index = step + b.slt - 2
    pre_ids = np.full(text.shape, -1, np.int64)
    for slot in range(b.slots):
        p, s, n = int(b.prompt[slot]), int(step[slot]), int(b.slt[slot])
        generated = [*text[slot, p : p + s], *b.drafts[slot, 1:n]]
        pre_ids[slot, : len(generated)] = generated
    wanted = np.full(b.slots, b.width - 1, np.int32)
    slots = (text, b.prompt.reshape(-1, 1), pre_ids, index.reshape(-1, 1), wanted)
    return tensors(*slots, b.drafts, b.slt, b.dec, b.limit + 20), step


def test_hybrid_mtp_ngram(gpu: Any, rng: Any) -> None:
    """As FastDeploy's: the last token ends the query, and is not searched."""
    differ = 0
    for _ in range(60):
        b = Batch(rng, width=6)
        given, step = hybrid_args(b, rng)
        gpu.hybrid_mtp_ngram(*given, 3, 1, 5, False)
        drafts, slt = given[5].numpy(), given[6].numpy()
        for slot in range(b.slots):
            n, p = int(b.slt[slot]), int(b.prompt[slot])
            if n == 0 or b.dec[slot] == 0:
                continue
            prompt = given[0].numpy()[slot, :p].tolist()
            text = given[2].numpy()[slot, : int(step[slot]) + n - 1].tolist()
            quota = min(6 - n, int(b.limit[slot]) + 20 - int(step[slot]) - n)
            found = models.lookup(text, [prompt, text[:-1]], range(3, 0, -1), quota) if quota > 0 else []
            assert drafts[slot, n : slt[slot]].tolist() == found
            assert slt[slot] == n + len(found)
            differ += found != (models.lookup(text, [prompt, text], range(3, 0, -1), quota) if quota > 0 else [])
    assert differ > 0


def test_hybrid_with_two_buffers_is_refused_by_name(gpu: Any, rng: Any) -> None:
    given, _ = hybrid_args(Batch(rng, width=3), rng)
    for op in (gpu.hybrid_mtp_ngram, gpu.hybird_mtp_ngram):
        with pytest.raises(NotImplementedError, match="12 arguments are those before PR #7849"):
            op(*given, 3, 1, 5)
