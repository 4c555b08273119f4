"""Sections 1 and 2 got wrong: the packed batch and its orders."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited, undefined

_edit = partial(Edit, "step_index")
_ORDERED = "adjust_batch recover_batch gather_next_token"

MUTANTS = (
    edited("prefill-counted-twice", "prepare_inputs",
           "the keys of a prefill chunk are counted as already cached and once more as new",
           _edit("slt + max(int(seq_lens_decoder[b]), 0) if slt else 0",
                 "slt + max(int(seq_lens_decoder[b]), 0) + (slt if prefill else 0) if slt else 0",
                 given="prefill = seq_lens_encoder[b] > 0")),
    edited("idle-slots-have-keys", "prepare_inputs",
           "cu_seqlens_k runs over all slots and not only those with tokens: attention reads a neighbour's cache",
           _edit("slt + max(int(seq_lens_decoder[b]), 0) if slt else 0", "slt + max(int(seq_lens_decoder[b]), 0)")),
    edited("a-row-per-prefill-token", "prepare_inputs",
           "a prefill chunk gives logits for every prompt token: T rows where the sampler expects one",
           _edit("0 if slt == 0 else 1 if prefill else slt", "slt")),
    edited("prefill-takes-drafts", "prepare_inputs",
           "a slot that was reused for a new request is fed the last request's drafts instead of the prompt",
           _edit("input_ids[b] if prefill else draft_tokens[b]", "draft_tokens[b]")),
    edited("offsets-state-what-fits", "prepare_inputs",
           "a capacity that is too small goes unnoticed: the caller sees a shorter batch that looks right",
           _edit("t += slt", "t += fits", given="ids_remove_padding[t : t + fits] = source[:fits]")),
    edited("sums-wrap-at-32-bits", "prepare_inputs",
           "offsets summed in int32 become negative and point in front of the buffer",
           _edit("(min(total, INT32_MAX) for total in (t, k, r))", "((n + 2**31) % 2**32 - 2**31 for n in (t, k, r))")),
    edited("negative-lengths-shrink-the-batch", "prepare_inputs",
           "a stale negative length is added to the prefix sum and shifts every later slot",
           _edit("slt = min(max(int(seq_lens_this_time[b]), 0), len(source))",
                 "slt = min(int(seq_lens_this_time[b]), len(source))")),
    *(
        undefined(
            "prepare_inputs", output, fill, f"the tail of {output} holds whatever the last step left (FastDeploy)"
        )
        for output, fill in (("ids_remove_padding", 0), ("batch_id_per_token", -1), ("batch_id_per_token_output", -1))
    ),
    edited("unstable-order", _ORDERED,
           "an unstable partition: adjust and recover agree with each other, and with no other backend",
           _edit("lambda b: not seq_lens_encoder[b] > 0", "lambda b: (not seq_lens_encoder[b] > 0, -b)")),
    edited("decode-first", _ORDERED, "the order that the hardware wants, the other way round",
           _edit("lambda b: not seq_lens_encoder[b] > 0", "lambda b: seq_lens_encoder[b] > 0")),
    edited("recover-permutes-again", "recover_batch",
           "the permutation is applied twice instead of undone: equal for batches whose permutation is its own inverse",
           _edit("out[placed] = x[: len(placed)]", "out[: len(placed)] = x[placed]")),
    edited("ids-through-float32", "adjust_batch",
           "token ids pass through a float32 copy: ids above 2^24 change (D = 1 is meant for ids)",
           _edit("x[placed]", "x[placed].astype(np.float32)", "adjust_batch")),
    undefined("adjust_batch", "out", 0, "rows after the last token hold the last step's hidden states"),
    undefined("recover_batch", "out", 0, "rows after the last token hold the last step's hidden states"),
    edited("idle-rows-left", "gather_next_token",
           "the plain path leaves the rows of idle slots undefined (FastDeploy XPU)",
           _edit("out[:] = 0", "out[:] = 0 if is_speculative else out", "gather_next_token")),
    undefined("gather_next_token", "out", 0, "rows that no slot has are uninitialised"),
    edited("plain-gather-packs", "gather_next_token",
           "the plain path returns the rows of active slots one after the other: idle slots shift all later ones",
           _edit("[(b, b, -1) for b in range(len(seq_lens_this_time))]",
                 "[(n, int(b), -1) for n, b in enumerate(np.flatnonzero(seq_lens_this_time > 0))]")),
    edited("gather-ignores-the-order", "gather_next_token",
           "hidden states come prefill first and are read in slot order: requests get each other's logits",
           _edit("token_row_of = {row: token_row for token_row, row in enumerate(placed)}",
                 "token_row_of = {row: row for row in placed}")),
    edited("first-token-of-the-chunk", "gather_next_token",
           "a prefill chunk is judged by its first token's hidden state",
           _edit("rows[-1] if last_only else rows[min(max(i, 0), len(rows) - 1)]",
                 "rows[0] if last_only else rows[min(max(i, 0), len(rows) - 1)]")),
)  # fmt: skip
