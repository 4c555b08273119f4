"""Section 8: an engine's decisions and records around a step, on the device."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op
from specdec_hal.ops.spec import AttrSpec

SCHEDULE_SLOTS = op(
    "schedule_slots",
    8,
    "Apply the scheduler's decision for each slot, before `prepare_inputs`.",
    """
    For slots < B, by slot_actions[b]:

    - KEEP (0), and any value that is no action: the slot is untouched [#keep].
    - PREFILL (1): start = chunk_starts[b] clamped to [0, L]; n = chunk_lens[b] clamped to [0, min(I_cap, L - start)].
      enc = slt = n, dec = start, step_idx = chunk_step_idx[b], stop_flags = is_block_step = false [#prefill].
      input_ids[b, i] = token_ids_all[b, start + i] for i < n; the rest of the row is untouched [#chunk]. After
      preemption, generated tokens are prefilled too: chunk_step_idx is the number of generated tokens up to the chunk's
      end, so a token drawn after the chunk is the same as before preemption [#resume].
    - WAIT (2): enc = slt = 0. The slot has no token this step and keeps everything else [#wait].
    - STOP (3): stop_flags = true and enc = dec = slt = 0 [#stop].

    Slots >= B are untouched [#padding].
    """,
    inp("slot_actions", "chunk_lens", "chunk_starts", "chunk_step_idx", "token_ids_all"),
    inout("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "step_idx", "stop_flags", "is_block_step"),
    inout("input_ids"),
)

SET_STOP_SEQUENCES = op(
    "set_stop_sequences",
    8,
    "Truncate the emitted tokens after the first stop sequence, between `verify_draft_tokens` and "
    "`update_model_status`.",
    """
    All M slots. A slot's generated text is the step_idx tokens of token_ids_all[b] from prompt_lens on (both clamped as
    in `update_model_status`), then the emitted tokens accept_tokens[b, 0 .. accept_num - 1], accept_num clamped to
    [0, S].

    For i = 0 .. accept_num - 1, the text up to and including accept_tokens[b, i] has g = step_idx + i + 1 tokens, with
    the clamped step_idx. The request ends there if g >= min_dec_len [#minimum] and, for any q, the text ends with
    stop_seqs[b, q, :n], 0 < n <= g, n = stop_seqs_lens[b, q] clamped to [0, Z] [#match]. The sequence may begin in
    earlier steps [#history], but not in the prompt [#prompt]. At the first such i [#first], accept_num = i + 1. The
    tokens after it become -1 [#cut]; with `keep_tail` they stay [#tail]. max_dec_len = step_idx + i + 1, so
    `update_model_status` stops the slot [#limit].

    With `end_after_stop` and E > 0, an end token follows the sequence, for callers that detect the end by an end token:
    the text before accept_tokens[b, i], of g = step_idx + i tokens, is compared instead, and accept_tokens[b, i]
    becomes end_tokens[0] [#end-token]. If a sequence ends with the newest token, the request ends in the next step
    [#wait].

    Slots without a match, and slots that emitted nothing, are untouched [#untouched]. A stop token is a sequence of
    length 1. Source: FastDeploy's `speculative_set_stop_value_multi_seqs`.
    """,
    inp("token_ids_all", "prompt_lens", "step_idx", "min_dec_len", "stop_seqs", "stop_seqs_lens"),
    inout("accept_tokens", "accept_num", "max_dec_len"),
    inp("end_tokens", optional=True),
    attrs=(
        AttrSpec("end_after_stop", bool, "End with an end token after the sequence: FastDeploy's rule.", default=False),
        AttrSpec("keep_tail", bool, "Keep the tokens after the cut.", default=False),
    ),
)

WRITE_ACCEPTED = op(
    "write_accepted",
    8,
    "Write the accepted tokens into the history, for callers that advance slots themselves.",
    """
    Slots < B that have not stopped [#stopped], with enc > 0 or dec > 0 [#idle] and step_idx >= 0 [#before]. count is
    accept_num clamped to [0, S]. step_idx includes this step's tokens, so accept_tokens[b, i] goes to column
    prompt_lens[b] + step_idx[b] - count + i of token_ids_all[b], prompt_lens clamped to [0, L] [#columns]. With
    `last_index`, step_idx is the index of the last token instead, so the token goes one column further [#last-index].
    Tokens are written only after the prompt and inside the row [#clamp]. Everything else is untouched [#untouched].
    Source: FastDeploy's `speculate_set_value_by_flags_and_idx`, with `last_index`. `update_model_status` includes this.
    """,
    inout("token_ids_all"),
    inp("prompt_lens", "accept_tokens", "accept_num", "stop_flags"),
    inp("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder", "step_idx"),
    attrs=(AttrSpec("last_index", bool, "step_idx is the index of the last token, not the count.", default=False),),
)

CLEAR_ACCEPT_NUM = op(
    "clear_accept_num",
    8,
    "Clear the counts of slots that are not in the KV cache.",
    """
    All M slots: accept_num = 0 if dec <= 0 [#clear]; other counts keep their value, even outside [0, S] [#kept].
    Source: FastDeploy's `speculate_clear_accept_nums`.
    """,
    inout("accept_num"),
    inp("seq_lens_decoder"),
)

OPS = (SCHEDULE_SLOTS, SET_STOP_SEQUENCES, WRITE_ACCEPTED, CLEAR_ACCEPT_NUM)
