"""Sections 1 and 2: the packed batch and the orders of its rows."""

from __future__ import annotations

from specdec_hal.ops.build import inp, op, out
from specdec_hal.ops.enums import TokenOrder
from specdec_hal.ops.spec import AttrSpec, Operand, Role
from specdec_hal.ops.vocabulary import tensor

PREPARE_INPUTS = op(
    "prepare_inputs",
    1,
    "Pack the step's tokens and index them.",
    """
    The tokens of slot b are `input_ids[b, i]` if enc > 0, else `draft_tokens[b, i]`, for i < slt, slots ascending
    [#source]. slt is clamped to [0, I_cap] for prefill slots and to [0, S] for others [#clamp].

    `cu_seqlens_q` is the exclusive prefix sum of slt [#cu-q]; `cu_seqlens_k` that of slt + dec (dec clamped to >= 0)
    over slots with slt > 0 [#cu-k]. Sums saturate at 2^31 - 1 [#saturate]. Output rows per slot: 0 if slt == 0; 1 if
    slt == 1 or enc > 0 (a prefill chunk, final or not, gives its last token's row); else slt [#output-rows]. Row r =
    cu_seqlens_q_output[b] + i holds the distribution AFTER input i, so it verifies draft_tokens[b, i+1].

    Tails: ids 0, slots -1 [#tails]. An all-idle batch gives zeros [#all-idle]. Entries beyond T_cap or R_cap are not
    written; the offsets and `num_tokens` still give the true sums, so the caller can detect it [#overflow].
    """,
    inp("input_ids", "draft_tokens", "seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder"),
    out("ids_remove_padding", "batch_id_per_token", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_q_output"),
    out("batch_id_per_token_output", "num_tokens"),
)

_TOKEN_ORDER = AttrSpec(
    "token_order",
    TokenOrder,
    "SLOT: packed tokens in slot order. PREFILL_FIRST: tokens of slots with enc > 0, then of the others, each in slot "
    "order. The default is the backend's order.",
    from_backend=True,
)

ADJUST_BATCH = op(
    "adjust_batch",
    2,
    "Permute packed rows from slot order to `token_order`.",
    """
    Row cu_seqlens_q[b] + i of x (i < slt) moves to its place in `token_order` [#moves]; SLOT is the identity
    [#identity]. D may be 1 (token ids) [#one-column]. Rows >= T are zero [#tail].
    """,
    inp("x", "cu_seqlens_q", "seq_lens_this_time", "seq_lens_encoder"),
    out("out"),
    attrs=(_TOKEN_ORDER,),
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
)

GATHER_NEXT_TOKEN = op(
    "gather_next_token",
    2,
    "Select the hidden rows that predict tokens, in speculative or plain decoding.",
    """
    x is in `token_order` [#order]. With is_speculative=True, `out` is [R_cap, D]: row r is the hidden state of output
    row r of `prepare_inputs` [#packed]; rows >= R are zero [#tail]. With is_speculative=False, `out` is [B, D]: row b
    is the last token of slot b [#scattered]; rows of idle slots are zero [#idle]. If every slot has slt <= 1 or enc >
    0, both hold the same rows, packed or scattered [#same-rows].

    If offsets disagree with lengths, slot b's tokens are slt rows of slot order, starting at cu_seqlens_q[b] clamped to
    [0, T_cap] and ending at T_cap. x holds the rows of the slots, concatenated in `token_order`. A row that occurs
    twice is read at its last place; a row whose place is not in x is zero; an output row outside its slot's rows is
    read as the nearest of them [#offsets]. Source: FastDeploy's unified `gather_next_token(is_speculative)`.
    """,
    inp("x", "cu_seqlens_q", "cu_seqlens_q_output", "batch_id_per_token_output", "seq_lens_this_time"),
    inp("seq_lens_encoder"),
    (Operand(tensor("out"), Role.OUT, shape_by=("is_speculative", {True: ("R_cap", "D"), False: ("B", "D")})),),
    attrs=(AttrSpec("is_speculative", bool, "Whether a slot may have several output rows."), _TOKEN_ORDER),
)

OPS = (PREPARE_INPUTS, ADJUST_BATCH, RECOVER_BATCH, GATHER_NEXT_TOKEN)
