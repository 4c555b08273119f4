"""Section 10 got wrong: masks on logits and on drafts."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited

_edit = partial(Edit, "bitmask")
_APPLY, _TRUNCATE = "apply_token_bitmask", "truncate_drafts"
_BITS = 'np.unpackbits(words.astype("<i4", copy=False).view(np.uint8), bitorder="little")'
_COLUMNS = "bits[:vocab_size][first_token : first_token + len(row)]"
_ROW = "int(cu_seqlens_q_output[b]) + i"
_CUT = "seq_lens_this_time[b] = i + 1"

MUTANTS = (
    edited("mask-by-row-number", f"{_APPLY} {_TRUNCATE}",
           "row r has mask r: where a request's drafts were trimmed, the next one has its masks (vLLM #49738)",
           _edit("bitmask[bitmask_rows[row]]", "bitmask[row % len(bitmask)]")),
    edited("no-mask-is-the-last-mask", f"{_APPLY} {_TRUNCATE}",
           "-1 counts from the end: requests without a grammar get somebody's mask",
           _edit("0 <= bitmask_rows[row] < len(bitmask)", "bitmask_rows[row] < len(bitmask)")),
    edited("bits-from-the-top", _APPLY, "bits are read from the most significant of a byte on",
           _edit(_BITS, 'np.unpackbits(words.astype("<i4", copy=False).view(np.uint8))')),
    edited("last-word-read-whole", _APPLY, "bits of the last word beyond the vocabulary allow tokens that are none",
           _edit(_COLUMNS, "bits[first_token : first_token + len(row)]")),
    edited("every-part-from-token-0", _APPLY, "each rank's columns are masked as if they were the first",
           _edit(_COLUMNS, "bits[:vocab_size][: len(row)]")),
    edited("empty-mask-is-no-mask", _APPLY, "a mask that allows nothing is taken for none",
           _edit("words is None", "words is None or not words.any()", _APPLY)),
    edited("rows-at-a-fixed-stride", _TRUNCATE,
           "slot b's rows begin at b * S: right as long as every slot has all its drafts",
           _edit(_ROW, "b * draft_tokens.shape[1] + i")),
    edited("last-forbidden-decides", _TRUNCATE, "a forbidden draft is kept if another one follows",
           _edit(f"{_CUT}; break", _CUT)),
    edited(
        "cut-without-a-grammar",
        _TRUNCATE,
        "drafts end where a row has no mask: a constraint that begins inside the window, as after thinking, is missed",
        _edit("if words is None: continue", "if words is None: break", _TRUNCATE),
    ),
    edited("prompt-cut", _TRUNCATE, "a prompt's chunk is taken for drafts", _edit("seq_lens_encoder[b] > 0", "False")),
    edited("negative-drafts-wrap", _TRUNCATE, "-1, where a proposer drafts nothing, counts from the vocabulary's end",
           _edit("0 <= draft < size", "draft < size")),
    edited("draft-0-is-no-token", _TRUNCATE, "< for <=: token 0 is never allowed as a draft",
           _edit("0 <= draft < size", "0 < draft < size")),
    edited("row-after-the-last", _TRUNCATE, "<= for <: the row after the last has the last one's mask",
           _edit("0 <= row < len(bitmask_rows)", "0 <= row <= len(bitmask_rows)"),
           _edit("0 <= bitmask_rows[row] < len(bitmask)",
                 "0 <= bitmask_rows[min(row, len(bitmask_rows) - 1)] < len(bitmask)"),
           _edit("bitmask[bitmask_rows[row]]", "bitmask[bitmask_rows[min(row, len(bitmask_rows) - 1)]]")),
    edited("draft-beyond-the-vocabulary", _TRUNCATE,
           "bits of the last word beyond the vocabulary allow drafts that are no tokens",
           _edit("min(vocab_size, 32 * bitmask.shape[1])", "32 * bitmask.shape[1]")),
)  # fmt: skip
