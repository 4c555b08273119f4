"""Section 6 of the contract: look up the last tokens in the request's history."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.history import history_bounds
from specdec_hal.backends.reference.ngram_index import NgramIndex
from specdec_hal.ops.enums import MatchPolicy

BOOL = NDArray[np.bool_]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


def occurrences(haystack: I64, query: I64) -> I64:
    """Where the query's continuations start: after each occurrence with at least one following token."""
    starts = len(haystack) - len(query)
    if starts <= 0:
        return np.empty(0, np.int64)
    hit = np.ones(starts, np.bool_)
    for j, token in enumerate(query):
        hit &= haystack[j : j + starts] == token
    return np.flatnonzero(hit) + len(query)


def longest_query(text_len: int, prompt_len: int, policy: MatchPolicy) -> int:
    """Most tokens of a query: generated (and drafted) ones; LATEST continues into the prompt once there are any."""
    behind_prompt = text_len - prompt_len
    return text_len if policy is MatchPolicy.LATEST and behind_prompt > 0 else behind_prompt


def continuation(
    text: I64, prompt_len: int, query: I64, policy: MatchPolicy, index: NgramIndex | None
) -> tuple[int, int] | None:
    """(start, end) in `text` of the continuation of the match, or None.

    `text` is what is searched of prompt ++ generated (++ MTP drafts). `index` has seen it up to and without the MTP
    drafts.
    """
    if index is not None:
        return index.continuation(text, prompt_len, query, policy)
    if policy is MatchPolicy.LATEST:
        found = occurrences(text, query)
        return (int(found[-1]), len(text)) if len(found) else None
    for start, end in ((0, prompt_len), (prompt_len, len(text))):
        found = occurrences(text[start:end], query)
        if len(found):
            return start + int(found[0]), end
    return None


def ngram_match(
    token_ids_all: I64,
    prompt_lens: I64,
    step_idx: I64,
    draft_token_num: I32,
    seq_lens_encoder: I32,
    seq_lens_decoder: I32,
    max_dec_len: I64,
    draft_tokens: I64,
    seq_lens_this_time: I32,
    index: U8 | None,
    pre_ids: I64 | None,
    *,
    max_ngram_size: int,
    min_ngram_size: int,
    token_budget: int,
    match_policy: MatchPolicy,
    pad_to_max: bool,
    use_draft_token_num: bool,
    skip_last: bool,
    continue_cycles: bool,
) -> None:
    """Propose drafts from an earlier occurrence of the last n tokens."""
    k = draft_tokens.shape[1] - 1
    slots = len(seq_lens_this_time)
    base = np.ones(slots, np.int64)
    most = np.minimum(draft_token_num[:slots], k) if use_draft_token_num else k
    wanted = np.minimum(most, (max_dec_len - step_idx)[:slots] - 1)
    _propose(
        token_ids_all, prompt_lens, step_idx, seq_lens_encoder, seq_lens_decoder, draft_tokens, seq_lens_this_time,
        index, pre_ids, base, wanted, range(max_ngram_size, min_ngram_size - 1, -1), token_budget, match_policy,
        pad_to_max, skip_last, continue_cycles,
    )  # fmt: skip


def hybrid_mtp_ngram(
    token_ids_all: I64,
    prompt_lens: I64,
    step_idx: I64,
    draft_token_num: I32,
    seq_lens_encoder: I32,
    seq_lens_decoder: I32,
    max_dec_len: I64,
    draft_tokens: I64,
    seq_lens_this_time: I32,
    index: U8 | None,
    pre_ids: I64 | None,
    *,
    max_ngram_size: int,
    min_ngram_size: int,
    token_budget: int,
    match_policy: MatchPolicy,
    pad_to_max: bool,
    use_draft_token_num: bool,
    skip_last: bool,
    continue_cycles: bool,
) -> None:
    """Extend MTP drafts with an n-gram continuation."""
    s = draft_tokens.shape[1]
    slots = len(seq_lens_this_time)
    base = np.clip(seq_lens_this_time, 1, s).astype(np.int64)
    most = np.minimum(draft_token_num[:slots], s - 1) if use_draft_token_num else s - 1
    counted = base if pre_ids is None else 1
    wanted = np.minimum(most + 1 - base, (max_dec_len - step_idx)[:slots] - counted)
    _propose(
        token_ids_all, prompt_lens, step_idx, seq_lens_encoder, seq_lens_decoder, draft_tokens, seq_lens_this_time,
        index, pre_ids, base, wanted, range(max_ngram_size, min_ngram_size - 1, -1), token_budget, match_policy,
        pad_to_max, skip_last, continue_cycles,
    )  # fmt: skip


def _propose(
    token_ids_all: I64,
    prompt_lens: I64,
    step_idx: I64,
    seq_lens_encoder: I32,
    seq_lens_decoder: I32,
    draft_tokens: I64,
    seq_lens_this_time: I32,
    index: U8 | None,
    pre_ids: I64 | None,
    base: I64,
    wanted: I64,
    sizes: range,
    token_budget: int,
    policy: MatchPolicy,
    pad_to_max: bool,
    skip_last: bool,
    continue_cycles: bool,
) -> None:
    """Both ops: append up to `wanted` drafts after the `base` tokens of each decode slot, then grant by budget."""
    slots = len(seq_lens_this_time)
    row_width, s = token_ids_all.shape[1], draft_tokens.shape[1]
    counts = np.zeros(slots, np.int64)
    decoding = (seq_lens_encoder[:slots] <= 0) & (seq_lens_decoder[:slots] > 0)
    for b in np.flatnonzero(decoding & (wanted > 0)).tolist():
        prompt_len, end = history_bounds(row_width, prompt_lens[b], step_idx[b] if pre_ids is None else 0)
        tail = draft_tokens[b, 1 : base[b]]
        if pre_ids is not None:
            tail = pre_ids[b, : min(max(int(step_idx[b]), -1), pre_ids.shape[1] - 1) + 1]
        text = np.concatenate([token_ids_all[b, :end], tail])
        searched = text[:-1] if skip_last else text
        row = index[b] if index is not None and not skip_last and pre_ids is None else None
        seen = NgramIndex(row, sizes.stop + 1, sizes.start, end) if row is not None else None
        longest = longest_query(len(text), prompt_len, policy)
        for n in sizes:
            if n > longest:
                continue
            match = continuation(searched, prompt_len, text[len(text) - n :], policy, seen)
            if match is not None:
                start, stop = match
                count = int(wanted[b]) if continue_cycles else min(int(wanted[b]), stop - start)
                draft_tokens[b, base[b] : base[b] + count] = np.resize(text[start:], count)  # goes round if need be
                counts[b] = count
                break
    active = (seq_lens_encoder[:slots] > 0) | (seq_lens_decoder[:slots] > 0)
    used, left = 0, int(active.sum())
    for b in range(slots):
        left -= int(active[b])
        if decoding[b]:
            room = token_budget - used - left - int(base[b])
            seq_lens_this_time[b] = base[b] + min(max(room, 0), int(counts[b]))
        elif seq_lens_encoder[b] <= 0:
            seq_lens_this_time[b] = 0
        used += int(seq_lens_this_time[b])
    if pad_to_max:
        for b in np.flatnonzero(decoding).tolist():
            valid = int(seq_lens_this_time[b])
            draft_tokens[b, valid:s] = draft_tokens[b, valid - 1]
            seq_lens_this_time[b] = s


def ngram_index_update(
    index: U8,
    token_ids_all: I64,
    prompt_lens: I64,
    step_idx: I64,
    seq_lens_encoder: I32,
    seq_lens_decoder: I32,
    *,
    max_ngram_size: int,
    min_ngram_size: int,
) -> None:
    """Bring each slot's n-gram index up to date with its history."""
    for b in np.flatnonzero((seq_lens_encoder <= 0) & (seq_lens_decoder > 0)):
        prompt_len, end = history_bounds(token_ids_all.shape[1], prompt_lens[b], step_idx[b])
        NgramIndex(index[b], min_ngram_size, max_ngram_size, end).extend(token_ids_all[b, :end], prompt_len)


def ngram_index_reset(index: U8, reset_slots: BOOL) -> None:
    """Forget the history of the given slots."""
    index[reset_slots.view(np.uint8) != 0] = 0
