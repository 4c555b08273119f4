"""Section 7: accepted tokens, packed, and their log-probabilities."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op, out
from specdec_hal.ops.spec import Relation

GATHER_ACCEPTED = op(
    "gather_accepted",
    7,
    "Pack the accepted tokens and say which logit row predicts each.",
    """
    `cu_batch_token_offset` is the exclusive prefix sum of accept_num (clamped to [0, S]) over slots < B with slt > 0
    [#offsets], so stale counts of idle slots do not enter [#stale]. Accepted token i of slot b has row
    cu_seqlens_q_output[b] + i [#rows] (the slot's one row if enc > 0) [#prefill], clamped to [0, R_cap) [#row-clamp].
    Of `logits` only the row count is used: nothing is copied. Tails are -1 [#tail]; what does not fit A_cap is not
    written [#overflow].
    """,
    inp("logits", "accept_tokens", "accept_num", "cu_seqlens_q_output", "seq_lens_encoder", "seq_lens_this_time"),
    out("token_ids", "rows", "cu_batch_token_offset"),
    relations=(Relation("B", "M"),),
)

TOKEN_LOGPROBS = op(
    "token_logprobs",
    7,
    "Log-probability and rank of each accepted token, with the top N-1 of its row.",
    """
    Column 0 is the chosen token, then the top N-1, logit descending, equal logits by ascending id [#columns]. logprob =
    (logit - row_max) - ln(total / 2^40), section 0's total by chunks at temperature 1, the difference 0 where the two
    are equal, the logarithm section 0's integer one [#logprob]; -inf is clipped to the lowest float32 [#clipped]. rank
    = number of entries >= the chosen one [#rank]. Only cu_batch_token_offset[B] entries are computed; the tail [#tail],
    and entries whose row or token is out of range [#out-of-range], get id -1, 0.0, -1. A row without a distribution
    (NaN, or all -inf) gives the chosen id, -1 for the others, the lowest float32 and rank -1 [#undefined]. N == 1 does
    no top-k work [#one-column]. Modes `raw` and `processed` are the runner's choice of which logits it passes.
    """,
    inp("logits", "rows", "token_ids", "cu_batch_token_offset"),
    out("ids", "logprobs", "ranks"),
    relations=(Relation("N", "V"),),
)

GATHER_DRAFT_LOGITS = op(
    "gather_draft_logits",
    7,
    "Put the target's first row of each prefilled slot before the draft model's rows, for their log-probabilities.",
    """
    logits are the draft model's, packed by slot: next_token_num[b] = 1 row of slot b < B if enc > 0, else slt clamped
    to [0, R_cap] [#next]. batch_token_num[b] = 2 if enc > 0, else the same number [#batch]. cu_next_token_offset and
    cu_batch_token_offset are their exclusive prefix sums, which stay at 2^31 - 1 once they reach it [#offsets].

    From row cu_batch_token_offset[b] of draft_logits on stand first_token_logits[b], the target's row that gave the
    slot's first token, and the slot's row of logits if enc > 0 [#prefill], else all rows of the slot [#decode]. A row
    that logits does not have or draft_logits has no room for is not moved [#capacity]; the rest of draft_logits is
    untouched [#untouched]. Source: FastDeploy's `speculate_get_logits`, which leaves the first offset to its caller.
    """,
    inp("logits", "first_token_logits", "seq_lens_this_time", "seq_lens_encoder"),
    inout("draft_logits"),
    out("next_token_num", "batch_token_num", "cu_next_token_offset", "cu_batch_token_offset"),
    relations=(Relation("B", "M"),),
)

INSERT_FIRST_TOKEN = op(
    "insert_first_token",
    7,
    "Pack the draft model's tokens as `gather_draft_logits` packs their rows.",
    """
    The rows of slot b < B, and where they stand, are those of `gather_draft_logits`. next_tokens holds a token for each
    row of the draft model's logits. Token ids that go with the rows of draft_logits: accept_tokens[b, 0] and the slot's
    next token if enc > 0 [#prefill], else the slot's next tokens [#decode]. A token that next_tokens does not have or
    draft_token_ids has no room for is not written [#capacity]; the rest of draft_token_ids is untouched [#untouched].
    Source: FastDeploy's `speculate_insert_first_token`, which takes the offsets that it follows.
    """,
    inp("accept_tokens", "next_tokens", "seq_lens_this_time", "seq_lens_encoder"),
    inout("draft_token_ids"),
    relations=(Relation("B", "M"),),
)

OPS = (GATHER_ACCEPTED, TOKEN_LOGPROBS, GATHER_DRAFT_LOGITS, INSERT_FIRST_TOKEN)
