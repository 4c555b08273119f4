"""Section 6: draft by looking the last tokens up in the request's own history."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op
from specdec_hal.ops.enums import MatchPolicy
from specdec_hal.ops.spec import AttrSpec, Relation

MAX_NGRAM_SIZE = 16

_SIZES = (
    AttrSpec("max_ngram_size", int, "Longest query tried, and the first.", minimum=1, maximum=MAX_NGRAM_SIZE),
    AttrSpec("min_ngram_size", int, "Shortest query tried.", 1, minimum=1, maximum=MAX_NGRAM_SIZE),
)
_SIZE_ORDER = Relation("min_ngram_size", "max_ngram_size")


def _match_attrs(use_draft_token_num: bool) -> tuple[AttrSpec, ...]:
    return (
        *_SIZES,
        AttrSpec("token_budget", int, "Most input tokens of the next step, base tokens included.", minimum=0),
        AttrSpec("match_policy", MatchPolicy, "LEFTMOST: FastDeploy's rule. LATEST: the runner's default."),
        AttrSpec("pad_to_max", bool, "Pad every decode slot to S tokens: static shapes for graphs.", False),
        AttrSpec("use_draft_token_num", bool, "Bound each slot's drafts by its draft_token_num.", use_draft_token_num),
        AttrSpec("skip_last", bool, "Search the text without its last token, as FastDeploy's hybrid op does.", False),
        AttrSpec("continue_cycles", bool, "Drafts that reach the text's end go on with drafts.", False),
    )


_STATE = ("token_ids_all", "prompt_lens", "step_idx", "draft_token_num", "seq_lens_encoder", "seq_lens_decoder")
_MATCH_OPERANDS = (
    inp(*_STATE, "max_dec_len"),
    inout("draft_tokens", "seq_lens_this_time"),
    inout("index", optional=True),
    inp("pre_ids", optional=True),
)

_BUDGET = """
    Budget, one rule for all backends: granted_b = base + clamp(token_budget - used - left - base, 0, cnt), where used
    = sum of slt over earlier slots as granted (prefill slots: their slt) and left = number of later slots < B with
    enc > 0 or dec > 0 [#budget]. `pad_to_max`: afterwards every decode slot with slt >= 1 is padded to slt = S with
    its last valid draft (the base token if it has none), whatever the budget and the length limit; the verifier
    enforces the limit [#pad].
"""

_CYCLES = """With `continue_cycles`, which FastDeploy has not, a match gives cnt = q drafts under both policies:
    draft i is token a + i of the whole text followed by the drafts themselves, where a is the column after the
    occurrence; drafts after the last token so repeat what the text holds from a on [#cycles]."""

_PRE_IDS = """With pre_ids, step_idx is a column of it, as in `draft_model_update`: what stands after the prompt, gen
    and all drafts so far, is pre_ids[b, 0 .. step_idx], where step_idx is clamped to [-1, P-1], and token_ids_all is
    read for the prompt alone [#pre-ids]; q is then at most max_dec_len - step_idx - 1 [#pre-ids-wanted]."""

NGRAM_MATCH = op(
    "ngram_match",
    6,
    "Propose drafts from an earlier occurrence of the last n tokens.",
    f"""
    Runs after `update_model_status`, for slots < B. enc > 0: untouched [#prefill]. dec == 0: slt = 0 [#idle]. Otherwise
    base = 1 and q = min(draft_token_num, K, max_dec_len - step_idx - 1), without `use_draft_token_num` q = min(K,
    max_dec_len - step_idx - 1) [#wanted]. gen = the step_idx generated tokens. query(n) = the last n tokens [#query]:
    of gen under LEFTMOST (needs step_idx >= n), of prompt ++ gen under LATEST (needs step_idx >= 1 and prompt_len +
    step_idx >= n), which so drafts from the first generated token on [#query-spans]. For n = max_ngram_size down to
    min_ngram_size [#longest-first]:

    LEFTMOST: in the prompt, then in gen, the leftmost occurrence with at least one following token inside that same
    haystack [#leftmost]. LATEST: in prompt ++ gen as one text, the rightmost occurrence with at least one following
    token [#latest]. cnt = min(q, tokens left in that haystack) [#tokens-left]; drafts go to draft_tokens[b, 1..cnt],
    the rest of the row is untouched [#row]. q <= 0 or no match: cnt = 0 [#no-match]. With `skip_last` the last
    token ends queries, but is in no haystack [#skip-last]. {_CYCLES}
    {_BUDGET}
    With an up-to-date `index` the results are equal, and where the backend keeps one the look-up does not depend on
    the history's length [#index]; under `skip_last` or with pre_ids it is not used. {_PRE_IDS}
    Source: prompt look-up decoding (Saxena 2023); FastDeploy PRs #6960, #7103, #7136.
    """,
    *_MATCH_OPERANDS,
    attrs=_match_attrs(use_draft_token_num=True),
    relations=(Relation("B", "M"), _SIZE_ORDER),
)

HYBRID_MTP_NGRAM = op(
    "hybrid_mtp_ngram",
    6,
    "Extend MTP drafts with an n-gram continuation.",
    f"""
    As `ngram_match`, but a decode slot enters with slt = ori = 1 + MTP drafts (clamped to [1, S]) and keeps them:
    base = ori [#base]. The query is the suffix of gen ++ draft_tokens[b, 1..ori-1], under LATEST of prompt ++ gen ++
    those drafts, if any token stands after the prompt [#query]; the searched text is prompt ++ gen ++ those drafts
    (LEFTMOST: prompt, then gen ++ drafts) [#text], with `skip_last` up to its last token [#skip-last]. q = min(K + 1 -
    ori, max_dec_len - step_idx - ori), and with `use_draft_token_num`, which is off unless given, at most
    draft_token_num + 1 - ori [#wanted]. Drafts are appended at column ori [#appended]; MTP drafts are never taken away
    by the budget [#kept]. {_CYCLES} {_PRE_IDS}
    {_BUDGET}
    """,
    *_MATCH_OPERANDS,
    attrs=_match_attrs(use_draft_token_num=False),
    relations=(Relation("B", "M"), _SIZE_ORDER),
)

NGRAM_INDEX_UPDATE = op(
    "ngram_index_update",
    6,
    "Bring each slot's n-gram index up to date with its history.",
    """
    Appends what prompt ++ generated holds beyond what the index has seen, for slots with dec > 0 and enc == 0
    [#append]; other slots are untouched [#others]. The n-gram sizes must be those of the look-up. Accepted tokens are
    final: a history that changes or shrinks needs `ngram_index_reset` first.
    """,
    inout("index"),
    inp("token_ids_all", "prompt_lens", "step_idx", "seq_lens_encoder", "seq_lens_decoder"),
    attrs=_SIZES,
    relations=(_SIZE_ORDER,),
)

NGRAM_INDEX_RESET = op(
    "ngram_index_reset",
    6,
    "Forget the history of the given slots (a new request, or a changed history).",
    """
    The slots whose `reset_slots` is true have seen nothing [#forget]; those whose it is false are untouched [#others].
    A fresh index must be reset in all slots before its first use.
    """,
    inout("index"),
    inp("reset_slots"),
)

OPS = (NGRAM_MATCH, HYBRID_MTP_NGRAM, NGRAM_INDEX_UPDATE, NGRAM_INDEX_RESET)
