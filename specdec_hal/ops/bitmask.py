"""Section 10: masks of allowed tokens, on logits and on drafts."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op
from specdec_hal.ops.spec import AttrSpec, Relation
from specdec_hal.ops.vocabulary import MAXIMUM

_MASK = """
    Output row r has the mask bitmask[bitmask_rows[r]], and none if bitmask_rows[r] is outside [0, U) [#unconstrained].
    A mask allows token t if 0 <= t < min(vocab_size, 32 * Y) and bit t % 32, counted from the least significant, of
    word t / 32 is 1 [#bit]. It forbids all others: those beyond its vocabulary, whatever the last word's bits say
    [#beyond-vocabulary], and beyond its words [#beyond-words].
"""
_VOCAB_SIZE = AttrSpec(
    "vocab_size", int, "Tokens of the masks' vocabulary; by default all that their words have bits for.",
    MAXIMUM["V"], 0, MAXIMUM["V"],
)  # fmt: skip

APPLY_TOKEN_BITMASK = op(
    "apply_token_bitmask",
    10,
    "Make the logits of forbidden tokens -inf, before sampling.",
    f"""{_MASK}
    Column c of logits is token first_token + c, so that ranks that share a vocabulary use one mask [#first-token].
    Logits of tokens that a row's mask forbids become -inf [#forbidden]; those of allowed tokens keep their bits
    [#allowed], and so do rows without a mask, whose cost is their entry of bitmask_rows [#untouched]. Several rows may
    have the same mask [#shared]. A mask that allows nothing leaves a row of -inf, for which `sample_target` gives -1
    [#nothing-allowed]. The layout is that of xgrammar and llguidance; vLLM and SGLang apply it so to every verified
    row.
    """,
    inout("logits"),
    inp("bitmask", "bitmask_rows"),
    attrs=(_VOCAB_SIZE, AttrSpec("first_token", int, "The token of column 0.", 0, 0, MAXIMUM["V"])),
)

TRUNCATE_DRAFTS = op(
    "truncate_drafts",
    10,
    "Cut each slot's drafts at the first that the mask of its row forbids, between `prepare_inputs` and "
    "`verify_draft_tokens`.",
    f"""{_MASK}
    Slots < B with enc <= 0 [#prefill]. For i = 0 .. slt - 2, slt clamped to [0, S], draft_tokens[b, i+1] is judged by
    row r = cu_seqlens_q_output[b] + i, as in `verify_draft_tokens`. The first draft that its row's mask forbids decides
    [#first]: slt = i + 1, so that row r gives the slot's last token of this step [#cut]. Drafts that are negative, or
    outside the vocabulary, are forbidden as any other [#no-token]. A row outside [0, R_cap) has no mask [#row-range].
    Where no draft is forbidden, slt stays, whatever it is [#kept], and slots >= B are untouched [#padding].

    Offsets and rows are those that `prepare_inputs` made, and stay: rows after the cut are computed and not looked at.
    A forbidden draft has no probability in masked logits, so the cut changes no token; but a mask is only made as far
    as its drafts are allowed, and ACCEPT_ALL does not see a probability.
    """,
    inp("draft_tokens", "bitmask", "bitmask_rows", "cu_seqlens_q_output", "seq_lens_encoder"),
    inout("seq_lens_this_time"),
    attrs=(_VOCAB_SIZE,),
    relations=(Relation("B", "M"),),
)

OPS = (APPLY_TOKEN_BITMASK, TRUNCATE_DRAFTS)
