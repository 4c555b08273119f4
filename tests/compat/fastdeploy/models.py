"""FastDeploy's ops in NumPy, one slot after the other, as its sources describe them, without their known defects."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.compat.fastdeploy.chains import kernels_tokens
from tests.compat.fastdeploy.chains.kernels_rows import output_rows

Array = NDArray[Any]


def prefix(counts: list[int]) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def pre_process(input_ids: Array, slt: Array, drafts: Array, enc: Array) -> dict[str, Array]:
    tokens: list[int] = []
    slots: list[int] = []
    for b, n in enumerate(slt.tolist()):
        source = input_ids[b] if enc[b] > 0 or drafts.shape[1] == 0 else drafts[b]
        tokens += source[:n].tolist()
        slots += [b] * n
    rows = output_rows(slt, enc[: len(slt)]).tolist()
    return {
        "ids": np.array(tokens, np.int64), "slots": np.array(slots, np.int32), "cu_q": prefix(slt.tolist()),
        "cu_out": prefix(rows), "row_slots": np.repeat(np.arange(len(rows), dtype=np.int32), rows),
    }  # fmt: skip


def verify(
    drafts: Array, targets: Array, stop: Array, enc: Array, slt: Array, ends: list[int], paused: Array, cu_out: Array,
    reasoning: Array, limit: Array, step: Array, reject_all: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """Strategies GREEDY and TARGET_MATCH; rows of -1 and exact counts, as on XPU."""
    ids, lens = np.full(drafts.shape, -1, np.int64), np.zeros(len(drafts), np.int32)
    kernels_tokens.verify_draft_tokens(
        ids, lens, drafts, targets, None, None, None, np.ones(len(drafts)), stop, enc, slt, np.array(ends), paused,
        cu_out, reasoning, limit, step, 64, 2, kernels_tokens.TARGET_MATCH, reject_all, False,
    )  # fmt: skip
    return ids, lens


def lookup(gen: list[int], haystacks: list[list[int]], sizes: range, quota: int) -> list[int]:
    """What follows the leftmost occurrence of the longest suffix of `gen` that has one, haystack by haystack."""
    for n in sizes:
        if len(gen) < n:
            continue
        for hay in haystacks:
            for i in range(len(hay) - n + 1):
                if hay[i : i + n] == gen[-n:] and hay[i + n : i + n + quota]:
                    return hay[i + n : i + n + quota]
    return []


def ngram_match(
    text: Array, prompt: Array, step: Array, wanted: Array, drafts: Array, slt: Array, enc: Array, dec: Array,
    limit: Array, size: int, budget: int, pad: bool, pre_ids: Array | None = None,
) -> None:  # fmt: skip
    """As on CUDA: all slots look up, then the budget is dealt out in order.

    With `pre_ids` as in 2025: step is the column of the newest token there, which is in no haystack.
    """
    active = [enc[b] > 0 or dec[b] > 0 for b in range(len(slt))]
    used = 0
    for b in range(len(slt)):
        left = sum(active[b + 1 :])
        if enc[b] <= 0 and dec[b] == 0:
            slt[b] = 0
        elif enc[b] <= 0:
            p, s = int(prompt[b]), int(step[b])
            generated = (text[b, p : p + s] if pre_ids is None else pre_ids[b, : s + 1]).tolist()
            quota = min(int(wanted[b]), int(limit[b]) - s - 1)
            hay = [text[b, :p].tolist(), generated if pre_ids is None else generated[:-1]]
            found = lookup(generated, hay, range(size, 0, -1), quota) if quota > 0 else []
            room = max(budget - used - left - 1, 0)
            drafts[b, 1 : 1 + len(found)] = found  # what the budget takes away stays after the counted ones
            slt[b] = 1 + min(len(found), room)
        used += int(slt[b])
    if pad:
        for b in range(len(slt)):
            if enc[b] <= 0 and dec[b] > 0:
                drafts[b, slt[b] :] = drafts[b, slt[b] - 1]
                slt[b] = drafts.shape[1]


def hybrid_mtp_ngram(
    prompts: Array, prompt: Array, pre_ids: Array, column: Array, drafts: Array, slt: Array, limit: Array,
    sizes: range, most: int, budget: int, pad: bool,
) -> None:  # fmt: skip
    """As on CUDA, where `column` is that of the newest token of `pre_ids`: slots without tokens stay without."""
    used = 0
    for b in range(len(slt)):
        ori, left, c = int(slt[b]), int((slt[b + 1 :] > 0).sum()), int(column[b])
        if ori > 0:
            text = pre_ids[b, : c + 1].tolist()
            quota = min(most - ori + 1, int(limit[b]) - c - 1)
            hay = [prompts[b, : int(prompt[b])].tolist(), text[:-1]]
            found = lookup(text, hay, sizes, quota) if quota > 0 else []
            drafts[b, ori : ori + len(found)] = found  # what the budget takes away stays after the counted ones
            slt[b] = ori + min(len(found), max(budget - used - left - ori, 0))
        used += int(slt[b])
    for b in np.flatnonzero(slt > 0) if pad else ():
        drafts[b, slt[b] :] = drafts[b, slt[b] - 1]
        slt[b] = drafts.shape[1]


def draft_model_preprocess(a: dict[str, Any], steps: int, split: bool) -> None:
    """On the arrays of test_draft_model, in place."""
    a["target_drafts"][:, 1:] = -1
    for b in range(len(a["tt"])):
        step, count = int(a["target_step"][b, 0]), int(a["accept_num"][b])
        if a["target_stop"][b] or (not split and step + steps >= a["max_dec_len"][b, 0]):
            a["stop_flags"][b] = True
            a["tt"][b] = a["dec"][b] = a["enc"][b] = a["step_idx"][b] = 0
            continue
        a["stop_flags"][b] = False
        if a["enc"][b] > 0:
            token = a["accept_tokens"][b, 0]
            a["pre_ids"][b, 0] = a["input_ids"][b, a["enc"][b] - 1] = token
            a["tt"][b], a["step_idx"][b] = a["enc"][b], step - 1
        else:
            a["dec"][b], a["step_idx"][b], a["tt"][b] = a["target_dec"][b] - count, step - count, count
            for i in range(count):
                a["draft_tokens"][b, i] = a["pre_ids"][b, step - count + i] = a["accept_tokens"][b, i]
    a["running"][0] = not a["stop_flags"].all()


def draft_model_update(a: dict[str, Any], tokens: Array, substep: int) -> None:
    """On the arrays of test_draft_model, in place; but that nothing runs on once no slot has tokens."""
    row = 0
    for b in range(len(a["tt"])):
        if a["tt"][b] <= 0:
            continue
        token, step, limit = tokens[row], int(a["step_idx"][b, 0]), int(a["max_dec_len"][b, 0])
        row += 1
        if a["stop_flags"][b]:
            a["draft_tokens"][b, 0] = a["target_drafts"][b, substep + 1] = -1
            a["tt"][b] = a["enc"][b] = 0
            continue
        if a["enc"][b] > 0:
            a["dec"][b] += a["enc"][b]
            a["enc"][b] = 0
            a["step_idx"][b] = step + 1
            a["draft_tokens"][b, 0] = a["pre_ids"][b, 1] = token
            if step + 1 < limit:
                a["target_drafts"][b, substep + 1] = token
        elif step >= limit - 1:
            a["target_drafts"][b, substep + 1] = -1
        else:
            step += int(a["tt"][b])
            a["dec"][b] += a["tt"][b]
            a["step_idx"][b] = step
            a["draft_tokens"][b, 0] = a["target_drafts"][b, substep + 1] = a["pre_ids"][b, step] = token
        a["tt"][b] = 1
    a["running"][0] = (a["tt"] > 0).any()
