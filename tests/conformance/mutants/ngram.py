"""Section 6 got wrong: drafting from the history."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited

_edit = partial(Edit, "ngram")
_index = partial(Edit, "ngram_index")
_BOTH = "ngram_match hybrid_mtp_ngram"
_UPDATE, _RESET = "ngram_index_update", "ngram_index_reset"


_DECODING = "decoding = (seq_lens_encoder[:slots] <= 0) & (seq_lens_decoder[:slots] > 0)"
_ACTIVE = "(seq_lens_encoder[:slots] > 0) | (seq_lens_decoder[:slots] > 0)"
_GRANT = "seq_lens_this_time[b] = base[b] + min(max(room, 0), int(counts[b]))"
_PAD = partial(_edit, "draft_tokens[b, valid:s] = draft_tokens[b, valid - 1]")
_FORGET = partial(_edit, "index[reset_slots.view(np.uint8) != 0] = 0", within="ngram_index_reset")

_SEARCH = (
    edited("generated-before-prompt", _BOTH, "LEFTMOST searches the generated text before the prompt",
           _edit("(0, prompt_len), (prompt_len, len(text))", "(prompt_len, len(text)), (0, prompt_len)")),
    edited("rightmost-for-leftmost", _BOTH,
           "LEFTMOST takes the last occurrence: threads race, and the latest writer wins",
           _edit("start + int(found[0])", "start + int(found[-1])")),
    edited("leftmost-for-latest", _BOTH,
           "LATEST takes the first occurrence: old text is drafted again and rarely accepted",
           _edit("int(found[-1]), len(text)", "int(found[0]), len(text)")),
    edited("leftmost-query-crosses-into-the-prompt", _BOTH, "LEFTMOST: the query may begin in the prompt",
           _edit("policy is MatchPolicy.LATEST and behind_prompt > 0", "behind_prompt > 0")),
    edited(
        "latest-query-ends-at-the-prompt",
        _BOTH,
        "LATEST: the query must be generated: the first steps of a request draft nothing (version 1 of the contract)",
        _edit("text_len if policy is MatchPolicy.LATEST and behind_prompt > 0 else behind_prompt", "behind_prompt"),
    ),
    edited("query-of-a-prompt-alone", _BOTH, "LATEST: slots that have generated nothing look their prompt's end up",
           _edit("policy is MatchPolicy.LATEST and behind_prompt > 0", "policy is MatchPolicy.LATEST")),
    edited("shortest-query-first", _BOTH,
           "the shortest n-gram is tried first: drafts are of low quality, and nothing is wrong to see",
           _edit("for n in sizes: ...", "for n in reversed(sizes): ...")),
    edited("only-two-tokens-compared", _BOTH, "queries are compared by a hash of their first tokens",
           _edit("enumerate(query)", "enumerate(query[:2])")),
    edited("tokens-compared-in-32-bits", _BOTH, "ids are compared by their lower half",
           _edit("hit &= haystack[j : j + starts] == token",
                 "hit &= haystack[j : j + starts].astype(np.int32) == token.astype(np.int32)")),
)  # fmt: skip
_COUNT = (
    edited("drafts-past-the-limit", "ngram_match",
           "the limit leaves no room for the token after the drafts: they can never all be accepted",
           _edit("(max_dec_len - step_idx)[:slots] - 1", "(max_dec_len - step_idx)[:slots]")),
    edited("draft-token-num-ignored", "ngram_match", "a request that asked for fewer drafts (or none) gets K",
           _edit("np.minimum(draft_token_num[:slots], k)", "k")),
    edited("draft-token-num-not-clamped", "ngram_match", "more drafts than K are asked for, and the row is too short",
           _edit("np.minimum(draft_token_num[:slots], k)",
                 "np.where(draft_token_num[:slots] > k, 0, draft_token_num[:slots])")),
    edited("budget-forgets-later-slots", _BOTH,
           "nothing is kept back for the base tokens of later slots, and the batch is larger than the budget",
           _edit("token_budget - used - left - int(base[b])", "token_budget - used - int(base[b])")),
    edited("budget-forgets-prefill", _BOTH, "tokens of prefill chunks do not count",
           _edit("used += int(seq_lens_this_time[b])", "used += int(seq_lens_this_time[b]) if decoding[b] else 0",
                 given=_DECODING)),
    edited("budget-counts-idle-slots", _BOTH, "a base token is kept back for idle slots, too",
           _edit("used, left = 0, int(active.sum())", "active[:] = True\nused, left = 0, int(active.sum())")),
    edited("budget-forgets-later-prefill", _BOTH,
           "nothing is kept back for later slots at the start of their prompts, which have no cache yet",
           _edit(_ACTIVE, "seq_lens_decoder[:slots] > 0")),
    edited("budget-forgets-first-chunks", _BOTH, "tokens of prefill chunks count only where a chunk came before",
           _edit("used += int(seq_lens_this_time[b])",
                 "used += int(seq_lens_this_time[b]) if seq_lens_decoder[b] > 0 else 0", given=_ACTIVE)),
    edited("budget-counts-padding-slots", _BOTH, "a base token is kept back for slots that are not in the batch, too",
           _edit("used, left = 0, int(active.sum())",
                 "used, left = 0, int(((seq_lens_encoder > 0) | (seq_lens_decoder > 0)).sum())", given=_ACTIVE)),
    edited("prefill-slot-cleared", _BOTH, "slt of a slot in the middle of its prompt is overwritten",
           _edit("seq_lens_encoder[b] <= 0", "True")),
    edited("pads-with-a-draft-that-was-not-granted", _BOTH,
           "pad_to_max repeats the last draft found, and not the last one within the budget",
           _PAD("draft_tokens[b, valid:s] = draft_tokens[b, int(base[b] + counts[b]) - 1]", given=_GRANT)),
    edited("last-token-searched", _BOTH, "skip_last is not looked at: the last token is drafted",
           _edit("text[:-1] if skip_last else text", "text")),
    edited("query-without-the-last-token", _BOTH,
           "skip_last takes the last token from the query, too: the drafts begin with it",
           _edit("text[len(text) - n :]", "searched[len(searched) - n :]",
                 given="searched = text[:-1] if skip_last else text")),
    edited("cycles-of-what-is-searched", _BOTH,
           "drafts repeat what was searched: without the last token (skip_last), or the prompt alone (LEFTMOST)",
           _edit("np.resize(text[start:], count)", "np.resize(text[start:stop], count)", given="start, stop = match")),
    edited("mtp-drafts-under-the-budget", "hybrid_mtp_ngram", "the budget takes MTP drafts away",
           _edit(_GRANT, "seq_lens_this_time[b] = max(base[b] + min(room, int(counts[b])), 1)")),
    edited("hybrid-everybody-drafts-k", "hybrid_mtp_ngram",
           "a request that wants fewer drafts gets n-gram drafts up to K all the same",
           _edit("np.minimum(draft_token_num[:slots], s - 1)", "s - 1")),
    edited("hybrid-asks-the-request", "hybrid_mtp_ngram",
           "draft_token_num bounds the drafts though use_draft_token_num is off",
           _edit("np.minimum(draft_token_num[:slots], s - 1) if use_draft_token_num else s - 1",
                 "np.minimum(draft_token_num[:slots], s - 1)")),
    edited("hybrid-limit-forgets-mtp-drafts", "hybrid_mtp_ngram", "the length limit does not count the MTP drafts",
           _edit("counted = base if pre_ids is None else 1", "counted = 1")),
    edited("hybrid-counts-drafts-twice", "hybrid_mtp_ngram",
           "the length limit takes the drafts off a column of pre_ids, which counts them",
           _edit("counted = base if pre_ids is None else 1", "counted = base")),
    edited("pre-ids-after-generated-tokens", _BOTH,
           "pre_ids is searched after the generated tokens of token_ids_all, and not in their place",
           _edit("step_idx[b] if pre_ids is None else 0", "step_idx[b]")),
)  # fmt: skip
_INDEX = (
    edited("drafts-never-continue-the-first-token", "hybrid_mtp_ngram",
           "> for >=: with an index, LEFTMOST overlooks that the MTP drafts follow an n-gram at the prompt's end",
           _index("after - n >= prompt_len", "after - n > prompt_len")),
    edited("index-stale-after-reset", f"{_RESET} {_UPDATE} ngram_match",
           "entries from before a reset (a rollback, the slot's last request) stay: drafts from a stranger's text",
           _FORGET("index[reset_slots, :4] = 0")),
    edited("index-reset-of-all-slots", _RESET, "a new request resets everybody's index", _FORGET("index[:] = 0")),
    edited("index-reset-of-the-others", f"{_RESET} {_UPDATE}", "the mask is read the wrong way round",
           _FORGET("index[~reset_slots] = 0")),
    edited("index-one-token-behind", f"{_UPDATE} ngram_match", "the last accepted token is entered one step late",
           _edit("token_ids_all[b, :end]", "token_ids_all[b, : end - 1]", "ngram_index_update")),
    edited("index-compares-32-bits", f"{_UPDATE} ngram_match", "ids of an entry are compared by their lower halves",
           _index("np.array_equal(text[max(after - n, 0) : after], gram)",
                  "np.array_equal(text[max(after - n, 0) : after].astype(np.int32), gram.astype(np.int32))")),
    edited("index-skips-a-token-per-update", _UPDATE, "the n-gram across two updates is never entered",
           _index("range(max(seen, 1), len(text))", "range(seen + 1, len(text))")),
    edited("index-of-prefill-slots", _UPDATE, "the prompt is entered while it is still being read",
           _edit("np.flatnonzero((seq_lens_encoder <= 0) & (seq_lens_decoder > 0))", "range(len(index))")),
    edited("index-forgets-where-the-prompt-ends", f"{_UPDATE} ngram_match",
           "with the index, LEFTMOST lets an n-gram of the prompt continue with a generated token",
           _index("after < prompt_len and entry[1] == 0", "after <= prompt_len and entry[1] == 0"),
           _index("0 < in_prompt < prompt_len", "0 < in_prompt <= prompt_len")),
)  # fmt: skip

MUTANTS = (*_SEARCH, *_COUNT, *_INDEX)
