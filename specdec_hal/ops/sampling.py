"""Section 3: from logits to the target model's tokens."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op, out, out_per_row
from specdec_hal.ops.enums import LogprobMode, Purpose
from specdec_hal.ops.spec import AttrSpec, Relation

_MOST = 2**63 - 1
_ROW_PARAMS = ("row_temperature", "row_top_p", "row_top_k", "row_min_p")

BUILD_SAMPLING_PARAMS = op(
    "build_sampling_params",
    3,
    "Copy each slot's sampling parameters to its output rows.",
    """
    Row r gets the parameters of slot `batch_id_per_token_output[r]` [#params]. Its position is prompt_lens + step_idx +
    r - cu_seqlens_q_output[slot] [#position]. Tail rows (slot outside [0, B)) get 1, 1, 0, 0, seed 0, position -1
    [#tail].

    With infer_seed, rows get FastDeploy's seeds and `seed` is not read: row i of slot b gets (infer_seed[b] +
    row_seed_step * i) mod seed_modulus [#row-seeds]. Then infer_seed[b] of every slot < B, idle or not, becomes
    (infer_seed[b] + seed_increment) mod seed_modulus [#advance]. Sums wrap at 64 bits; results are in [0, seed_modulus)
    [#seed-wrap]. Slots >= B are untouched [#padding].
    """,
    inp("temperature", "top_p", "top_k", "min_p", "seed", "prompt_lens", "step_idx"),
    inp("cu_seqlens_q_output", "batch_id_per_token_output"),
    out(*_ROW_PARAMS, "row_seed", "position"),
    inout("infer_seed", optional=True),
    attrs=(
        AttrSpec("row_seed_step", int, "Difference between the seeds of neighbouring rows of a slot.", 0, 0, _MOST),
        AttrSpec("seed_increment", int, "Added to infer_seed by each call.", 0, 0, _MOST),
        AttrSpec("seed_modulus", int, "Seeds are taken modulo this.", _MOST, 1, _MOST),
    ),
)

APPLY_PENALTIES = op(
    "apply_penalties",
    3,
    "Apply penalties, bad tokens and minimum lengths to each output row, as plain decoding would.",
    """
    The history of row i of a slot is prompt ++ generated ++ draft_tokens[b, 1..i] [#history]. For every distinct token
    of the history with logit l, in float32, each operation rounded: l > 0 ? l / r : l * r, r the repetition penalty
    [#repetition]. Then, if the token occurs n > 0 times in the generated part (drafts included): l - (n * frequency),
    then l - presence [#counts]. Bad tokens become -inf [#bad-tokens], and so do `end_tokens` in rows with step_idx + i
    < `min_dec_len` [#min-length]. History entries outside [0, V) are ignored [#out-of-vocabulary]. Tail rows are
    untouched [#tail]. The work is proportional to the history, not to V.
    """,
    inout("logits"),
    inp("token_ids_all", "prompt_lens", "step_idx", "draft_tokens", "cu_seqlens_q_output"),
    inp("batch_id_per_token_output", "repetition", "frequency", "presence", "bad_tokens", "end_tokens", "min_dec_len"),
)

_KEPT = """
    If the temperature is not above 0, only the argmax is kept [#greedy]. Otherwise masses follow section 0; a logit
    equal to the row's maximum has t = 0 exactly, so its mass is 2^40 even if the maximum is inf [#maximum]. A row with
    0 < row_top_k < V, row_top_p < 1 or row_min_p > 0 (NaN: 1) has a filter [#filter], which keeps, in this order: the
    row_top_k largest logits (0 = all), equal logits by ascending id [#top-k]; by (logit descending, id ascending), the
    smallest prefix whose mass reaches top_p (NaN: 1) of the total that top_k keeps, or without top_k of the total by
    chunks [#top-p], and everything if no prefix reaches it [#unreached]; tokens with mass >= min_p of the largest
    [#min-p]. At least one token is always kept [#survivor]. -inf logits have mass 0 and are never drawn [#forbidden].
"""

SAMPLE_TARGET = op(
    "sample_target",
    3,
    "Draw the target model's token, or a proposer's draft, for every output row.",
    f"""{_KEPT}
    The draw uses the row's seed and position. In a row with a filter it is section 0's draw from the kept set in
    ascending id order [#draw]. Without a filter, r = high64(U64 * the row's total). The chunk is the first whose
    inclusive sum of S exceeds r [#chunk-draw]; the token is its first with (inclusive prefix sum of M) * W >> 40 > r -
    (sum of S before the chunk) [#inner-draw]. The purpose is SAMPLE for tokens of the target model and DRAFT for drafts
    that strategy REJECTION verifies, since its tests must not depend on how drafts were drawn [#purpose]. A row of only
    -inf, or with any NaN, gives -1 [#undefined]; so do tail rows (position < 0) [#tail].

    logprobs is the natural logarithm of the token's probability. RAW: as in `token_logprobs` for this row and token
    [#raw]. PROCESSED: ((logit - row_max) * (1 / temperature)) - ln(total of the draw / 2^40), three float32 operations;
    the product is 0 if the two are equal, the result 0 if the temperature is not above 0 [#processed]. ranks, in both
    modes: the number of the row's entries >= the token's [#rank]. Rows that give -1 have the lowest float32 and rank -1
    [#no-logprob]; tail rows have 0.0 and -1 [#logprob-tail].
    """,
    inp("logits", *_ROW_PARAMS, "row_seed", "position"),
    out("target_tokens"),
    out_per_row("logprobs", "Natural-log probability of the row's token, at least the lowest float32; 0 in the tail."),
    out_per_row("ranks", "Entries of the row at least as large as its token; -1 in the tail and where undefined."),
    attrs=(
        AttrSpec("purpose", Purpose, "What the random numbers are drawn for.", Purpose.SAMPLE),
        AttrSpec("logprob_mode", LogprobMode, "Which probabilities `logprobs` reports.", LogprobMode.RAW),
    ),
)

PROCESSED_PROBS = op(
    "processed_probs",
    3,
    "The distribution that `sample_target` draws from; strategy REJECTION takes it as `target_probs`.",
    f"""{_KEPT}
    probs = mass relative to the row's maximum / total of the draw: both converted to float32 (round to nearest even),
    then one IEEE division [#ratio]. It is 0 outside the kept set, in tail rows (position < 0) [#tail] and in rows for
    which `sample_target` gives -1 [#undefined].
    """,
    inp("logits", *_ROW_PARAMS, "position"),
    out("probs"),
)

TOP_P_CANDIDATES = op(
    "top_p_candidates",
    3,
    "The C most probable tokens of each row, and how many of them reach top_p.",
    """
    All C ids and scores are written, scores descending, equal scores by ascending id [#order]. lens is the smallest j
    such that the mass of the first j candidates is >= mass(top_p of the slot; NaN: 1) [#reached], or C if C candidates
    do not reach it [#not-reached]. NaN probabilities count as 0 and are written as 0 [#nan]. Tail rows (slot outside
    [0, M)) have scores 0, ids -1 and lens 0 [#tail].
    """,
    inp("probs", "top_p", "batch_id_per_token_output"),
    out("candidate_scores", "candidate_ids", "candidate_lens"),
    relations=(Relation("C", "V"),),
)

OPS = (BUILD_SAMPLING_PARAMS, APPLY_PENALTIES, SAMPLE_TARGET, PROCESSED_PROBS, TOP_P_CANDIDATES)
