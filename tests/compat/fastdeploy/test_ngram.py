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
    equal(given[5], [2])  # after 2, the prompt has one more token
    equal(given[4][0, :2], [0, 3])


def test_an_older_version_is_refused_by_name(gpu: Any, rng: Any) -> None:
    b = Batch(rng)
    given = tensors(b.input_ids, b.prompt, b.text, b.prompt, b.step, b.slt, b.drafts, b.slt, b.enc, b.dec, b.limit)
    with pytest.raises(NotImplementedError, match=r"ngram_match .FastDeploy on .*13 arguments .* PR #7774"):
        gpu.ngram_match(*given, 3, 3)


def test_ngram_match_of_2025(gpu: Any, rng: Any) -> None:
    """Prompt and generated tokens in two buffers, and step_idx a column of the latter."""
    for _ in ROUNDS:
        b = Batch(rng)
        prompts, pre_ids = rng.integers(0, 3, b.input_ids.shape), rng.integers(0, 3, (b.slots, 30))
        wanted = np.full(b.slots, b.width - 1, np.int32)
        state = (wanted, b.drafts, b.slt, b.enc, b.dec, b.limit.reshape(-1, 1))
        given = tensors(prompts, b.prompt.reshape(-1, 1), pre_ids, b.step.reshape(-1, 1), *state)
        gpu.ngram_match(*given, 3, b.width - 1)
        drafts, slt = b.drafts.copy(), b.slt.copy()
        models.ngram_match(
            prompts, b.prompt, b.step, wanted, drafts, slt, b.enc, b.dec, b.limit, 3, 128, False, pre_ids
        )
        equal(given[6], slt)
        for slot, count in enumerate(slt):
            equal(given[5][slot, :count], drafts[slot, :count])


def test_a_budget_that_is_no_number_is_refused(gpu: Any, rng: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("INFER_WITH_REFERENCE_TOKENUM_THRESHOLD", "many")
    b = Batch(rng)
    given = tensors(b.text, b.prompt, b.step, b.slt, b.drafts, b.slt, b.enc, b.dec, b.limit)
    with pytest.raises(NotImplementedError, match="INFER_WITH_REFERENCE_TOKENUM_THRESHOLD: expected a number"):
        gpu.ngram_match(*given, 3, 3)


def hybrid_args(b: Batch, rng: Any) -> dict[str, Any]:
    """Arrays of a batch after a draft model, whose history has nothing to do with the target's."""
    b.slt = np.where(b.enc > 0, 0, b.slt).astype(np.int32)
    prompts = rng.integers(0, 3, (b.slots, 40))
    pre_ids = rng.integers(0, 3, (b.slots, int(rng.integers(20, 60))))
    column = rng.integers(-1, 20, b.slots)
    return {
        "prompts": prompts, "prompt": b.prompt, "pre_ids": pre_ids, "column": column,
        "drafts": rng.integers(0, 3, b.drafts.shape), "slt": b.slt, "limit": column + rng.integers(0, 9, b.slots),
    }  # fmt: skip


def hybrid_tensors(b: Batch, a: dict[str, Any]) -> list[Any]:
    columns = [a[name].reshape(-1, 1) for name in ("prompt", "column", "limit")]
    asked = np.zeros(b.slots, np.int32)
    return tensors(a["prompts"], columns[0], a["pre_ids"], columns[1], asked, a["drafts"], a["slt"], b.dec, columns[2])


@pytest.mark.parametrize("budget", [None, 12])
@pytest.mark.parametrize("pad", [None, False, True])
def test_hybrid_mtp_ngram(gpu: Any, rng: Any, monkeypatch: Any, budget: int | None, pad: bool | None) -> None:
    """With 13 arguments, and with the 12 before PR #7849, under both of its names."""
    if budget is not None:
        monkeypatch.setenv("SPEC_TOKENUM_THRESHOLD", str(budget))
    ops = (gpu.hybrid_mtp_ngram, gpu.hybird_mtp_ngram)
    drafted = 0
    for turn in range(60):
        b = Batch(rng, width=6)
        a = hybrid_args(b, rng)
        given, least, most = hybrid_tensors(b, a), int(rng.integers(1, 3)), int(rng.integers(3, 6))
        before = int(b.slt.sum())
        ops[turn % 2](*given, 3, least, most, *([] if pad is None else [pad]))
        models.hybrid_mtp_ngram(**a, sizes=range(3, least - 1, -1), most=most, budget=budget or 1024, pad=bool(pad))
        equal(given[6], a["slt"])
        for slot, count in enumerate(a["slt"]):
            equal(given[5][slot, :count], a["drafts"][slot, :count])
        drafted += int(a["slt"].sum()) - before
    assert drafted > 30


def test_a_kept_hybrid_plan_sees_new_lengths(gpu: Any, rng: Any) -> None:
    b = Batch(rng, slots=5, width=6)
    given = hybrid_tensors(b, hybrid_args(b, rng))
    for _ in range(3):
        a = hybrid_args(Batch(rng, slots=5, width=6), rng)
        a["pre_ids"] = given[2].numpy()
        for position, name in {0: "prompts", 5: "drafts", 6: "slt"}.items():
            given[position][:] = tensors(a[name])[0]
        a |= {"prompt": given[1].numpy()[:, 0], "column": given[3].numpy()[:, 0], "limit": given[8].numpy()[:, 0]}
        gpu.hybrid_mtp_ngram(*given, 3, 1, 5, False)
        models.hybrid_mtp_ngram(**a, sizes=range(3, 0, -1), most=5, budget=1024, pad=False)
        equal(given[6], a["slt"])
