"""Section 8: the phases of a request that thinks before it answers."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op
from specdec_hal.ops.spec import AttrSpec


def _token(name: str, doc: str) -> AttrSpec:
    return AttrSpec(name, int, doc, minimum=-(1 << 63), maximum=(1 << 63) - 1)


_THINK_END = _token("think_end_id", "The token that ends thinking.")

LIMIT_THINKING = op(
    "limit_thinking",
    8,
    "End thinking and answers at their limits, between `verify_draft_tokens` and `set_stop_sequences`.",
    """
    All M slots that have not stopped [#stopped] and that have a limit: max_think_lens[b] >= 0 or max_reply_lens[b] >= 0
    [#off]. count is accept_num clamped to [0, S]. The text that ends thinking has n tokens: inject_token_ids, or
    think_end_id alone if J is 0 [#text]. limit_status is the phase of a request: 0 or less while it thinks; k = 1 .. n
    if its next token is token k of that text; n + 1 + r, at most 2^31 - 1, after r tokens of the answer [#status].

    The tokens t = accept_tokens[b, i], i = 0 .. count - 1, are processed in order:

    - Thinking: if t is think_end_id, the answer begins after it and status = n + 1 [#end]. Otherwise, with
      max_think_lens[b] >= 0, if step_idx + i >= max_think_lens[b] [#think-limit] or t is an end token [#end-token], the
      status becomes 1 and t is processed as the first token of the text. Otherwise t and the status stay [#thinking].
    - In the text (status k): token k of the text replaces t, and status = k + 1 [#inject].
    - In the answer: with max_reply_lens[b] >= 0, end_tokens[0] replaces t if r >= max_reply_lens[b], t is not an end
      token and E > 0 [#reply-limit]. Otherwise t stays and r grows by one [#reply].

    If another token replaces t, accept_num = i + 1. The tokens after it become -1, as they were drawn after another
    text [#cut]; with `keep_tail` they stay [#tail]. A replacement equal to t truncates nothing [#same]. So one step of
    many tokens gives the result of many steps of one token. Slots that emitted nothing keep their status [#nothing].

    With `fastdeploy`, max_think_lens[b] > 0 ends thinking only if step_idx + i == max_think_lens[b] [#exact]. If
    thinking ends by itself, max_reply_lens[b] >= 0 grows by 2, for the tokens between thinking and answer [#allowance].
    The status after r > 0 tokens of the answer is n + 2 + r; before the first, it is n + 1 or n + 2 [#gap]. At the
    limit of the answer, end_tokens[0] also replaces another end token [#any-end]. If J is 0, the text is empty: n = 0,
    at the limit t stays and the status becomes 1, and an end token changes nothing [#no-text]. Source: FastDeploy's
    `speculate_limit_thinking_content_length`, whose runners start a request with status 0.
    """,
    inp("step_idx", "max_think_lens"),
    inout("max_reply_lens"),
    inp("stop_flags", "end_tokens", "inject_token_ids"),
    inout("accept_tokens", "accept_num", "limit_status"),
    attrs=(
        _THINK_END,
        AttrSpec("fastdeploy", bool, "Use FastDeploy's rules where they differ.", default=False),
        AttrSpec("keep_tail", bool, "Keep the tokens after the cut.", default=False),
    ),
)

REASONING_CONSTRAINT = op(
    "reasoning_constraint",
    8,
    "Restrict the first token after thinking to allowed ones, in the logits, before sampling.",
    """
    Slots < B that have not stopped [#stopped] and have an output row, cu_seqlens_q_output[b] <
    cu_seqlens_q_output[b+1] [#no-row]. t0 .. t3 are the slot's last generated tokens in token_ids_all, t0 the newest;
    those before the first generated token do not count.

    reasoning_status[b] advances by its value:

    - 0, thinking: becomes 2 if the request does not think (enable_thinking[b] is false), enc > 0 and step_idx <= 0
      [#no-thinking]; otherwise 1 if any of t0 .. t3 is think_end_id [#seen].
    - 1, also if it has just become 1, with step_idx >= 4: becomes 2 if (t3, t2, t1, t0) are line_break_id,
      think_end_id, line_break_id, line_break_id [#boundary]; otherwise 3 if none of them is think_end_id [#passed].
    - 2: becomes 3 [#once].
    - Other values stay and do nothing [#finished].

    If the status is then 2 and H > 0, the slot's first output row keeps the logits of allowed_tokens; all others become
    -1e10, or -1e4 in float16 [#mask]. Allowed tokens outside [0, V) are ignored [#outside]; a row beyond R_cap is not
    written [#capacity]. Other rows are untouched [#untouched]. `verify_draft_tokens` accepts no drafts while the status
    is 1. Source: FastDeploy's `reasoning_phase_token_constraint`.

    The status so advances once per call and may miss the boundary in a step that accepts drafts. With reasoning_seen,
    it advances once for each number of generated tokens from reasoning_seen[b] + 1 (at least 0) to step_idx, as calls
    at each of them would do; reasoning_seen[b] becomes that number [#every-token]. Without new tokens the status stays
    [#same-token]. With draft_tokens, row i of a slot with enc <= 0, i < S, has its own status: that of the previous row
    advanced by draft i. Every row with status 2 is masked [#every-row]; reasoning_status is that of the first row. With
    both, speculative decoding gives the tokens of plain decoding.
    """,
    inout("logits"),
    inp("token_ids_all", "prompt_lens", "stop_flags", "seq_lens_encoder", "step_idx", "allowed_tokens"),
    inout("reasoning_status"),
    inp("cu_seqlens_q_output", "enable_thinking"),
    inout("reasoning_seen", optional=True),
    inp("draft_tokens", optional=True),
    attrs=(_THINK_END, _token("line_break_id", "The token that separates thinking from the answer.")),
)

OPS = (LIMIT_THINKING, REASONING_CONSTRAINT)
