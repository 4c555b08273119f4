"""Section 6: draft by looking up the last tokens in the request's own history."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op
from specdec_hal.ops.enums import MatchPolicy
from specdec_hal.ops.spec import AttrSpec, Relation

MAX_NGRAM_SIZE = 16

_SIZES = (
    AttrSpec("max_ngram_size", int, "Longest query, tried first.", minimum=1, maximum=MAX_NGRAM_SIZE),
    AttrSpec("min_ngram_size", int, "Shortest query.", 1, minimum=1, maximum=MAX_NGRAM_SIZE),
)
_SIZE_ORDER = Relation("min_ngram_size", "max_ngram_size")


def _match_attrs(use_draft_token_num: bool) -> tuple[AttrSpec, ...]:
    return (
        *_SIZES,
        AttrSpec("token_budget", int, "Most input tokens of the next step, base tokens included.", minimum=0),
        AttrSpec("match_policy", MatchPolicy, "LEFTMOST: FastDeploy's rule. LATEST: the runner's default."),
        AttrSpec("pad_to_max", bool, "Pad every decode slot to S tokens, for the static shapes of graphs.", False),
        AttrSpec("use_draft_token_num", bool, "Bound each slot's drafts by its draft_token_num.", use_draft_token_num),
        AttrSpec("skip_last", bool, "Do not search the last token, as FastDeploy's hybrid op.", False),
        AttrSpec("continue_cycles", bool, "Continue beyond the text's end with the drafts themselves.", False),
    )


_STATE = ("token_ids_all", "prompt_lens", "step_idx", "draft_token_num", "seq_lens_encoder", "seq_lens_decoder")
_MATCH_OPERANDS = (
    inp(*_STATE, "max_dec_len"),
    inout("draft_tokens", "seq_lens_this_time"),
    inout("index", optional=True),
    inp("pre_ids", optional=True),
)

_BUDGET = """
    Budget: a slot is granted slt = base + clamp(token_budget - used - left - base, 0, cnt). used is the sum of slt over
    earlier slots as granted (for prefill slots: their slt); left is the number of later slots < B with enc > 0 or dec >
    0 [#budget]. With `pad_to_max`, every decode slot with slt >= 1 is then padded to slt = S with its last valid draft
    (the base token if it has none), whatever the budget and the length limit; the verifier enforces the limit [#pad].
"""

_CYCLES = """With `continue_cycles`, which FastDeploy lacks, a match gives cnt = q drafts under both policies. Draft i
    is token a + i of the whole text followed by the drafts themselves, where a is the column after the occurrence: at
    the end of the text, the drafts repeat the text from a on [#cycles]."""

_PRE_IDS = """With pre_ids, step_idx is a column of pre_ids, as in `draft_model_update`. The text after the prompt (gen
    and all drafts so far) is pre_ids[b, 0 .. step_idx], step_idx clamped to [-1, P-1]; only the prompt is read from
    token_ids_all [#pre-ids]. q is then at most max_dec_len - step_idx - 1 [#pre-ids-wanted]."""

NGRAM_MATCH = op(
    "ngram_match",
    6,
    "Propose drafts from an earlier occurrence of the last n tokens.",
    f"""
    Runs after `update_model_status`, for slots < B. enc > 0: untouched [#prefill]. dec == 0: slt = 0 [#idle]. Otherwise
    base = 1 and q = min(draft_token_num, K, max_dec_len - step_idx - 1); without `use_draft_token_num`, q = min(K,
    max_dec_len - step_idx - 1) [#wanted]. gen is the step_idx generated tokens. query(n) is the last n tokens [#query].
    Under LEFTMOST they are taken from gen (needs step_idx >= n). Under LATEST they are taken from prompt ++ gen (needs
    step_idx >= 1 and prompt_len + step_idx >= n), so drafting starts at the first generated token [#query-spans]. For n
    = max_ngram_size down to min_ngram_size [#longest-first]:

    LEFTMOST: in the prompt, then in gen, the leftmost occurrence with at least one following token in the same haystack
    [#leftmost]. LATEST: in prompt ++ gen as one text, the rightmost occurrence with at least one following token
    [#latest]. cnt = min(q, tokens left in that haystack) [#tokens-left]. Drafts go to draft_tokens[b, 1..cnt]; the rest
    of the row is untouched [#row]. If q <= 0 or nothing matches, cnt = 0 [#no-match]. With `skip_last`, the last token
    is part of queries but not of haystacks [#skip-last].
    {_CYCLES}
    {_BUDGET}
    An up-to-date `index` gives equal results; in a backend that keeps one, the look-up does not depend on the history's
    length [#index]. It is not used under `skip_last` or with pre_ids.
    {_PRE_IDS}
    Source: prompt look-up decoding (Saxena 2023); FastDeploy PRs #6960, #7103, #7136.
    """,
    *_MATCH_OPERANDS,
    attrs=_match_attrs(use_draft_token_num=True),
    relations=(_SIZE_ORDER,),
)

HYBRID_MTP_NGRAM = op(
    "hybrid_mtp_ngram",
    6,
    "Extend MTP drafts with an n-gram continuation.",
    f"""
    Like `ngram_match`, but a decode slot enters with slt = ori = 1 + MTP drafts (clamped to [1, S]) and keeps them:
    base = ori [#base]. The query is a suffix of gen ++ draft_tokens[b, 1..ori-1]; under LATEST, of prompt ++ gen ++
    those drafts, if there is any token after the prompt [#query]. The searched text is prompt ++ gen ++ those drafts
    (LEFTMOST: prompt, then gen ++ drafts) [#text], with `skip_last` without its last token [#skip-last]. q is at most
    K + 1 - ori, max_dec_len - step_idx - ori and, with `use_draft_token_num`, draft_token_num + 1 - ori [#wanted].
    Drafts are appended at column ori [#appended]. The budget never removes MTP drafts [#kept].
    {_CYCLES}
    {_PRE_IDS}
    {_BUDGET}
    """,
    *_MATCH_OPERANDS,
    attrs=_match_attrs(use_draft_token_num=False),
    relations=(_SIZE_ORDER,),
)

NGRAM_INDEX_UPDATE = op(
    "ngram_index_update",
    6,
    "Bring each slot's n-gram index up to date with its history.",
    """
    For slots with dec > 0 and enc == 0, add the tokens of prompt ++ generated that the index has not seen [#append].
    Other slots are untouched [#others]. The n-gram sizes must be those of the look-up. Accepted tokens are final: if a
    history changes or shrinks, call `ngram_index_reset` first.
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
    The index of slots with reset_slots true becomes empty [#forget]; other slots are untouched [#others]. Reset all
    slots of a new index before its first use.
    """,
    inout("index"),
    inp("reset_slots"),
)

OPS = (NGRAM_MATCH, HYBRID_MTP_NGRAM, NGRAM_INDEX_UPDATE, NGRAM_INDEX_RESET)
