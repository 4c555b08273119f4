"""Section 9: the state of a draft model that reads the target's hidden states (MTP, EAGLE), and the rows it is fed."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op, out
from specdec_hal.ops.spec import AttrSpec, Relation
from specdec_hal.ops.vocabulary import SERVED

B_WITHIN_M = Relation("B", "M")
_OWN = ("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder", "step_idx")

DRAFT_MODEL_PREPROCESS = op(
    "draft_model_preprocess",
    9,
    "Set the draft model's slots to what the target's step has accepted, after `update_model_status`.",
    """
    Tensors named base_model_... are the target's; the others are the draft model's own, with the meanings that they
    have for the target. Slots < B; count = accept_num clamped to [0, S]; enc = the draft model's seq_lens_encoder,
    clamped to [0, I_cap]: the chunk of the prompt that the step fed, which `schedule_slots` or the caller has set, with
    the prompt shifted left by one token in input_ids.

    base_model_draft_tokens[b, 1..] become -1 [#no-drafts]. A slot drafts nothing if its base_model_stop_flags says so,
    draft_token_num <= 0, max_dec_len - base_model_step_idx < min_room, or enc == 0 and count == 0: stop_flags = true,
    enc = dec = slt = step_idx = 0 [#idle]. Otherwise stop_flags = false and step_idx = base_model_step_idx, the count
    of tokens generated so far [#step]:

    enc > 0: seq_lens_encoder = slt = enc, dec stays [#chunk]; if count > 0, input_ids[b, enc-1] = accept_tokens[b, 0],
    the token after the prompt, and a chunk inside the prompt keeps what stands there [#first-token].

    enc == 0: the accepted tokens go to draft_tokens[b, 0 .. count-1], slt = count [#accepted], dec =
    base_model_seq_lens_decoder - count, at least 0: the draft model's cache is overwritten from the first token that
    the step fed, and so rid of rejected drafts [#rollback].

    With pre_ids, step_idx is the column where the step's tokens begin in it: base_model_step_idx - count, or for enc >
    0 base_model_step_idx - 1 [#column]. The accepted tokens go there too, the one after a prompt to column 0, as far
    as the row reaches [#history]; and slots that have accepted nothing are no exception: they run, and the chunk ends
    in accept_tokens[b, 0] [#nothing-accepted].

    has_running = any slot < B that drafts [#running]. Slots >= B are untouched [#padding]. Source: FastDeploy's op of
    this name, which works as this one with pre_ids. The history is not needed here: `token_ids_all` and the drafts hold
    it. FastDeploy gives up a slot with less room than all drafts take, as min_room = 1 + their number does; by default
    `draft_model_update` ends each slot at its own limit.
    """,
    inout("draft_tokens", "input_ids", "stop_flags", *_OWN),
    out("has_running"),
    inp("accept_tokens", "accept_num", "base_model_seq_lens_decoder", "base_model_step_idx", "base_model_stop_flags"),
    inp("max_dec_len", "draft_token_num"),
    inout("base_model_draft_tokens"),
    inout("pre_ids", optional=True),
    attrs=(AttrSpec("min_room", int, "Tokens up to max_dec_len that a slot must have left.", 2, minimum=0),),
    relations=(B_WITHIN_M,),
)

DRAFT_MODEL_UPDATE = op(
    "draft_model_update",
    9,
    "Take one token of the draft model per active slot, and set its slots for the next one.",
    """
    Active are the slots < B with slt > 0; the token of an active slot is inter_next_tokens[r], r = the number of active
    slots before it [#rank]; it is -1 where R_cap ends before r [#capacity]. dec += slt and enc = 0 [#cached].

    The token becomes draft number substep + 1, base_model_draft_tokens[b, substep+1] = draft_tokens[b, 0] = token and
    step_idx += 1, if substep < min(draft_token_num, K), step_idx > 0, max_dec_len - step_idx > 1, the token is not
    negative and the slot has not stopped [#draft]; otherwise that column, where there is one, becomes -1 [#none]. A
    slot with step_idx 0 is inside its prompt and only fills its cache [#inside-prompt]. slt = 1 if the token was taken
    and the next could be, by the same conditions for substep + 1 and the new step_idx, else 0 [#next].

    With pre_ids, step_idx is a column of it, and draft_token_num is not looked at. A slot that has stopped or gets no
    token: both columns become -1, slt = enc = 0 [#ended]. Otherwise enc = 0 and slt = 1. Has the slot room, max_dec_len
    - step_idx > 1, or enc > 0: dec += enc, else slt; step_idx += 1, else slt; draft_tokens[b, 0] and pre_ids[b, 1],
    else pre_ids[b, step_idx], become the token, as far as the row reaches [#history]. The draft is the token where
    there is room, else -1 [#room].

    has_running = any slot < B with slt > 0 afterwards [#running]. Other slots are untouched [#untouched]. End tokens
    are not looked at: the verifier stops there. Source: FastDeploy's op of this name, which works as this one with
    pre_ids.
    """,
    inp("inter_next_tokens"),
    inout("draft_tokens", *_OWN),
    inp("stop_flags"),
    out("has_running"),
    inp("max_dec_len", "draft_token_num"),
    inout("base_model_draft_tokens"),
    inout("pre_ids", optional=True),
    attrs=(AttrSpec("substep", int, "Number of the draft, from 0.", minimum=0, maximum=SERVED["S"] - 2),),
    relations=(B_WITHIN_M,),
)

DRAFT_MODEL_POSTPROCESS = op(
    "draft_model_postprocess",
    9,
    "Count the drafts that the target verifies in its next step.",
    """
    All tensors are the target's. Slots < B: stopped slots get slt = 0 [#stopped]; enc > 0: untouched [#prefill]; else
    with dec > 0 slt = 1 + the number of entries of draft_tokens[b, 1..] before the first negative one [#count], and
    with dec <= 0 slt = 0 [#idle]. Source: FastDeploy's op of this name.
    """,
    inp("draft_tokens"),
    inout("seq_lens_this_time"),
    inp("seq_lens_encoder", "stop_flags", "seq_lens_decoder"),
    relations=(B_WITHIN_M,),
)

EAGLE_GET_HIDDEN_STATES = op(
    "eagle_get_hidden_states",
    9,
    "Select the target's hidden states that go with the tokens which the draft model is fed.",
    """
    x holds the target's hidden states of the tokens of its step, in slot order: those of slot b from row
    base_model_cu_seqlens_q[b] on. cu_seqlens_q and batch_id_per_token are the draft model's, of `prepare_inputs` after
    `draft_model_preprocess`. Row r of out, b = batch_id_per_token[r], i = r - cu_seqlens_q[b], is row
    base_model_cu_seqlens_q[b] + i of x: all rows of a prefill chunk, and as many of a decode slot as it has accepted
    tokens [#rows]. It is zero if b is not in [0, B) [#tail], if i < 0 or the slot has no i-th row in the target's step
    [#beyond], or if x has no such row [#capacity]. Source: FastDeploy's op of this name.
    """,
    inp("x", "cu_seqlens_q", "batch_id_per_token", "base_model_cu_seqlens_q"),
    out("out"),
)

EAGLE_GATHER_HIDDEN_STATES = op(
    "eagle_gather_hidden_states",
    9,
    "Pack the last row of every slot that the draft model was fed.",
    """
    Slot b is active if cu_seqlens_q[b+1] > cu_seqlens_q[b]. last_hidden[k] is row cu_seqlens_q[b+1] - 1 of x for the
    k-th active slot b [#packed], zero where x has no such row [#capacity]; output_token_num = the number of active
    slots [#count]; the rows after are zero [#tail]. Source: FastDeploy's op of this name.
    """,
    inp("x", "cu_seqlens_q"),
    out("last_hidden", "output_token_num"),
)

EAGLE_GET_SELF_HIDDEN_STATES = op(
    "eagle_get_self_hidden_states",
    9,
    "Pack the draft model's own hidden states that go with the tokens it is fed next.",
    """
    As `eagle_gather_hidden_states`, where active are the slots with seq_lens_this_time > 0 after
    `draft_model_update`, and x and cu_seqlens_q are the last substep's [#active]. An active slot without rows in x gets
    a zero row [#no-rows], so that rows stand as `prepare_inputs` packs the next tokens [#packed]; a row beyond x is
    zero [#capacity]; output_token_num counts the active slots [#count]; the rows after are zero [#tail]. Source:
    FastDeploy's op of this name, of which each version knows the first substep by another sign.
    """,
    inp("x", "cu_seqlens_q", "seq_lens_this_time"),
    out("last_hidden", "output_token_num"),
)

OPS = (
    DRAFT_MODEL_PREPROCESS,
    DRAFT_MODEL_UPDATE,
    DRAFT_MODEL_POSTPROCESS,
    EAGLE_GET_HIDDEN_STATES,
    EAGLE_GATHER_HIDDEN_STATES,
    EAGLE_GET_SELF_HIDDEN_STATES,
)
