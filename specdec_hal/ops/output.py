"""Section 7: accepted tokens, packed, and their log-probabilities."""

from __future__ import annotations

from specdec_hal.ops.build import inp, op, out
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
    Column 0 is the chosen token, then the top N-1, logit descending, equal logits by ascending id [#columns].
    logprob = (logit -
    row_max) - ln(total mass / 2^40) at temperature 1, the difference 0 where the two are equal, the logarithm section
    0's integer one [#logprob]; -inf is clipped to the lowest float32 [#clipped]. rank = number of entries >= the
    chosen one [#rank]. Only cu_batch_token_offset[B] entries are computed; the tail [#tail], and entries whose row or
    token is out of range [#out-of-range], get id -1, 0.0, -1. A row without a distribution (NaN, or all -inf) gives
    the chosen id, -1 for the others, the lowest float32 and rank -1 [#undefined]. N == 1 does no top-k work
    [#one-column]. Modes `raw` and `processed` are the runner's choice of which
    logits it passes.
    """,
    inp("logits", "rows", "token_ids", "cu_batch_token_offset"),
    out("ids", "logprobs", "ranks"),
    relations=(Relation("N", "V"),),
)

OPS = (GATHER_ACCEPTED, TOKEN_LOGPROBS)
