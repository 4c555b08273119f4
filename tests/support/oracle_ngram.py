"""Section 6 by brute force: compare the query with every place of the text. See `oracle_slots`."""

from __future__ import annotations

from typing import Any

from specdec_hal.ops import MatchPolicy

Inputs = dict[str, Any]


def lookup(
    prompt: list[int], rest: list[int], sizes: range, policy: MatchPolicy, skip: int = 0, cycles: int = 0
) -> list[int]:
    """All tokens that follow the match of the last n of `rest` (LATEST: of both), n from the longest size down.

    The last `skip` tokens of `rest` are not searched. `cycles`: drafts to make, one by one.
    """
    searched = rest[: len(rest) - skip]
    known = prompt + rest if policy is MatchPolicy.LATEST and rest else rest
    for n in sizes:
        if n > len(known):
            continue
        query = known[len(known) - n :]
        haystacks = [prompt + searched] if policy is MatchPolicy.LATEST else [prompt, searched]
        for before, haystack in zip((0, len(prompt)), haystacks, strict=False):
            columns = [at for at in range(len(haystack)) if haystack[at : at + n] == query and at + n < len(haystack)]
            if columns:
                at = columns[-1] if policy is MatchPolicy.LATEST else columns[0]
                text = prompt + rest
                for i in range(cycles):
                    text.append(text[before + at + n + i])
                return text[len(prompt + rest) :] if cycles else haystack[at + n :]
    return []


def _propose(a: Inputs, hybrid: bool) -> dict[str, Any]:
    s = a["draft_tokens"].shape[1]
    k, length = s - 1, a["token_ids_all"].shape[1]
    drafts, slt = a["draft_tokens"].tolist(), a["seq_lens_this_time"].tolist()
    enc, dec = a["seq_lens_encoder"].tolist(), a["seq_lens_decoder"].tolist()
    slots = range(len(slt))
    base, cnt = [1] * len(slt), [0] * len(slt)
    for b in slots:
        if enc[b] > 0 or dec[b] == 0:
            continue
        ori = base[b] = min(max(slt[b], 1), s) if hybrid else 1
        step, limit = int(a["step_idx"][b]), int(a["max_dec_len"][b])
        most = min(int(a["draft_token_num"][b]), k) if a["use_draft_token_num"] else k
        history = a.get("pre_ids")
        q = min(most + 1 - ori, limit - step - (ori if history is None else 1))
        if q <= 0:
            continue
        row = a["token_ids_all"][b].tolist()
        prompt_len = int(a["prompt_lens"][b])
        prompt, gen = row[:prompt_len], row[prompt_len : min(prompt_len + step, length)]
        rest = gen + drafts[b][1:ori] if history is None else history[b].tolist()[: step + 1]
        sizes = range(a["max_ngram_size"], a["min_ngram_size"] - 1, -1)
        found = lookup(prompt, rest, sizes, a["match_policy"], int(a["skip_last"]), q * a["continue_cycles"])[:q]
        cnt[b] = len(found)
        drafts[b][ori : ori + len(found)] = found
    for b in slots:
        if enc[b] > 0:
            continue
        if dec[b] == 0:
            slt[b] = 0
            continue
        used = sum(slt[:b])
        left = sum(1 for later in slots if later > b and (enc[later] > 0 or dec[later] > 0))
        slt[b] = base[b] + min(max(a["token_budget"] - used - left - base[b], 0), cnt[b])
    for b in slots:
        if a["pad_to_max"] and enc[b] <= 0 and dec[b] > 0 and slt[b] >= 1:
            for column in range(slt[b], s):
                drafts[b][column] = drafts[b][slt[b] - 1]
            slt[b] = s
    return {"draft_tokens": drafts, "seq_lens_this_time": slt}


def ngram_match(a: Inputs) -> dict[str, Any]:
    return _propose(a, hybrid=False)


def hybrid_mtp_ngram(a: Inputs) -> dict[str, Any]:
    return _propose(a, hybrid=True)
