"""Section 11: masked tokens, own vocabularies, confidence and candidates of trained drafters."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op, out
from specdec_hal.ops.enums import Purpose
from specdec_hal.ops.spec import AttrSpec, Operand, Role
from specdec_hal.ops.vocabulary import MAXIMUM, SERVED, tensor

PREPARE_BLOCK_INPUTS = op(
    "prepare_block_inputs",
    11,
    "Pack the rows of a drafter that drafts in one pass: tokens, then masked tokens.",
    """
    ids_remove_padding and cu_seqlens_q are the drafter's, from `prepare_inputs`. Slot b < B has n = cu_seqlens_q[b+1] -
    cu_seqlens_q[b] tokens, n clamped to [0, T_cap] [#clamp]. If n > 0, the slot gets a block of rows, slots ascending:
    its tokens, then `num_masks` masked rows [#rows]; with `anchor_only`, its last token, then the masked rows
    [#anchor]. A slot without tokens gets no rows [#idle].

    In a token's row, block_source_rows is the token's index in ids_remove_padding and block_token_ids is the token
    [#source]. In a masked row they are -1 and mask_token_id [#mask], as they are for an index outside [0, T_cap)
    [#capacity]. block_cu_seqlens_q is the exclusive prefix sum of the blocks' rows [#offsets]; sums saturate at
    2^31 - 1 [#saturate]. block_seq_lens_decoder[b], the position of a block's first row, is dec clamped to >= 0; with
    `anchor_only` it is dec + n, since the tokens are context and have positions of their own [#position].

    Tails: ids 0, slots and sources -1 [#tails]. Rows beyond F_cap are not written; the offsets still give the true sums
    [#overflow].

    P-EAGLE has rows for all tokens and reads a learned state in masked rows. DFlash and DSpark fill in a block after
    the last token. The last rows of a block are those of its drafts. Sources: vLLM's copy_and_expand_eagle_inputs and
    copy_and_expand_dflash_inputs.
    """,
    inp("ids_remove_padding", "cu_seqlens_q", "seq_lens_decoder"),
    out("block_token_ids", "block_batch_ids", "block_source_rows", "block_cu_seqlens_q", "block_seq_lens_decoder"),
    attrs=(
        AttrSpec("mask_token_id", int, "The masked token.", minimum=0, maximum=MAXIMUM["V"]),
        AttrSpec("num_masks", int, "Masked rows of a block.", minimum=0, maximum=SERVED["S"] - 1),
        AttrSpec("anchor_only", bool, "Whether a block has only the last token.", False),
    ),
)  # fmt: skip

MAP_DRAFT_LOGITS = op(
    "map_draft_logits",
    11,
    "Map logits of a draft model's own vocabulary to the target's ids (d2t, token-level intersection).",
    """
    logits[r, v] = own_logits[r, target_to_draft[v]], bit for bit [#mapped]. Tokens that the draft model lacks, with
    target_to_draft[v] outside [0, V_draft), get -inf [#lacking]. Tokens may share a column [#shared].

    `sample_target` then draws a draft from the target's ids, in their order and with the target's random numbers; the
    draft's distribution is over the target's ids. Sources: compute_logits of vLLM's llama_eagle3; arXiv:2502.05202.
    """,
    out("logits"),
    inp("own_logits", "target_to_draft"),
)

TRUNCATE_BY_CONFIDENCE = op(
    "truncate_by_confidence",
    11,
    "Truncate each slot's drafts before the first unlikely one, after `draft_model_postprocess`.",
    """
    Slots < B with enc <= 0 [#prefill]. Start with p = 1. For i = 0 .. slt - 2, slt clamped to [0, S]: p = p *
    draft_confidence[b, i], one rounded float32 multiplication [#product]. At the first i with p < min_confidence[b],
    slt becomes i + 1: draft i and all later ones are dropped [#cut]. A comparison with NaN is false [#nan]. If there is
    no such i, slt keeps its value, even outside [0, S] [#kept]. Slots >= B are untouched [#padding].

    draft_confidence is estimated by a head of the drafter: the probability that the target accepts a draft after all
    earlier ones. So p is the probability that it accepts them all. Source: DSpark (arXiv:2607.05147).
    """,
    inp("draft_confidence", "min_confidence", "seq_lens_encoder"),
    inout("seq_lens_this_time"),
)

SELECT_DRAFT_PATH = op(
    "select_draft_path",
    11,
    "Draw the drafts of each slot one after the other, among a few candidates that the previous token weighs.",
    """
    Slot b < B has rows m_b .. m_(b+1) - 1, where m_b is the largest of cu_seqlens_q_output[0 .. b], clamped to
    [0, R_cap] [#rows]. Its rows are taken in this order. The previous token is anchor_tokens[b] for the first row
    [#anchor] and the draft of the previous row for the others [#walk].

    A row's candidates are the entries of path_ids in [0, V) [#padding] without an equal entry before them [#repeated].
    The score of candidate c is path_logits[r, c] + a dot product: the sum over i < D of (predecessor_codes[p, i] *
    path_hidden[r, i]) * successor_codes[path_ids[r, c], i], where p is the previous token. Codes of a previous token
    outside [0, V) are 0 [#unknown]. All values are widened to float32, and every operation is rounded to float32; none
    is fused [#unfused]. The dot product has eight partial sums: sum j starts at 0 and adds the products of elements j,
    j + 8, j + 16, ... in this order. The result is ((s_0 + s_4) + (s_2 + s_6)) + ((s_1 + s_5) + (s_3 + s_7)) [#dot].

    If row_temperature is not above 0, only the first candidate with the largest score is kept [#greedy]. Otherwise
    masses follow section 0, relative to the row's largest score, whose mass is 2^40 even if it is inf [#maximum]. Kept
    are, in this order: if row_top_k > 0, the row_top_k largest scores, equal ones in the order of the candidates
    [#top-k]; in that order, the smallest prefix whose mass reaches top_p (NaN: 1) of the total that top_k keeps
    [#top-p]; candidates with mass >= min_p (NaN: 1) of the largest [#min-p]. path_tokens is section 0's draw from the
    kept candidates in ascending id order, with the row's seed, position and purpose [#draw]. Scores of -inf have mass 0
    [#forbidden].

    probs = a kept candidate's mass / total of the draw: both converted to float32 (round to nearest even), then one
    IEEE division [#ratio]. Other tokens have 0 [#elsewhere].

    A row with position < 0, with a score that is NaN, or without a score above -inf gives -1 and probs of 0
    [#undefined], and so do all later rows of its slot [#ended]. Rows of no slot give -1 and 0 too [#tail].

    Apart from ties, this draws what `sample_target` draws from a row of these scores, -inf elsewhere, with row_top_k at
    most C_draft. Source: DFlash 2 (z-lab).
    """,
    inp("path_logits", "path_ids", "path_hidden", "predecessor_codes", "successor_codes", "anchor_tokens"),
    inp("cu_seqlens_q_output", "row_temperature", "row_top_p", "row_top_k", "row_min_p", "row_seed", "position"),
    out("path_tokens"),
    (Operand(tensor("probs"), Role.OUT, optional=True),),
    attrs=(AttrSpec("purpose", Purpose, "What the random numbers are drawn for.", Purpose.SAMPLE),),
)

OPS = (PREPARE_BLOCK_INPUTS, MAP_DRAFT_LOGITS, TRUNCATE_BY_CONFIDENCE, SELECT_DRAFT_PATH)
