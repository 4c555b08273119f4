"""Sections 1 and 2: the packed batch, and moving rows between its orders."""

from __future__ import annotations

from specdec_hal.ops.build import inp, op, out
from specdec_hal.ops.enums import TokenOrder
from specdec_hal.ops.spec import AttrSpec, Operand, Relation, Role
from specdec_hal.ops.vocabulary import tensor

B_WITHIN_M = Relation("B", "M")

PREPARE_INPUTS = op(
    "prepare_inputs",
    1,
    "Pack the step's tokens and index them.",
    """
    Tokens of slot b are `input_ids[b, i]` if enc > 0, else `draft_tokens[b, i]`, for i < slt, slots ascending
    [#source]. slt is clamped to [0, I_cap] for prefill slots and to [0, S] for others [#clamp].

    `cu_seqlens_q` is the exclusive prefix sum of slt [#cu-q]; `cu_seqlens_k` of slt + dec (dec clamped to >= 0) for
    slots with slt > 0 [#cu-k]; all sums saturate at 2^31 - 1 [#saturate]. Output rows per slot: 0 if slt == 0; 1 if
    slt == 1 or enc > 0 (a prefill chunk, final or not, gives its last token's row); else slt [#output-rows]. Row r =
    cu_seqlens_q_output[b] + i holds the distribution AFTER input i, so it judges the draft in `draft_tokens[b, i+1]`.

    Tails: ids 0, slots -1 [#tails]; an all-idle batch gives zeros [#all-idle]. What does not fit T_cap or R_cap is
    not written, and the offsets and `num_tokens` still state the true sums, so that the caller can tell [#overflow].
    """,
    inp("input_ids", "draft_tokens", "seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder"),
    out("ids_remove_padding", "batch_id_per_token", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_q_output"),
    out("batch_id_per_token_output", "num_tokens"),
    relations=(B_WITHIN_M,),
)

_TOKEN_ORDER = AttrSpec(
    "token_order",
    TokenOrder,
    "SLOT: packed tokens stand in slot order. PREFILL_FIRST: tokens of all slots with enc > 0, then the others, slots "
    "ascending within each part. The default is the backend's own order.",
    from_backend=True,
)

ADJUST_BATCH = op(
    "adjust_batch",
    2,
    "Permute packed rows from slot order to `token_order`.",
    """
    Row `cu_seqlens_q[b] + i` of x (i < slt) moves to its place in `token_order` [#moves]; SLOT is the identity
    [#identity]. D may be 1 (token ids) [#one-column]. Rows >= T are zero [#tail].
    """,
    inp("x", "cu_seqlens_q", "seq_lens_this_time", "seq_lens_encoder"),
    out("out"),
    attrs=(_TOKEN_ORDER,),
    relations=(B_WITHIN_M,),
)

RECOVER_BATCH = op(
    "recover_batch",
    2,
    "Permute packed rows from `token_order` back to slot order: the inverse of `adjust_batch`.",
    """
    Row i of x, in `token_order`, moves to its place in slot order [#inverse]. Rows >= T are zero [#tail].
    """,
    inp("x", "cu_seqlens_q", "seq_lens_this_time", "seq_lens_encoder"),
    out("out"),
    attrs=(_TOKEN_ORDER,),
    relations=(B_WITHIN_M,),
)

GATHER_NEXT_TOKEN = op(
    "gather_next_token",
    2,
    "Select the hidden rows that predict a token, for the speculative and the plain path alike.",
    """
    x is in `token_order` [#order]. With is_speculative=True `out` is [R_cap, D]: row r is the hidden state of output
    row r of `prepare_inputs` [#packed], rows >= R are zero [#tail]. With is_speculative=False `out` is [B, D]: row b is
    the last token of slot b [#scattered], idle slots are zero [#idle]. For a batch in which every slot has slt <= 1 or
    enc > 0 both hold the same rows, packed or scattered [#same-rows]. Offsets that disagree with the lengths: slot b's
    tokens are slt rows of slot order from cu_seqlens_q[b], clamped to [0, T_cap], on, as far as T_cap reaches; x holds
    the rows that the slots, in `token_order`, name one after the other; a row that is named twice is read at the last
    of its places, one whose place is not in x is zero, and an output row outside its slot's rows is read as the nearest
    of them [#offsets]. Source: FastDeploy's unified `gather_next_token(is_speculative)`.
    """,
    inp("x", "cu_seqlens_q", "cu_seqlens_q_output", "batch_id_per_token_output", "seq_lens_this_time"),
    inp("seq_lens_encoder"),
    (
        Operand(
            tensor("out"),
            Role.OUT,
            shape_by=("is_speculative", {True: ("R_cap", "D"), False: ("B", "D")}),
        ),
    ),
    attrs=(
        AttrSpec("is_speculative", bool, "Whether a slot may have several output rows."),
        _TOKEN_ORDER,
    ),
    relations=(B_WITHIN_M,),
)

OPS = (PREPARE_INPUTS, ADJUST_BATCH, RECOVER_BATCH, GATHER_NEXT_TOKEN)
