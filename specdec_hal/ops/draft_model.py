"""Section 9: state and input rows of draft models that read the target's hidden states (MTP, EAGLE)."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op, out
from specdec_hal.ops.spec import AttrSpec
from specdec_hal.ops.vocabulary import SERVED

_OWN = ("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder", "step_idx")

DRAFT_MODEL_PREPROCESS = op(
    "draft_model_preprocess",
    9,
    "Prepare the draft model's slots from the tokens that the target accepted, after `update_model_status`.",
    """
    Tensors named base_model_... belong to the target. The others belong to the draft model and mean what they mean for
    the target. For slots < B, count is accept_num clamped to [0, S], and enc is the draft model's seq_lens_encoder
    clamped to [0, I_cap]: the prompt chunk of this step. `schedule_slots` or the caller has set it, with the prompt
    shifted left by one token in input_ids.

    base_model_draft_tokens[b, 1..] become -1 [#no-drafts]. A slot drafts nothing if base_model_stop_flags is true,
    draft_token_num <= 0, max_dec_len - base_model_step_idx < min_room, or enc == 0 and count == 0. Then stop_flags =
    true and enc = dec = slt = step_idx = 0 [#idle]. Otherwise stop_flags = false and step_idx = base_model_step_idx,
    the number of tokens generated so far [#step]:

    - enc > 0: seq_lens_encoder = slt = enc; dec is unchanged [#chunk]. If count > 0, input_ids[b, enc-1] =
      accept_tokens[b, 0], the token after the prompt; otherwise that entry is unchanged [#first-token].
    - enc == 0: the accepted tokens go to draft_tokens[b, 0 .. count-1] and slt = count [#accepted]. dec = max(0,
      base_model_seq_lens_decoder - count): the draft model overwrites its cache from the step's first token on, so
      nothing of rejected drafts remains [#rollback].

    With pre_ids, step_idx is the column of pre_ids at which the step's tokens begin: base_model_step_idx - count, or
    base_model_step_idx - 1 if enc > 0 [#column]. The accepted tokens are also written there (the token after a prompt,
    to column 0), up to the end of the row [#history]. Slots with count == 0 run too, and their chunk ends in
    accept_tokens[b, 0] [#nothing-accepted].

    has_running: whether any slot < B drafts [#running]. Slots >= B are untouched [#padding]. Source: FastDeploy's op of
    this name, which behaves like this one with pre_ids. Here the history is not needed: `token_ids_all` and the drafts
    hold it. FastDeploy skips a slot without room for all drafts, as min_room = 1 + their number does; by default
    `draft_model_update` ends each slot at its own limit.
    """,
    inout("draft_tokens", "input_ids", "stop_flags", *_OWN),
    out("has_running"),
    inp("accept_tokens", "accept_num", "base_model_seq_lens_decoder", "base_model_step_idx", "base_model_stop_flags"),
    inp("max_dec_len", "draft_token_num"),
    inout("base_model_draft_tokens"),
    inout("pre_ids", optional=True),
    attrs=(AttrSpec("min_room", int, "Least number of tokens that a slot may still generate.", 2, minimum=0),),
)

DRAFT_MODEL_UPDATE = op(
    "draft_model_update",
    9,
    "Take one token of the draft model per active slot, and prepare the slots for the next one.",
    """
    Slots < B with slt > 0 are active. The token of the r-th active slot, counted from 0, is inter_next_tokens[r]
    [#rank], or -1 if r >= R_cap [#capacity]. dec += slt and enc = 0 [#cached].

    The token becomes draft substep + 1 if substep < min(draft_token_num, K), step_idx > 0, max_dec_len - step_idx > 1,
    the token is not negative and the slot has not stopped: base_model_draft_tokens[b, substep+1] = draft_tokens[b, 0] =
    token and step_idx += 1 [#draft]. Otherwise base_model_draft_tokens[b, substep+1], if it exists, becomes -1
    [#none]. A slot with step_idx 0 is inside its prompt and only fills its cache [#inside-prompt]. slt = 1 if the token
    was taken and the same conditions hold for substep + 1 and the new step_idx; else slt = 0 [#next].

    With pre_ids, step_idx is a column of pre_ids and draft_token_num is not read. If the slot has stopped or its token
    is negative, draft_tokens[b, 0] and base_model_draft_tokens[b, substep+1] become -1 and slt = enc = 0 [#ended].
    Otherwise, if enc > 0, dec += enc, step_idx += 1, and draft_tokens[b, 0] and pre_ids[b, 1] become the token; if enc
    <= 0 and the slot has room (max_dec_len - step_idx > 1), dec += slt, step_idx += slt, and draft_tokens[b, 0] and
    pre_ids[b, step_idx] become the token. Columns outside pre_ids are not written, and afterwards enc = 0 and slt = 1
    [#history]. The draft is the token if the slot had room, else -1 [#room].

    has_running: whether any slot < B has slt > 0 afterwards [#running]. Other slots are untouched [#untouched]. End
    tokens are not checked: the verifier stops at them. Source: FastDeploy's op of this name, which behaves like this
    one with pre_ids.
    """,
    inp("inter_next_tokens"),
    inout("draft_tokens", *_OWN),
    inp("stop_flags"),
    out("has_running"),
    inp("max_dec_len", "draft_token_num"),
    inout("base_model_draft_tokens"),
    inout("pre_ids", optional=True),
    attrs=(AttrSpec("substep", int, "Number of the draft, from 0.", minimum=0, maximum=SERVED["S"] - 2),),
)

DRAFT_MODEL_POSTPROCESS = op(
    "draft_model_postprocess",
    9,
    "Count the drafts that the target verifies in its next step.",
    """
    All tensors are the target's. For slots < B: a stopped slot gets slt = 0 [#stopped]; one with enc > 0 is untouched
    [#prefill]. Otherwise, if dec > 0, slt = 1 + the number of entries of draft_tokens[b, 1..] before the first negative
    one [#count]; if dec <= 0, slt = 0 [#idle]. Source: FastDeploy's op of this name.
    """,
    inp("draft_tokens"),
    inout("seq_lens_this_time"),
    inp("seq_lens_encoder", "stop_flags", "seq_lens_decoder"),
)

EAGLE_GET_HIDDEN_STATES = op(
    "eagle_get_hidden_states",
    9,
    "Select the target's hidden states for the draft model's input tokens.",
    """
    x holds the target's hidden states of its step, in slot order: those of slot b start at row
    base_model_cu_seqlens_q[b]. cu_seqlens_q and batch_id_per_token are the draft model's, from `prepare_inputs` after
    `draft_model_preprocess`. With b = batch_id_per_token[r] and i = r - cu_seqlens_q[b], row r of out is row
    base_model_cu_seqlens_q[b] + i of x: all rows of a prefill chunk, and one row per accepted token of a decode slot
    [#rows]. It is zero if b is outside [0, B) [#tail], if i < 0 or the slot has no i-th row in the target's step
    [#beyond], or if x has no such row [#capacity]. Source: FastDeploy's op of this name.
    """,
    inp("x", "cu_seqlens_q", "batch_id_per_token", "base_model_cu_seqlens_q"),
    out("out"),
)

EAGLE_GATHER_HIDDEN_STATES = op(
    "eagle_gather_hidden_states",
    9,
    "Pack the last row of each slot with input tokens.",
    """
    Slot b is active if cu_seqlens_q[b+1] > cu_seqlens_q[b]. last_hidden[k] is row cu_seqlens_q[b+1] - 1 of x for the
    k-th active slot b [#packed], or zero if x has no such row [#capacity]. output_token_num is the number of active
    slots [#count]; later rows are zero [#tail]. Source: FastDeploy's op of this name.
    """,
    inp("x", "cu_seqlens_q"),
    out("last_hidden", "output_token_num"),
)

EAGLE_GET_SELF_HIDDEN_STATES = op(
    "eagle_get_self_hidden_states",
    9,
    "Pack the draft model's own hidden states for its next input tokens.",
    """
    Like `eagle_gather_hidden_states`, but the active slots are those with seq_lens_this_time > 0 after
    `draft_model_update`; x and cu_seqlens_q are those of the last substep [#active]. An active slot without rows in x
    gets a zero row [#no-rows], so the rows match the next tokens as `prepare_inputs` packs them [#packed]. A row beyond
    x is zero [#capacity]. output_token_num is the number of active slots [#count]; later rows are zero [#tail].
    Source: FastDeploy's op of this name, whose versions recognise the first substep in different ways.
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
