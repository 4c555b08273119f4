"""Section 3: from logits to the target model's tokens."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op, out
from specdec_hal.ops.enums import Purpose
from specdec_hal.ops.spec import AttrSpec, Relation

_ROW_PARAMS = ("row_temperature", "row_top_p", "row_top_k", "row_min_p")

BUILD_SAMPLING_PARAMS = op(
    "build_sampling_params",
    3,
    "Spread per-slot sampling parameters over the output rows.",
    """
    Row r takes the parameters of slot `batch_id_per_token_output[r]` [#params]; `position` = prompt_lens + step_idx +
    (r - cu_seqlens_q_output[slot]) [#position]. Tail rows (slot outside [0, B)): 1, 1, 0, 0, seed 0, position -1
    [#tail].
    """,
    inp("temperature", "top_p", "top_k", "min_p", "seed", "prompt_lens", "step_idx"),
    inp("cu_seqlens_q_output", "batch_id_per_token_output"),
    out(*_ROW_PARAMS, "row_seed", "position"),
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
    the row's maximum has t = 0 exactly, so it has mass 2^40 even if the maximum is inf) [#maximum]. Kept are: the
    row_top_k largest logits (0 = all), equal logits by ascending id [#top-k]; then, in order of (logit descending, id
    ascending), the smallest prefix whose mass reaches top_p (NaN: 1) of the kept total [#top-p]; then those with
    mass >= min_p of the largest [#min-p]. At least one token always survives [#survivor]; -inf logits have mass 0 and
    are never drawn [#forbidden].
"""

SAMPLE_TARGET = op(
    "sample_target",
    3,
    "Draw the target model's token for every output row, or a proposer's draft.",
    f"""{_KEPT}
    The draw is section 0's, with the row's seed and position, over the kept set in ascending id order [#draw], and with
    the given purpose: SAMPLE for tokens of the target model, DRAFT for drafts that strategy REJECTION judges, whose
    tests must not depend on how they were drawn [#purpose]. A row of all -inf, or with any NaN, gives -1 [#undefined];
    so do tail rows (position < 0) [#tail].
    """,
    inp("logits", *_ROW_PARAMS, "row_seed", "position"),
    out("target_tokens"),
    attrs=(AttrSpec("purpose", Purpose, "What the random numbers are drawn for.", Purpose.SAMPLE),),
)

PROCESSED_PROBS = op(
    "processed_probs",
    3,
    "The distribution that `sample_target` draws from: what strategy REJECTION takes as `target_probs`.",
    f"""{_KEPT}
    probs = mass / kept total: both converted to float32 (round to nearest even), one IEEE division [#ratio]; 0 outside
    the kept set, in tail rows (position < 0) [#tail] and in rows for which `sample_target` gives -1 [#undefined].
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
