"""Section 11 got wrong: masked tokens, another vocabulary, confidence."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited
from tests.conformance.mutants.recurrent import DOT_IN_FLOAT64

_edit = partial(Edit, "drafter")
_BLOCK, _MAP, _TRUNCATE = "prepare_block_inputs", "map_draft_logits", "truncate_by_confidence"
_PATH = "select_draft_path"
_PRODUCTS = "(code * to_f32(path_hidden[r])) * to_f32(successor_codes[ids])"
_OFFSETS = "np.maximum.accumulate(cu_seqlens_q_output.clip(0, len(path_tokens))).tolist()"

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
        _edit("0 <= source < tokens", "-1 != source < tokens", within=_BLOCK),
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
    edited(
        "every-draft-after-the-anchor",
        _PATH,
        "the walk does not go on: all drafts are weighed by the last token",
        _edit("path_tokens[r] = before = int(ids[order][drawn])", "path_tokens[r] = int(ids[order][drawn])"),
    ),
    edited(
        "codes-swapped",
        _PATH,
        "a token's two codes are taken for each other",
        _edit(
            _PRODUCTS,
            "(to_f32(successor_codes[before]) * to_f32(path_hidden[r])) * to_f32(predecessor_codes[ids])",
            given="before = int(anchor_tokens[b])",
        ),
    ),
    edited(
        "row-and-candidate-first",
        _PATH,
        "products that every candidate's score can prepare",
        _edit(_PRODUCTS, "code * (to_f32(path_hidden[r]) * to_f32(successor_codes[ids]))"),
    ),
    edited(
        "scores-in-float64",
        _PATH,
        "products are not rounded, as where they are fused",
        _edit(_PRODUCTS, "(code * to_f32(path_hidden[r]).astype(np.float64)) * to_f32(successor_codes[ids])"),
        *DOT_IN_FLOAT64,
    ),
    edited(
        "sum-in-order",
        _PATH,
        "one partial sum",
        _edit("dot_sum(products)", "np.add.accumulate(np.pad(products, ((0, 0), (1, 0))), axis=1)[:, -1]"),
    ),
    edited(
        "without-logits",
        _PATH,
        "the drafter's own logits do not count",
        _edit("path_logits[r, known] + dot_sum(products)", "0 * path_logits[r, known] + dot_sum(products)"),
    ),
    edited(
        "drawn-in-the-order-of-candidates",
        _PATH,
        "the target draws in the order of ids, and agrees more seldom",
        _edit("np.argsort(ids)", "np.arange(len(ids))"),
    ),
    edited(
        "greedy-takes-the-lowest-id",
        _PATH,
        "equal scores are ordered as logits of a row are",
        _edit("masses[np.argmax(scores)] = one", "masses[len(scores) - 1 - np.argmax(scores[::-1])] = one"),
    ),
    edited(
        "repeated-candidates-count",
        _PATH,
        "a token that is listed twice is twice as likely",
        _edit("known &= [i not in ids[:c] for c, i in enumerate(ids)]", "pass"),
    ),
    edited(
        "padding-wraps", _PATH, "-1 counts from the end", _edit("(ids >= 0) & (ids < vocabulary)", "ids < vocabulary")
    ),
    edited(
        "anchors-wrap",
        _PATH,
        "an unknown token before the first draft counts from the end",
        _edit("0 <= before < vocabulary", "-1 <= before < vocabulary", within=_PATH),
    ),
    edited(
        "top-p-of-all-candidates",
        _PATH,
        "the nucleus is that of what top k has dropped, too",
        _edit("masses[order].sum(dtype=np.uint64)", "masses.sum(dtype=np.uint64)"),
    ),
    edited(
        "no-min-p",
        _PATH,
        "min p is not applied",
        _edit("masses[masses < mass_threshold(min_p, one)] = 0", "pass"),
    ),
    edited(
        "top-k-of-the-list",
        _PATH,
        "candidates are taken for sorted by score",
        _edit(
            "np.argsort(-scores, kind='stable')[:top_k if top_k > 0 else None]",
            "np.arange(len(scores))[:top_k if top_k > 0 else None]",
        ),
    ),
    edited(
        "purpose-of-the-target",
        _PATH,
        "drafts are drawn with the numbers that the verifier uses",
        _edit("philox_u64(row_seed[r], position[r], purpose)", "philox_u64(row_seed[r], position[r], Purpose.SAMPLE)"),
    ),
    edited(
        "probabilities-before-filters",
        _PATH,
        "q is that of the whole softmax",
        _edit("kept.sum(dtype=np.uint64)", "np.uint64(MASS_ONE)"),
    ),
    edited(
        "goes-on-without-a-draft",
        _PATH,
        "rows after one without a draft are drawn",
        _edit("if position[r] < 0 or kept is None: ...", "if position[r] < 0 or kept is None:\n    continue"),
    ),
    edited(
        "old-probabilities",
        _PATH,
        "probabilities of an earlier step stay where they are not overwritten",
        _edit("probs[:] = 0", "pass"),
    ),
    edited(
        "slots-overlap",
        _PATH,
        "offsets that descend make slots overlap",
        _edit(_OFFSETS, "cu_seqlens_q_output.clip(0, len(path_tokens)).tolist()"),
    ),
)
