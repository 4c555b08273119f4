"""Section 7 got wrong: accepted tokens and their log-probabilities."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited, undefined

_edit = partial(Edit, "output")
_GATHER, _LOGPROBS = "gather_accepted", "token_logprobs"
_DRAFTS, _FIRST = "gather_draft_logits", "insert_first_token"

MUTANTS = (
    edited("stale-count-of-an-idle-slot", _GATHER,
           "accept_num of a slot without tokens enters the offsets: tokens of the last step are sent again",
           _edit("min(max(int(accept_num[b]), 0), accept_tokens.shape[1]) if seq_lens_this_time[b] > 0 else 0",
                 "min(max(int(accept_num[b]), 0), accept_tokens.shape[1])")),
    edited("rows-are-numbered-through", _GATHER,
           "the row of an accepted token is its own number: right as long as nothing is rejected",
           _edit("rows[a : a + fits] = np.clip(first + steps, 0, last_row)",
                 "rows[a : a + fits] = np.clip(a + steps, 0, last_row)")),
    edited("prefill-has-many-rows", _GATHER, "tokens of a prefill slot step through rows of which it has one",
           _edit("np.zeros(fits, np.int64) if seq_lens_encoder[b] > 0 else np.arange(fits)", "np.arange(fits)")),
    edited("accept-num-not-clamped", _GATHER, "a count beyond S takes the next slot's tokens",
           _edit("min(max(int(accept_num[b]), 0), accept_tokens.shape[1])", "max(int(accept_num[b]), 0)"),
           _edit("accept_tokens[b, :fits]", "np.resize(accept_tokens[b], fits)")),
    edited("offsets-of-what-fits", _GATHER,
           "the offsets stop at the capacity, so that the caller cannot see what is missing",
           _edit("a += count", "a += fits", given="token_ids[a : a + fits] = accept_tokens[b, :fits]")),
    undefined(_GATHER, "token_ids", -1, "the tail of token_ids is uninitialised (FastDeploy)"),
    undefined(_GATHER, "rows", -1, "the tail of rows is uninitialised"),
    edited("rank-from-the-sorted-order", _LOGPROBS,
           "rank is the place in a sorted list: equal logits get different ranks",
           _edit("np.count_nonzero(row >= row[token])",
                 "1 + int(np.flatnonzero(np.argsort(-row, kind='stable') == token)[0])")),
    edited("infinity-minus-infinity", _LOGPROBS, "a logit of +inf gives NaN",
           _edit("below(row[ids[a]], row_max, np.float32(1))", "row[ids[a]] - row_max")),
    edited("logarithm-of-the-library", _LOGPROBS, "the logarithm of the platform's library",
           _edit("ln_ratio(totals)[:, None]", "np.log(totals[:, None].astype(np.float32) / np.float32(2**40))")),
    edited("chosen-token-left-out-of-the-top", _LOGPROBS, "the chosen token is not repeated among the top ones",
           _edit("first_of_order(row, np.partition(row, -top)[-top])[:top]",
                 '(order := np.argsort(-row, kind="stable"))[order != token][:top]',
                 given="np.count_nonzero(row >= row[token])")),
    edited("logit-row-after-the-last", _LOGPROBS, "<= for <: the row after the last is read as the last",
           _edit("0 <= r < logits.shape[0]", "0 <= r <= logits.shape[0]"),
           _edit("logits[r]", "logits[min(r, len(logits) - 1)]", _LOGPROBS)),
    edited("nan-logprobs", _LOGPROBS, "a NaN row gives NaN log-probabilities",
           _edit("logprobs[a] = LOWEST", "logprobs[a] = np.nan")),
    *(
        undefined(_LOGPROBS, output, fill, f"the tail of {output} is uninitialised (FastDeploy)")
        for output, fill in (("ids", -1), ("logprobs", 0), ("ranks", -1))
    ),
    edited("all-rows-of-a-chunk", f"{_DRAFTS} {_FIRST}",
           "a prefilled slot is taken to have a row for each token of its chunk",
           _edit("np.where(prefill, 1, seq_lens_this_time.clip(0, row_count))",
                 "seq_lens_this_time.clip(0, row_count)")),
    edited("first-row-after-the-others", _DRAFTS, "the target's row stands after the draft model's",
           _edit("draft_logits[dest : dest + 1] = first_token_logits[b]\ndest += 1",
                 "draft_logits[dest + 1 : dest + 2] = first_token_logits[b]", within=_DRAFTS, given="dest = dests[b]")),
    edited("rows-beyond-the-batch", _DRAFTS,
           "the rest of draft_logits is cleared, a write of the vocabulary's width for every row that nobody reads",
           _edit("next_token_num[:] = rows", "next_token_num[:] = rows\ndraft_logits[dests[-1] :] = 0", within=_DRAFTS,
                 given="sources, dests = _offsets(rows), _offsets(reported)")),
    edited("first-token-by-the-base-token", _FIRST,
           "the last accepted token is inserted, which is another one where a chunk gave several",
           _edit("accept_tokens[b, 0]", "accept_tokens[b, -1]")),
    edited("tokens-stand-by-row", _FIRST,
           "the draft model's tokens keep their places, and overwrite what prefilled slots have inserted",
           _edit("dest = dests[b]", "dest = sources[b]", within=_FIRST,
                 given="sources, dests = _offsets(rows), _offsets(reported)")),
)  # fmt: skip
