"""Section 11 got wrong: masked tokens, another vocabulary, confidence."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited

_edit = partial(Edit, "drafter")
_BLOCK, _MAP, _TRUNCATE = "prepare_block_inputs", "map_draft_logits", "truncate_by_confidence"

MUTANTS = (
    edited(
        "block-begins-before-the-last-token",
        _BLOCK,
        "the block's anchor is the token before the last: every draft is one token late",
        _edit("[after - 1]", "[after - 2]"),
    ),
    edited(
        "wrapped-source",
        _BLOCK,
        "a negative place counts from the end",
        _edit("0 <= source < tokens", "-1 != source < tokens"),
    ),
    edited(
        "block-offsets-of-what-fits",
        _BLOCK,
        "offsets end at the capacity, so that the caller cannot tell that rows are missing",
        _edit("min(end, _INT32_MAX)", "min(end, len(block_token_ids))"),
    ),
    edited(
        "lacking-tokens-wrap",
        _MAP,
        "-1 counts from the end: tokens that the draft model lacks have its last token's logit",
        _edit(
            "(target_to_draft >= 0) & (target_to_draft < own_logits.shape[1])",
            "(target_to_draft >= -1) & (target_to_draft < own_logits.shape[1])",
        ),
    ),
    edited(
        "d2t-for-t2d",
        _MAP,
        "ids stay as they are: the draft vocabulary is taken for the first part of the target's",
        _edit("own_logits[:, target_to_draft[known]]", "own_logits[:, np.cumsum(known)[known] - 1]"),
    ),
    edited(
        "each-confidence-for-itself",
        _TRUNCATE,
        "a draft is weighed without the earlier ones, on which it depends",
        _edit("p = p * confidence", "p = confidence"),
    ),
    edited(
        "cut-after-the-doubted",
        _TRUNCATE,
        "the draft that is doubted is verified",
        _edit("seq_lens_this_time[b] = i + 1", "seq_lens_this_time[b] = i + 2"),
    ),
    edited(
        "product-in-float64",
        _TRUNCATE,
        "the product is not rounded to float32, and differs from other backends' at the limit",
        _edit("p = np.float32(1)", "p = np.float64(1)"),
    ),
    edited(
        "not-a-number-is-doubt",
        _TRUNCATE,
        "a confidence that is NaN cuts",
        _edit("p < min_confidence[b]", "not p >= min_confidence[b]"),
    ),
    edited(
        "prompt-doubted", _TRUNCATE, "a prompt's chunk is taken for drafts", _edit("seq_lens_encoder[b] > 0", "False")
    ),
)
