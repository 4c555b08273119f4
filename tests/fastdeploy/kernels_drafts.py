"""FastDeploy's ops that draft, in NumPy: n-gram lookup, and the bookkeeping of a draft model. See `kernels_rows`."""

from __future__ import annotations

import os
from typing import Any

from numpy.typing import NDArray

from tests.fastdeploy.kernels_tokens import flat
from tests.fastdeploy.lockstep import ANY

Array = NDArray[Any]


def _continuation(haystacks: list[list[int]], text: list[int], sizes: range, quota: int) -> list[int]:
    """What follows the leftmost earlier place of the longest of the last tokens: the prompt's before the text's own."""
    for n in sizes:
        if len(text) < n:
            continue
        wanted = text[-n:]
        for hay in haystacks:
            for i in range(len(hay) - n + 1):
                if hay[i : i + n] == wanted:
                    found = hay[i + n : i + n + quota]
                    if found:
                        return found
                    break
    return []


def _within(budget: int, tentative: list[int], kept: list[int], active: list[bool], decodes: list[bool]) -> list[int]:
    """Lengths of which no draft lets a step have more than `budget` tokens; each slot keeps `kept`."""
    out = list(tentative)
    for b in range(len(out)):
        if not decodes[b] or out[b] == 0:
            continue
        left = budget - sum(tentative[:b]) - sum(active[b + 1 :])
        out[b] = kept[b] if left <= kept[b] else min(tentative[b], left)
    return out


def _padded(row: Array, count: int, most: int) -> int:
    """Fill a row's missing drafts by its last token."""
    row[count : most + 1] = row[count - 1]
    return most + 1


def ngram_match(
    history: Array, prompts: Array, step: Array, draft_token_num: Array, drafts: Array, tt: Array, enc: Array,
    dec: Array, max_dec_len: Array, max_ngram_size: int, max_draft_tokens: int, pad_to_max: bool = False,
) -> None:  # fmt: skip
    prompts, step, wanted, tt, enc, dec, max_dec_len = flat(prompts, step, draft_token_num, tt, enc, dec, max_dec_len)
    slots = len(tt)
    found: list[list[int]] = [[] for _ in range(slots)]
    tentative = tt.tolist()
    for b in range(slots):
        if enc[b] > 0:
            continue
        if dec[b] == 0:
            tentative[b] = 0
            continue
        quota = min(int(wanted[b]), int(max_dec_len[b] - step[b] - 1))
        prompt = history[b, : prompts[b]].tolist()
        text = history[b, prompts[b] : prompts[b] + step[b]].tolist()
        if quota > 0:
            found[b] = _continuation([prompt, text], text, range(max_ngram_size, 0, -1), quota)
        tentative[b] = 1 + len(found[b])
    budget = int(os.environ.get("INFER_WITH_REFERENCE_TOKENUM_THRESHOLD", "128"))
    active = [bool(enc[b] > 0 or dec[b] > 0) for b in range(slots)]
    decodes = [bool(enc[b] <= 0 and dec[b] > 0) for b in range(slots)]
    lens = _within(budget, tentative, [1] * slots, active, decodes)
    for b in range(slots):
        if decodes[b]:
            drafts[b, 1:] = ANY
            drafts[b, 1 : lens[b]] = found[b][: lens[b] - 1]
            if pad_to_max:
                lens[b] = _padded(drafts[b], lens[b], max_draft_tokens)
        tt[b] = lens[b]


def hybrid_mtp_ngram(
    history: Array, prompts: Array, pre_ids: Array, step: Array, draft_token_num: Array, drafts: Array, tt: Array,
    dec: Array, max_dec_len: Array, max_ngram_size: int, min_ngram_size: int, max_draft_tokens: int, pad_to_max: bool,
) -> None:  # fmt: skip
    prompts, step, tt, max_dec_len = flat(prompts, step, tt, max_dec_len)
    slots = len(tt)
    found: list[list[int]] = [[] for _ in range(slots)]
    kept = tt.tolist()
    for b in range(slots):
        quota = min(max_draft_tokens - kept[b] + 1, int(max_dec_len[b] - step[b] - 1))
        if kept[b] > 0 and quota > 0:
            text = pre_ids[b, : step[b] + 1].tolist()
            haystacks = [history[b, : prompts[b]].tolist(), text[:-1]]
            found[b] = _continuation(haystacks, text, range(max_ngram_size, min_ngram_size - 1, -1), quota)
    tentative = [n + len(more) for n, more in zip(kept, found, strict=True)]
    budget = int(os.environ.get("SPEC_TOKENUM_THRESHOLD", "1024"))
    runs = [n > 0 for n in kept]
    for b, count in enumerate(_within(budget, tentative, kept, runs, runs)):
        drafts[b, kept[b] : kept[b] + len(found[b])] = ANY  # drafts beyond the budget are dropped
        drafts[b, kept[b] : count] = found[b][: count - kept[b]]
        tt[b] = _padded(drafts[b], count, max_draft_tokens) if pad_to_max and kept[b] > 0 else count


def hybird_mtp_ngram(input_ids: Array, input_ids_len: Array, *args: Any) -> None:
    hybrid_mtp_ngram(input_ids, input_ids_len, *args, False)


def draft_model_preprocess(
    drafts: Array, input_ids: Array, stop: Array, tt: Array, enc: Array, dec: Array, step: Array, running: Array,
    pre_ids: Array, tokens: Array, counts: Array, target_enc: Array, target_dec: Array, target_step: Array,
    target_stop: Array, max_dec_len: Array, target_drafts: Array, model_steps: int, is_prefill_node: bool,
) -> None:  # fmt: skip
    stop, tt, enc, dec, step, counts, target_dec, target_step, target_stop, max_dec_len = flat(
        stop, tt, enc, dec, step, counts, target_dec, target_step, target_stop, max_dec_len
    )
    target_drafts[:, 1:] = -1
    for b in range(len(drafts)):
        full = not is_prefill_node and target_step[b] + model_steps >= max_dec_len[b]
        stop[b] = target_stop[b] or full
        if stop[b]:
            tt[b] = dec[b] = enc[b] = step[b] = 0
        elif enc[b] > 0:
            pre_ids[b, 0] = input_ids[b, enc[b] - 1] = tokens[b, 0]
            tt[b], step[b] = enc[b], target_step[b] - 1
        else:
            n = tt[b] = counts[b]
            dec[b], step[b] = max(target_dec[b] - n, 0), target_step[b] - n
            drafts[b, :n] = pre_ids[b, step[b] : step[b] + n] = tokens[b, :n]
    running[...] = not stop[: len(drafts)].all()


def draft_model_update(
    next_tokens: Array, drafts: Array, pre_ids: Array, tt: Array, enc: Array, dec: Array, step: Array, cu: Array,
    stop: Array, running: Array, max_dec_len: Array, ends: Array, target_drafts: Array, max_seq_len: int, substep: int,
) -> None:  # fmt: skip
    next_tokens, tt, enc, dec, step, stop, max_dec_len = flat(next_tokens, tt, enc, dec, step, stop, max_dec_len)
    row = 0
    for b in range(len(tt)):
        if tt[b] <= 0:
            continue
        token = int(next_tokens[row])
        row += 1
        if stop[b]:
            drafts[b, 0] = target_drafts[b, substep + 1] = -1
            tt[b] = enc[b] = 0
            continue
        if enc[b] > 0:
            dec[b] += enc[b]
            enc[b] = 0
            pre_ids[b, 1] = drafts[b, 0] = token
            step[b] += 1
            target_drafts[b, substep + 1] = token if step[b] < max_dec_len[b] else -1
        elif step[b] >= max_dec_len[b] - 1:
            target_drafts[b, substep + 1] = -1
        else:
            dec[b] += tt[b]
            step[b] += tt[b]
            drafts[b, 0] = target_drafts[b, substep + 1] = pre_ids[b, step[b]] = token
        tt[b] = 1
    running[...] = (~stop[: len(tt)] & (tt > 0)).any()


def draft_model_postprocess(target_drafts: Array, tt: Array, enc: Array, stop: Array) -> None:
    tt, enc, stop = flat(tt, enc, stop)
    for b in range(len(tt)):
        if stop[b]:
            tt[b] = 0
        elif enc[b] == 0:
            tt[b] = (target_drafts[b] != -1).sum()
