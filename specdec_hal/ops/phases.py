"""Section 8: the phases of a request that thinks before it answers."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op
from specdec_hal.ops.spec import AttrSpec, Relation


def _token(name: str, doc: str) -> AttrSpec:
    return AttrSpec(name, int, doc, minimum=-(1 << 63), maximum=(1 << 63) - 1)


_THINK_END = _token("think_end_id", "The token that ends thinking.")

LIMIT_THINKING = op(
    "limit_thinking",
    8,
    "End thinking and answers at their limits, between `verify_draft_tokens` and `set_stop_sequences`.",
    """
    All M slots that have not stopped [#stopped] and that have a limit: max_think_lens[b] >= 0 or max_reply_lens[b] >= 0
    [#off]. count = accept_num clamped to [0, S]. The text that ends thinking has n tokens: inject_token_ids, or
    think_end_id alone where J is 0 [#text]. limit_status says where a request is: thinking (0, and anything less), the
    next token is number k of that text (k = 1 .. n), or r tokens of the answer stand after it (n + 1 + r, at most
    2^31 - 1) [#status].

    The tokens t = accept_tokens[b, i], i = 0 .. count - 1, are taken one after the other:

    Thinking: if t is think_end_id, the answer begins after it, status = n + 1 [#end]. Else, with max_think_lens[b] >=
    0, if step_idx + i >= max_think_lens[b] tokens stand before t [#think-limit] or t is an end token [#end-token], the
    status becomes 1 and t is the first token of the text; otherwise t stays, and so does the status [#thinking].

    In the text (status k): token k of it takes t's place, status = k + 1 [#inject].

    In the answer: with max_reply_lens[b] >= 0, t is replaced by end_tokens[0] if r >= max_reply_lens[b], t is no end
    token and E > 0 [#reply-limit]; otherwise t stays and r grows by one [#reply].

    Where a token is replaced by another one, accept_num = i + 1 and the tokens after it become -1, as those were drawn
    after another text [#cut], or stay with `keep_tail` [#tail]; a token that is the same already cuts nothing [#same].
    So a step of many tokens ends as many steps of one token do. Slots that emitted nothing keep their status
    [#nothing].

    With `fastdeploy`, max_think_lens[b] > 0 ends thought only where exactly so many tokens stand before t [#exact];
    where thought ends by itself, max_reply_lens[b] >= 0 grows by 2, for the tokens between thought and answer
    [#allowance]; and where J is 0 the text has no token: n = 0, at the limit t stands and the status becomes 1, and an
    end token changes nothing [#no-text]. Source: FastDeploy's `speculate_limit_thinking_content_length`, whose runners
    start a request with status 0.
    """,
    inp("step_idx", "max_think_lens"),
    inout("max_reply_lens"),
    inp("stop_flags", "end_tokens", "inject_token_ids"),
    inout("accept_tokens", "accept_num", "limit_status"),
    attrs=(
        _THINK_END,
        AttrSpec("fastdeploy", bool, "FastDeploy's rules where they differ.", default=False),
        AttrSpec("keep_tail", bool, "Tokens after the cut stay as they were.", default=False),
    ),
)

REASONING_CONSTRAINT = op(
    "reasoning_constraint",
    8,
    "Make the first token after thinking one of a few, on logits, before sampling.",
    """
    Slots < B that have not stopped [#stopped] and have an output row, cu_seqlens_q_output[b] <
    cu_seqlens_q_output[b+1] [#no-row]. t0 is the slot's newest generated token in token_ids_all, t1 the one before, to
    t3; those before the first do not count.

    reasoning_status[b] moves: 0, thinking: becomes 2 if the request does not think (enable_thinking[b] is false), enc >
    0 and step_idx <= 0 [#no-thinking]; else 1 if any of t0 .. t3 is think_end_id [#seen]. 1, also where it has just
    become so, with step_idx >= 4: becomes 2 if (t3, t2, t1, t0) are line_break_id, think_end_id, line_break_id,
    line_break_id [#boundary]; else 3 if none of them is think_end_id [#passed]. 2 becomes 3 [#once]. Other values stay,
    and do nothing [#finished].

    Where the status is 2 then and H > 0, the slot's first output row keeps the logits of allowed_tokens, and all others
    become -1e10, or -1e4 in float16 [#mask]; allowed tokens outside [0, V) are ignored [#outside], and a row beyond
    R_cap is not touched [#capacity]. Other rows are untouched [#untouched]. `verify_draft_tokens` accepts no drafts
    while the status is 1. Source: FastDeploy's `reasoning_phase_token_constraint`.

    So the status moves once a call, and tokens of a step that accepts drafts can pass it by. With reasoning_seen it
    moves once for each number of generated tokens from reasoning_seen[b] + 1 (at least 0) to step_idx, as calls at each
    of them would move it, and reasoning_seen[b] becomes that number [#every-token]; where there is no new one, it stays
    [#same-token]. With draft_tokens, row i of a slot with enc <= 0, i < S, has a status of its own, that of the row
    before moved by draft i, and every row whose own is 2 is masked [#every-row]; reasoning_status is that of the first.
    With both, speculative decoding gives the tokens of plain decoding.
    """,
    inout("logits"),
    inp("token_ids_all", "prompt_lens", "stop_flags", "seq_lens_encoder", "step_idx", "allowed_tokens"),
    inout("reasoning_status"),
    inp("cu_seqlens_q_output", "enable_thinking"),
    inout("reasoning_seen", optional=True),
    inp("draft_tokens", optional=True),
    attrs=(_THINK_END, _token("line_break_id", "The token that separates thinking from the answer.")),
    relations=(Relation("B", "M"),),
)

OPS = (LIMIT_THINKING, REASONING_CONSTRAINT)
