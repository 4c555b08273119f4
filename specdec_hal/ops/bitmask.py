"""Section 10: masks of allowed tokens, on logits and on drafts."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op
from specdec_hal.ops.spec import AttrSpec
from specdec_hal.ops.vocabulary import MAXIMUM

_MASK = """
    Output row r has the mask bitmask[bitmask_rows[r]]; it has none if bitmask_rows[r] is outside [0, U)
    [#unconstrained]. A mask allows token t if 0 <= t < min(vocab_size, 32 * Y) and bit t % 32 (0 is the least
    significant) of word t / 32 is 1 [#bit]. It forbids all other tokens: those outside its vocabulary, whatever the
    last word's bits say [#beyond-vocabulary], and those beyond its words [#beyond-words].
"""
_VOCAB_SIZE = AttrSpec(
    "vocab_size", int, "Tokens of the masks' vocabulary; by default, one per bit.",
    MAXIMUM["V"], 0, MAXIMUM["V"],
)  # fmt: skip

APPLY_TOKEN_BITMASK = op(
    "apply_token_bitmask",
    10,
    "Set the logits of forbidden tokens to -inf, before sampling.",
    f"""{_MASK}
    Column c of logits is token first_token + c, so ranks that share a vocabulary use the same mask [#first-token].
    Logits of forbidden tokens become -inf [#forbidden]; those of allowed tokens keep their bits [#allowed]. Rows
    without a mask are untouched and cost one read of bitmask_rows each [#untouched]. Rows may share a mask [#shared].
    A mask that allows no token leaves a row of -inf, for which `sample_target` gives -1 [#nothing-allowed]. The layout
    is that of xgrammar and llguidance; vLLM and SGLang apply it to every verified row in the same way.
    """,
    inout("logits"),
    inp("bitmask", "bitmask_rows"),
    attrs=(_VOCAB_SIZE, AttrSpec("first_token", int, "The token of column 0.", 0, 0, MAXIMUM["V"])),
)

TRUNCATE_DRAFTS = op(
    "truncate_drafts",
    10,
    "Truncate each slot's drafts at the first forbidden one, between `prepare_inputs` and `verify_draft_tokens`.",
    f"""{_MASK}
    Slots < B with enc <= 0 [#prefill]. For i = 0 .. slt - 2, slt clamped to [0, S], row r = cu_seqlens_q_output[b] + i
    verifies draft_tokens[b, i+1]. At the first draft that its row's mask forbids [#first], slt becomes i + 1: row r
    gives the slot's last token of this step [#cut]. Masks forbid negative drafts and drafts outside their vocabulary
    [#no-token]. A row outside [0, R_cap) has no mask [#row-range]. If no draft is forbidden, slt keeps its value, even
    outside [0, S] [#kept]. Slots >= B are untouched [#padding].

    The offsets and rows of `prepare_inputs` stay; later rows of the slot are computed but not used. A forbidden draft
    has probability 0 in masked logits, so truncation changes no token. It is needed because masks are computed only up
    to the first forbidden draft, and because ACCEPT_ALL reads no probabilities.
    """,
    inp("draft_tokens", "bitmask", "bitmask_rows", "cu_seqlens_q_output", "seq_lens_encoder"),
    inout("seq_lens_this_time"),
    attrs=(_VOCAB_SIZE,),
)

OPS = (APPLY_TOKEN_BITMASK, TRUNCATE_DRAFTS)
