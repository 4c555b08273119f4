"""Section 7: accepted tokens, packed, and their log-probabilities."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op, out
from specdec_hal.ops.spec import Relation

GATHER_ACCEPTED = op(
    "gather_accepted",
    7,
    "Pack the accepted tokens and say which logit row predicts each.",
    """
    cu_batch_token_offset is the exclusive prefix sum of accept_num (clamped to [0, S]) over slots < B with slt > 0
    [#offsets]; stale counts of idle slots do not enter [#stale]. Accepted token i of slot b has row
    cu_seqlens_q_output[b] + i [#rows], or the slot's only row if enc > 0 [#prefill], clamped to [0, R_cap)
    [#row-clamp]. Only the number of rows of logits is used; nothing is copied. Tails are -1 [#tail]. Entries beyond
    A_cap are not written [#overflow].
    """,
    inp("logits", "accept_tokens", "accept_num", "cu_seqlens_q_output", "seq_lens_encoder", "seq_lens_this_time"),
    out("token_ids", "rows", "cu_batch_token_offset"),
)

TOKEN_LOGPROBS = op(
    "token_logprobs",
    7,
    "Log-probability and rank of each accepted token, with the top N-1 of its row.",
    """
    Column 0 is the chosen token. The top N-1 follow, logits descending, equal logits by ascending id [#columns].
    logprob = (logit - row_max) - ln(total / 2^40), with section 0's total at temperature 1 and its logarithm; the
    difference is 0 if the two are equal [#logprob]. -inf is clipped to the lowest float32 [#clipped]. rank is the
    number of entries >= the chosen one [#rank]. Only cu_batch_token_offset[B] entries are computed. The tail [#tail]
    and entries whose row or token is out of range [#out-of-range] get id -1, logprob 0.0 and rank -1. A row without a
    distribution (NaN, or all -inf) gives the chosen id, -1 for the others, the lowest float32 and rank -1 [#undefined].
    N == 1 does no top-k work [#one-column]. For the modes `raw` and `processed` the runner passes different logits.
    """,
    inp("logits", "rows", "token_ids", "cu_batch_token_offset"),
    out("ids", "logprobs", "ranks"),
    relations=(Relation("N", "V"),),
)

GATHER_DRAFT_LOGITS = op(
    "gather_draft_logits",
    7,
    "Pack the draft model's rows, each prefill slot's after the target's first row, for log-probabilities.",
    """
    logits are the draft model's, packed by slot. Slot b < B has next_token_num[b] rows: 1 if enc > 0, else slt clamped
    to [0, R_cap] [#next]. batch_token_num[b] is 2 if enc > 0, else the same number [#batch]. cu_next_token_offset and
    cu_batch_token_offset are their exclusive prefix sums, saturated at 2^31 - 1 [#offsets].

    The rows of slot b start at row cu_batch_token_offset[b] of draft_logits. If enc > 0 they are first_token_logits[b],
    the target's row that gave the slot's first token, then the slot's row of logits [#prefill]; otherwise all rows of
    the slot [#decode]. Rows that logits lacks or that do not fit draft_logits are not copied [#capacity]. The rest of
    draft_logits is untouched [#untouched]. Source: FastDeploy's `speculate_get_logits`, which leaves the first offset
    to its caller.
    """,
    inp("logits", "first_token_logits", "seq_lens_this_time", "seq_lens_encoder"),
    inout("draft_logits"),
    out("next_token_num", "batch_token_num", "cu_next_token_offset", "cu_batch_token_offset"),
)

INSERT_FIRST_TOKEN = op(
    "insert_first_token",
    7,
    "Pack the draft model's tokens as `gather_draft_logits` packs their rows.",
    """
    The rows of slots < B and their offsets are those of `gather_draft_logits`; next_tokens has a token for each row of
    the draft model's logits. If enc > 0, the slot's tokens are accept_tokens[b, 0] and its next token [#prefill];
    otherwise its next tokens [#decode]. Tokens that next_tokens lacks or that do not fit draft_token_ids are not
    written [#capacity]. The rest of draft_token_ids is untouched [#untouched]. Source: FastDeploy's
    `speculate_insert_first_token`, which receives the offsets.
    """,
    inp("accept_tokens", "next_tokens", "seq_lens_this_time", "seq_lens_encoder"),
    inout("draft_token_ids"),
)

OPS = (GATHER_ACCEPTED, TOKEN_LOGPROBS, GATHER_DRAFT_LOGITS, INSERT_FIRST_TOKEN)
