"""Section 8 got wrong: thinking limits, and the constraint of the token after thinking."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited

_edit = partial(Edit, "phases")
_LIMIT, _REASON = "limit_thinking", "reasoning_constraint"
_THINKS_ON = "max_think < 0 or not (full or (token in ends and text))"
_FULL = "full = step + i == max_think if fastdeploy and max_think > 0 else step + i >= max_think"
_NO_THINKING = "status == THINKING and begins_without and not generated"

MUTANTS = (
    edited("limit-only-when-hit-exactly", _LIMIT,
           "a request whose limit was passed unseen, as after preemption, thinks forever",
           _edit(_FULL, "full = step + i == max_think")),
    edited("fastdeploys-limit-passed", _LIMIT,
           "a request of FastDeploy whose limit is past ends its thought where FastDeploy lets it go on",
           _edit(_FULL, "full = step + i >= max_think")),
    edited("answer-without-allowance", _LIMIT,
           "a thought that ended by itself leaves the answer two tokens short of FastDeploy's",
           _edit("fastdeploy and max_reply >= 0", "False")),
    edited("allowance-without-a-limit", _LIMIT, "an answer without a limit gets one of a token",
           _edit("fastdeploy and max_reply >= 0", "fastdeploy")),
    edited("end-of-thought-injected", _LIMIT,
           "without a text FastDeploy lets the token stand; the end of thought takes its place",
           _edit("[think_end_id] * (not fastdeploy)", "[think_end_id]")),
    edited("thought-tail-never-kept", _LIMIT, "tokens after the cut become -1 for a caller who keeps them",
           _edit("not keep_tail", "True", within=_LIMIT)),
    edited("end-token-ends-thought", _LIMIT, "an end token in thought ends the request without an answer",
           _edit(_THINKS_ON, "max_think < 0 or not full")),
    edited("end-token-limited-without-a-limit", _LIMIT, "a request without a limit of thinking cannot end in thought",
           _edit(_THINKS_ON, "not ((max_think >= 0 and full) or (token in ends and text))")),
    edited("no-text-without-tokens", _LIMIT, "without a text nothing ends thinking",
           _edit("[int(token) for token in inject_token_ids] or [think_end_id] * (not fastdeploy)",
                 "[int(token) for token in inject_token_ids]")),
    edited("answer-one-token-long", _LIMIT, "off by one at the limit of answers",
           _edit("0 <= max_reply <= status - len(text) - 1", "0 <= max_reply < status - len(text) - 1")),
    edited("end-token-replaced-by-another", _LIMIT,
           "an answer that ends by itself at its limit loses its own end token, and the tokens of later steps with it",
           _edit("0 <= max_reply <= status - len(text) - 1 and ends and token not in ends",
                 "0 <= max_reply <= status - len(text) - 1 and ends")),
    edited("stopped-slots-are-limited", _LIMIT,
           "stale tokens of a stopped slot move its status, which the next request inherits",
           _edit("stop_flags[b] or (max_think < 0 and max_reply < 0) or count == 0",
                 "(max_think < 0 and max_reply < 0) or count == 0")),
    edited("border-seen-in-the-prompt", _REASON, "the end of thinking of an earlier turn, in the prompt, counts",
           _edit("token_ids_all[b, first:end]", "token_ids_all[b, :end]")),
    edited("border-of-three-tokens", _REASON, "the newest token is not looked at",
           _edit("newest == [line_break_id, think_end_id, line_break_id, line_break_id]",
                 "newest[:3] == [line_break_id, think_end_id, line_break_id]")),
    edited("border-a-step-late", _REASON, "a status that has just become 1 waits for the next call",
           _edit("status = THINK_END_SEEN", "return THINK_END_SEEN")),
    edited("never-past-the-border", _REASON,
           "a request that leaves thinking without the separator has its drafts refused forever",
           _edit("THINK_END_SEEN if seen else FINISHED", "THINK_END_SEEN")),
    edited("no-thinking-in-every-step", _REASON,
           "requests that do not think are constrained whenever they prefill, also when they resume",
           _edit(_NO_THINKING, "status == THINKING and begins_without")),
    edited("no-thinking-ignored", _REASON, "the first token of a request that does not think is not constrained",
           _edit(_NO_THINKING, "False")),
    edited("mask-by-slot", _REASON, "row b is masked for slot b: right as long as every slot has one row",
           _edit("logits[row + i] = masked", "logits[min(b + i, len(logits) - 1)] = masked",
                 given="row = int(cu_seqlens_q_output[b])")),
    edited("tokens-pass-the-border-by", _REASON,
           "the status moves once a step: where a step accepts drafts, the first answer token is not constrained",
           _edit("range(known + 1, len(text) + 1)", "range(max(known + 1, len(text)), len(text) + 1)")),
    edited("one-token-moves-twice", _REASON,
           "the second chunk of a prompt moves the status again: the first token is not constrained",
           _edit("range(known + 1, len(text) + 1)", "range(min(known + 1, len(text)), len(text) + 1)")),
    edited("drafts-not-looked-at", _REASON, "rows after drafts are judged by the tokens before the step",
           _edit("text + drafts[:i]", "text")),
    edited("drafts-of-a-prompt", _REASON, "a prompt's row is taken to stand before drafts",
           _edit("draft_tokens is not None and seq_lens_encoder[b] <= 0", "draft_tokens is not None")),
    edited("mask-of-nothing", _REASON, "without allowed tokens every token is forbidden",
           _edit("status == CONSTRAINED and len(allowed_tokens) and 0 <= row + i < len(logits)",
                 "status == CONSTRAINED and 0 <= row + i < len(logits)")),
    edited("mask-from-the-end", _REASON, "allowed tokens outside the vocabulary, or negative ones, count from its end",
           _edit("0 <= token < logits.shape[1]", "-logits.shape[1] <= token < logits.shape[1]")),
    edited("idle-slots-reason", _REASON,
           "the status of a slot without a row moves on, and its one constrained token is never drawn",
           _edit("stop_flags[b] or row >= cu_seqlens_q_output[b + 1]", "stop_flags[b]")),
    edited("stopped-slots-reason", _REASON, "a stopped slot's row, which another request may have by now, is masked",
           _edit("stop_flags[b] or row >= cu_seqlens_q_output[b + 1]", "row >= cu_seqlens_q_output[b + 1]")),
)  # fmt: skip
