"""Sections 1 and 2 got wrong: the packed batch and its orders."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited, undefined

_edit = partial(Edit, "step_index")


MUTANTS = (
    edited("prefill-counted-twice", "prepare_inputs",
           "the keys of a prefill chunk are counted as already cached and once more as new",
           _edit("slt + max(int(seq_lens_decoder[b]), 0) if slt else 0",
                 "slt + max(int(seq_lens_decoder[b]), 0) + (slt if prefill else 0) if slt else 0",
                 given="prefill = seq_lens_encoder[b] > 0")),
    edited("offsets-state-what-fits", "prepare_inputs",
           "a capacity that is too small goes unnoticed: the caller sees a shorter batch that looks right",
           _edit("t += slt", "t += fits", given="ids_remove_padding[t : t + fits] = source[:fits]")),
    edited("sums-wrap-at-32-bits", "prepare_inputs",
           "offsets summed in int32 become negative and point in front of the buffer",
           _edit("(min(total, INT32_MAX) for total in (t, k, r))", "((n + 2**31) % 2**32 - 2**31 for n in (t, k, r))")),
    *(
        undefined(
            "prepare_inputs", output, fill, f"the tail of {output} holds whatever the last step left (FastDeploy)"
        )
        for output, fill in (("ids_remove_padding", 0), ("batch_id_per_token", -1), ("batch_id_per_token_output", -1))
    ),
    edited("recover-permutes-again", "recover_batch",
           "the permutation is applied twice instead of undone: equal for batches whose permutation is its own inverse",
           _edit("out[placed] = x[: len(placed)]", "out[: len(placed)] = x[placed]")),
    edited("ids-through-float32", "adjust_batch",
           "token ids pass through a float32 copy: ids above 2^24 change (D = 1 is meant for ids)",
           _edit("x[placed]", "x[placed].astype(np.float32)", "adjust_batch")),
    undefined("adjust_batch", "out", 0, "rows after the last token hold the last step's hidden states"),
    undefined("recover_batch", "out", 0, "rows after the last token hold the last step's hidden states"),
    undefined("gather_next_token", "out", 0, "rows that no slot has are uninitialised"),
    edited("plain-gather-packs", "gather_next_token",
           "the plain path returns the rows of active slots one after the other: idle slots shift all later ones",
           _edit("[(b, b, -1) for b in range(len(seq_lens_this_time))]",
                 "[(n, int(b), -1) for n, b in enumerate(np.flatnonzero(seq_lens_this_time > 0))]")),
    edited("gather-ignores-the-order", "gather_next_token",
           "hidden states come prefill first and are read in slot order: requests get each other's logits",
           _edit("token_row_of = {row: token_row for token_row, row in enumerate(placed)}",
                 "token_row_of = {row: row for row in placed}")),
)  # fmt: skip
