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
    "Spread per-slot sampling parameters over the output rows.",
    """
    Row r takes the parameters of slot `batch_id_per_token_output[r]` [#params]; `position` = prompt_lens + step_idx +
    (r - cu_seqlens_q_output[slot]) [#position]. Tail rows (slot outside [0, B)): 1, 1, 0, 0, seed 0, position -1
    [#tail].

    With infer_seed, rows have FastDeploy's seeds in the place of `seed`, which is not read: row i of slot b has
    (infer_seed[b] + row_seed_step * i) mod seed_modulus [#row-seeds]; then the infer_seed of every slot < B, idle or
    not, becomes (infer_seed[b] + seed_increment) mod seed_modulus [#advance]. Sums wrap at 64 bits, and the results
    lie in [0, seed_modulus) [#seed-wrap]. Slots >= B are untouched [#padding].
    """,
    inp("temperature", "top_p", "top_k", "min_p", "seed", "prompt_lens", "step_idx"),
    inp("cu_seqlens_q_output", "batch_id_per_token_output"),
    out(*_ROW_PARAMS, "row_seed", "position"),
    inout("infer_seed", optional=True),
    attrs=(
        AttrSpec("row_seed_step", int, "Between the seeds of neighbouring rows of a slot.", 0, 0, _MOST),
        AttrSpec("seed_increment", int, "By how much infer_seed advances.", 0, 0, _MOST),
        AttrSpec("seed_modulus", int, "Seeds are below it.", _MOST, 1, _MOST),
    ),
    relations=(Relation("B", "M"),),
)

APPLY_PENALTIES = op(
    "apply_penalties",
    3,
    "Penalties, bad tokens and minimum length, per output row, as plain decoding would apply them there.",
    """
    Row i of a slot sees prompt ++ generated ++ draft_tokens[b, 1..i] as its history [#history]. In float32, each
    operation rounded, for every distinct token of the history with logit l: repetition over the whole history (l > 0
    ? l / r : l * r) [#repetition]; then, over the generated part (drafts included) with n occurrences, l - (n *
    frequency), then l - presence [#counts]. Bad tokens become -inf [#bad-tokens]; so do `end_tokens` in rows whose
    generated count step_idx + i is below `min_dec_len` [#min-length]. History entries outside [0, V) are ignored
    [#out-of-vocabulary], tail rows untouched [#tail]. Work is proportional to the
    history, not to V.
    """,
    inout("logits"),
    inp("token_ids_all", "prompt_lens", "step_idx", "draft_tokens", "cu_seqlens_q_output"),
    inp("batch_id_per_token_output", "repetition", "frequency", "presence", "bad_tokens", "end_tokens", "min_dec_len"),
    relations=(Relation("B", "M"),),
)

_KEPT = """
    Temperature not above 0: the argmax alone is kept [#greedy]. Otherwise masses follow section 0 (a logit equal to
    the row's maximum has t = 0 exactly, so it has mass 2^40 even if the maximum is inf) [#maximum]. Where 0 < row_top_k
    < V, row_top_p < 1 or row_min_p > 0 (NaN: 1), the row has a filter [#filter], and kept are: the row_top_k largest
    logits (0 = all), equal logits by ascending id [#top-k]; then, in order of (logit descending, id ascending), the
    smallest prefix whose mass reaches top_p (NaN: 1) of the total that top_k keeps, without top_k of the total by
    chunks [#top-p], and everything if no prefix reaches it [#unreached]; then those with mass >= min_p of the largest
    [#min-p]. At least one token always survives [#survivor]; -inf logits have mass 0 and are never drawn [#forbidden].
"""

SAMPLE_TARGET = op(
    "sample_target",
    3,
    "Draw the target model's token for every output row, or a proposer's draft.",
    f"""{_KEPT}
    The draw has the row's seed and position. In a row with a filter it is section 0's over the kept set in ascending
    id order [#draw]; without one r = high64(U64 * the row's total), the chunk is the first whose inclusive sum of S
    exceeds r [#chunk-draw], and the token the first in it with (inclusive prefix sum of M) * W >> 40 > r - (sum of S
    before the chunk) [#inner-draw]. The purpose is SAMPLE for tokens of the target model, DRAFT for drafts that
    strategy REJECTION judges, whose tests must not depend on how they were drawn [#purpose]. A row of all -inf, or
    with any NaN, gives -1 [#undefined]; so do tail rows (position < 0) [#tail].

    logprobs is the natural logarithm of the token's probability. RAW: that of `token_logprobs` for this row and token
    [#raw]. PROCESSED: ((logit - row_max) * (1 / temperature)) - ln(total of the draw / 2^40), three float32 operations,
    the product 0 where the two are equal, and 0 for temperatures not above 0 [#processed]. ranks, in either mode: the
    number of the row's entries >= the token's [#rank]. In rows that give -1: the lowest float32 and -1 [#no-logprob],
    in tail rows 0.0 and -1 [#logprob-tail].
    """,
    inp("logits", *_ROW_PARAMS, "row_seed", "position"),
    out("target_tokens"),
    out_per_row("logprobs", "Natural-log probability of the row's token, at least the lowest float32; 0 in the tail."),
    out_per_row("ranks", "Entries of the row at least as large as its token; -1 in the tail and where undefined."),
    attrs=(
        AttrSpec("purpose", Purpose, "What the random numbers are drawn for.", Purpose.SAMPLE),
        AttrSpec("logprob_mode", LogprobMode, "Which probabilities `logprobs` tells.", LogprobMode.RAW),
    ),
)

PROCESSED_PROBS = op(
    "processed_probs",
    3,
    "The distribution that `sample_target` draws from: what strategy REJECTION takes as `target_probs`.",
    f"""{_KEPT}
    probs = mass relative to the row's maximum / total of the draw: both converted to float32 (round to nearest even),
    one IEEE division [#ratio]; 0 outside the kept set, in tail rows (position < 0) [#tail] and in rows for which
    `sample_target` gives -1 [#undefined].
    """,
    inp("logits", *_ROW_PARAMS, "position"),
    out("probs"),
)

TOP_P_CANDIDATES = op(
    "top_p_candidates",
    3,
    "The C most probable tokens of each row, and how many of them reach top_p.",
    """
    Scores descending, equal scores by ascending id; all C ids and scores are written [#order]. lens = the smallest j
    whose running mass >= mass(top_p of the slot; NaN: 1), inclusive [#reached], or C when C candidates do not reach
    it [#not-reached]. A probability of NaN counts and is written as 0 [#nan]. Tail rows (slot outside [0, M)): scores
    0, ids -1, lens 0 [#tail].
    """,
    inp("probs", "top_p", "batch_id_per_token_output"),
    out("candidate_scores", "candidate_ids", "candidate_lens"),
    relations=(Relation("C", "V"),),
)

OPS = (BUILD_SAMPLING_PARAMS, APPLY_PENALTIES, SAMPLE_TARGET, PROCESSED_PROBS, TOP_P_CANDIDATES)
