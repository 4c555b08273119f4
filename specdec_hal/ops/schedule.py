"""Section 8: what an engine decides around a step, carried out on the device."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op
from specdec_hal.ops.spec import Relation

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
    completes, so that a token drawn behind the chunk is the one drawn before [#resume].

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
    "Cut the emitted tokens behind the first stop sequence, between `verify_draft_tokens` and `update_model_status`.",
    """
    For each slot with accept_num > 0 (clamped to [0, S]), in order of i = 0 .. accept_num - 1: g = step_idx + i + 1 is
    the number of generated tokens that accept_tokens[b, i] completes. The generated text is token_ids_all from
    prompt_lens on for step_idx tokens (both clamped as in `update_model_status`), then accept_tokens[b, 0..i]. If g >=
    min_dec_len [#minimum] and the text ends with stop_seqs[b, q, :n], n = stop_seqs_lens[b, q] clamped to [0, Z], for
    any q with 0 < n <= g [#match], also where the sequence began in earlier steps [#history], but never in the prompt
    [#prompt], then accept_num = i + 1, the tokens behind become -1 [#cut], and max_dec_len = g, so that
    `update_model_status` stops the slot [#limit]. The first such i decides [#first].

    Slots without a match, and slots that emitted nothing, are untouched [#untouched]. A stop token is a sequence of
    length 1. Source: FastDeploy's `speculative_set_stop_value_multi_seqs`.
    """,
    inp("token_ids_all", "prompt_lens", "step_idx", "min_dec_len", "stop_seqs", "stop_seqs_lens"),
    inout("accept_tokens", "accept_num", "max_dec_len"),
)

OPS = (SCHEDULE_SLOTS, SET_STOP_SEQUENCES)
