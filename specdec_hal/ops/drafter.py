"""Section 11: what trained drafters need beside section 9: masked tokens, their own vocabulary, their confidence."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op, out
from specdec_hal.ops.spec import AttrSpec, Relation
from specdec_hal.ops.vocabulary import MAXIMUM, SERVED

B_WITHIN_M = Relation("B", "M")

PREPARE_BLOCK_INPUTS = op(
    "prepare_block_inputs",
    11,
    "Pack the rows of a drafter that makes its drafts in one pass: tokens, then masked tokens.",
    """
    ids_remove_padding and cu_seqlens_q are the drafter's, of `prepare_inputs`. Slot b < B was fed n = cu_seqlens_q[b+1]
    - cu_seqlens_q[b] tokens, n clamped to [0, T_cap] [#clamp]. If n > 0 it has a block of rows, slots ascending: its
    tokens, then `num_masks` masked ones [#rows]; with `anchor_only` the last of its tokens, then the masked ones
    [#anchor]. A slot without tokens has no rows [#idle].

    A token's row has block_source_rows = where it stands in ids_remove_padding, and block_token_ids = the token
    [#source]; a masked one has source -1 and the token mask_token_id [#mask], and so has a token whose place is outside
    [0, T_cap) [#capacity]. block_cu_seqlens_q is the exclusive prefix sum of the blocks' rows [#offsets]; sums saturate
    at 2^31 - 1 [#saturate]. block_seq_lens_decoder[b], the position of a block's first row, is dec, clamped to >= 0;
    with `anchor_only` dec + n, as the tokens are context, of which each position has a row of its own [#position].

    Tails: ids 0, slots and sources -1 [#tails]. Rows that do not fit F_cap are not written, and the offsets still
    state the true sums [#overflow].

    P-EAGLE feeds all tokens and reads a learned state in a masked row; DFlash and DSpark fill in a block after the last
    token. The last rows of a block are those of its drafts. Sources: vLLM's copy_and_expand_eagle_inputs and
    copy_and_expand_dflash_inputs.
    """,
    inp("ids_remove_padding", "cu_seqlens_q", "seq_lens_decoder"),
    out("block_token_ids", "block_batch_ids", "block_source_rows", "block_cu_seqlens_q", "block_seq_lens_decoder"),
    attrs=(
        AttrSpec("mask_token_id", int, "The masked token.", minimum=0, maximum=MAXIMUM["V"]),
        AttrSpec("num_masks", int, "Masked rows of a block.", minimum=0, maximum=SERVED["S"] - 1),
        AttrSpec("anchor_only", bool, "Whether a block has one token only, the last.", False),
    ),
    relations=(B_WITHIN_M,),
)  # fmt: skip

MAP_DRAFT_LOGITS = op(
    "map_draft_logits",
    11,
    "Give logits of a draft model's own vocabulary the target's ids (d2t, token-level intersection).",
    """
    logits[r, v] = own_logits[r, target_to_draft[v]], with all its bits [#mapped]; -inf where target_to_draft[v] is
    outside [0, V_draft), for a token that the draft model lacks [#lacking]. Several tokens may name one column
    [#shared].

    `sample_target` then draws a draft among the target's ids in their order, with the random numbers that the target
    draws with, and the distribution that it was drawn from is over the target's ids. Sources: compute_logits of vLLM's
    llama_eagle3; arXiv:2502.05202.
    """,
    out("logits"),
    inp("own_logits", "target_to_draft"),
)

TRUNCATE_BY_CONFIDENCE = op(
    "truncate_by_confidence",
    11,
    "Cut each slot's drafts before the first that its drafter doubts, after `draft_model_postprocess`.",
    """
    Slots < B with enc <= 0 [#prefill]. p = 1; for i = 0 .. slt - 2, slt clamped to [0, S]: p = p *
    draft_confidence[b, i], one float32 multiplication, rounded [#product]. The first i with p < min_confidence[b]
    decides: slt = i + 1, which is draft i gone with all after it [#cut]. A comparison with NaN is false [#nan]. Where
    none decides, slt stays, whatever it is [#kept]; slots >= B are untouched [#padding].

    draft_confidence is the probability, as a head of the drafter estimates it, that the target takes a draft once it
    has taken all before it: p is that of taking them all. Source: DSpark (arXiv:2607.05147).
    """,
    inp("draft_confidence", "min_confidence", "seq_lens_encoder"),
    inout("seq_lens_this_time"),
    relations=(B_WITHIN_M,),
)

OPS = (PREPARE_BLOCK_INPUTS, MAP_DRAFT_LOGITS, TRUNCATE_BY_CONFIDENCE)
