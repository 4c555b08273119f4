"""Section 9 got wrong: the state of a draft model, and the rows it is fed."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited

_edit = partial(Edit, "draft_model")
_PRE, _UPDATE, _POST = "draft_model_preprocess", "draft_model_update", "draft_model_postprocess"
_GET, _GATHER, _SELF = "eagle_get_hidden_states", "eagle_gather_hidden_states", "eagle_get_self_hidden_states"
_TAKES = "substep < wanted and step_idx > 0 and max_dec_len - step_idx > 1"

MUTANTS = (
    edited("first-token-in-every-chunk", _PRE, "a chunk inside the prompt ends in a token that was never emitted",
           _edit("if feeds: ...", "if True: ...", _PRE, given="feeds = count > 0 or pre_ids is not None")),
    edited("stopped-slots-draft-on", _PRE, "a request that has ended in this step is drafted for",
           _edit("base_model_stop_flags[b] or draft_token_num[b] <= 0 or room < min_room or (enc == 0 and not feeds)",
                 "draft_token_num[b] <= 0 or room < min_room or (enc == 0 and not feeds)")),
    edited("drafts-nobody-wants", _PRE, "a request without drafts runs through the draft model",
           _edit("draft_token_num[b] <= 0", "draft_token_num[b] < 0")),
    edited("history-one-column-late", _PRE,
           "accepted tokens stand one column too far right in the second history, where step_idx does not say they are",
           _edit("_note(pre_ids[b], int(step_idx[b]), list(accept_tokens[b, :count]))",
                 "_note(pre_ids[b], int(step_idx[b]) + 1, list(accept_tokens[b, :count]))")),
    edited("room-for-one-draft", _PRE,
           "min_room is not looked at: a slot is drafted for that has less room than it should",
           _edit("room < min_room", "room < 2", _PRE)),
    edited("tokens-by-slot", _UPDATE,
           "tokens are looked up by slot: after an idle slot every request gets its neighbour's draft",
           _edit("int(inter_next_tokens[rank]) if rank < len(inter_next_tokens) else -1",
                 "int(inter_next_tokens[b]) if b < len(inter_next_tokens) else -1",
                 given="wanted, step, limit = min(int(draft_token_num[b]), k), int(step_idx[b]), int(max_dec_len[b])")),
    edited("drafts-inside-the-prompt", _UPDATE, "a chunk inside the prompt gives drafts",
           _edit(_TAKES, "substep < wanted and max_dec_len - step_idx > 1", within="_takes_draft")),
    edited("everybody-drafts-k", _UPDATE, "the number of drafts that a request asks for is not looked at",
           _edit("min(int(draft_token_num[b]), k)", "k")),
    edited("drafts-beyond-the-limit", _UPDATE, "drafts that the length limit cuts off are made all the same",
           _edit(_TAKES, "substep < wanted and step_idx > 0", within="_takes_draft")),
    edited("undefined-token-drafted", _UPDATE,
           "the token of a row without a distribution, -1, goes into the next substep",
           _edit("token >= 0 and not stop_flags[b] and _takes_draft(substep, wanted, step, limit)",
                 "not stop_flags[b] and _takes_draft(substep, wanted, step, limit)")),
    edited("token-0-is-no-draft", _UPDATE, "> for >=: token 0 is never drafted",
           _edit("token >= 0", "token > 0", _UPDATE)),
    edited("token-0-ends-the-slot", _UPDATE, "<= for <: with a second history, token 0 ends a slot's drafts",
           _edit("token < 0", "token <= 0", _UPDATE)),
    edited("a-substep-for-nothing", _UPDATE, "a slot whose last draft is made takes part in the next substep",
           _edit("_takes_draft(substep + 1, wanted, step + 1, limit)", "1")),
    edited("history-drafts-beyond-the-limit", _UPDATE,
           "with a second history, drafts that the length limit cuts off are verified all the same",
           _edit("token if room and not ended else -1", "-1 if ended else token")),
    edited("history-of-stopped-slots", _UPDATE, "with a second history, slots that have stopped are drafted for",
           _edit("bool(stop_flags[b]) or token < 0", "token < 0")),
    edited("drafts-after-a-gap", _POST,
           "drafts are counted wherever they stand, and those that are verified are others",
           _edit("1 + np.argmax(drafts < 0)", "1 + np.count_nonzero(drafts >= 0)")),
    edited("drafts-end-at-token-0", _POST, "<= for <: token 0 ends the drafts that are verified",
           _edit("drafts < 0", "drafts <= 0", _POST)),
    edited("chunk-length-overwritten", _POST, "a prefill slot gets the length of a decode slot",
           _edit("seq_lens_encoder[b] <= 0", "True")),
    edited("rows-of-the-next-slot", _GET, "more rows than the slot had are taken from its neighbour",
           _edit("first <= row < end and 0 <= row < len(x)", "first <= row and 0 <= row < len(x)")),
    edited("rows-not-packed", _GATHER + " " + _SELF,
           "rows stand at their slots' numbers: after an idle slot tokens go to the wrong request",
           _edit("last_hidden[k] = x[row]", "last_hidden[b] = x[row]", within="_pack_last_rows",
                 given="for k, b in enumerate(active): ...")),
    edited("hidden-row-after-the-last", _GATHER + " " + _SELF, "<= for <: the row after the last is read as the last",
           _edit("0 <= row < len(x)", "0 <= row <= len(x)", "_pack_last_rows"),
           _edit("last_hidden[k] = x[row]", "last_hidden[k] = x[min(row, len(x) - 1)]", "_pack_last_rows")),
    edited("slots-without-rows-left-out", _SELF, "a slot without rows has no place: all after it move up",
           _edit("seq_lens_this_time[b] > 0", "seq_lens_this_time[b] > 0 and cu_seqlens_q[b + 1] > cu_seqlens_q[b]",
                 within=_SELF)),
)  # fmt: skip
