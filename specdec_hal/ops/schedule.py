"""Section 8: an engine's decisions and records around a step, on the device."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op
from specdec_hal.ops.spec import AttrSpec, Relation

SCHEDULE_SLOTS = op(
    "schedule_slots",
    8,
    "Apply the scheduler's decision for each slot, before `prepare_inputs`.",
    """
    Slots < B follow slot_actions[b]. KEEP (0), and any value that names no action, leaves the slot as it is [#keep].

    PREFILL (1): start = chunk_starts[b] clamped to [0, L], n = chunk_lens[b] clamped to [0, min(I_cap, L - start)]. enc
    = slt = n, dec = start, step_idx = chunk_step_idx[b], stop_flags = is_block_step = false [#prefill]; input_ids[b, i]
    = token_ids_all[b, start + i] for i < n, the rest of the row stays [#chunk]. A request that resumes after preemption
    is prefilled through its generated tokens too: chunk_step_idx is then the number of generated tokens that the chunk
    completes, so that a token drawn after the chunk is the one drawn before [#resume].

    WAIT (2): enc = slt = 0; the slot has no token this step and keeps everything else [#wait].

    STOP (3): stop_flags = true, enc = dec = slt = 0 [#stop].

    Slots >= B are untouched [#padding].
    """,
    inp("slot_actions", "chunk_lens", "chunk_starts", "chunk_step_idx", "token_ids_all"),
    inout("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "step_idx", "stop_flags", "is_block_step"),
    inout("input_ids"),
    relations=(Relation("B", "M"),),
)

SET_STOP_SEQUENCES = op(
    "set_stop_sequences",
    8,
    "Cut the emitted tokens after the first stop sequence, between `verify_draft_tokens` and `update_model_status`.",
    """
    All M slots. A slot's generated text is token_ids_all[b] from prompt_lens on, step_idx tokens (both clamped as in
    `update_model_status`), then the emitted tokens accept_tokens[b, 0 .. accept_num - 1], accept_num clamped to [0, S].

    For i = 0 .. accept_num - 1, the text up to and including accept_tokens[b, i] has g = step_idx + i + 1 tokens, of
    the clamped step_idx. It ends the request if g >= min_dec_len [#minimum] and the text ends with stop_seqs[b, q, :n],
    n = stop_seqs_lens[b, q] clamped to [0, Z], for any q with 0 < n <= g [#match], also where the sequence began in
    earlier steps [#history], but never in the prompt [#prompt]. The first such i decides [#first]: accept_num = i + 1,
    the tokens after it become -1 [#cut], or stay with `keep_tail` [#tail], and max_dec_len = step_idx + i + 1, so that
    `update_model_status` stops the slot [#limit].

    With `end_after_stop` and E > 0, for readers who know the end of a request by an end token alone, one follows the
    sequence: the text before accept_tokens[b, i], of g = step_idx + i tokens, is the one that ends with a sequence, and
    accept_tokens[b, i] becomes end_tokens[0] [#end-token]. A sequence that ends with the newest token ends the request
    in the next step [#wait].

    Slots without a match, and slots that emitted nothing, are untouched [#untouched]. A stop token is a sequence of
    length 1. Source: FastDeploy's `speculative_set_stop_value_multi_seqs`.
    """,
    inp("token_ids_all", "prompt_lens", "step_idx", "min_dec_len", "stop_seqs", "stop_seqs_lens"),
    inout("accept_tokens", "accept_num", "max_dec_len"),
    inp("end_tokens", optional=True),
    attrs=(
        AttrSpec("end_after_stop", bool, "An end token follows the sequence: FastDeploy's rule.", default=False),
        AttrSpec("keep_tail", bool, "Tokens after the cut stay as they were.", default=False),
    ),
)

WRITE_ACCEPTED = op(
    "write_accepted",
    8,
    "Write the accepted tokens into the history, for a caller that advances its slots itself.",
    """
    Slots < B that have not stopped [#stopped], with enc > 0 or dec > 0 [#idle] and step_idx >= 0 [#before]. count =
    accept_num clamped to [0, S]. step_idx includes this step's tokens, so that accept_tokens[b, i] goes to column
    prompt_lens[b] + step_idx[b] - count + i of token_ids_all[b], prompt_lens clamped to [0, L] [#columns]; with
    `last_index`, where step_idx names the place of the last token instead, to the column after [#last-index]. What
    does not fall after the prompt and inside the row is not written [#clamp]. Nothing else is touched [#untouched].
    Source: FastDeploy's `speculate_set_value_by_flags_and_idx`, which has `last_index`; `update_model_status` does this
    and more.
    """,
    inout("token_ids_all"),
    inp("prompt_lens", "accept_tokens", "accept_num", "stop_flags"),
    inp("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder", "step_idx"),
    attrs=(AttrSpec("last_index", bool, "step_idx is the place of the last token, not the count.", default=False),),
    relations=(Relation("B", "M"),),
)

CLEAR_ACCEPT_NUM = op(
    "clear_accept_num",
    8,
    "Forget the counts of slots that are not in the KV cache.",
    """
    All M slots: accept_num = 0 where dec <= 0 [#clear]; other counts stay, whatever they are [#kept]. Source:
    FastDeploy's `speculate_clear_accept_nums`.
    """,
    inout("accept_num"),
    inp("seq_lens_decoder"),
)

OPS = (SCHEDULE_SLOTS, SET_STOP_SEQUENCES, WRITE_ACCEPTED, CLEAR_ACCEPT_NUM)
