"""Sections 4 and 5: accept a prefix of the drafts, then advance the slots."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op, out
from specdec_hal.ops.enums import AcceptPolicy, Strategy
from specdec_hal.ops.spec import AttrSpec, Relation, When

_BY_TOKEN = When("strategy", (Strategy.GREEDY, Strategy.TARGET_MATCH))
_BY_CANDIDATES = When("strategy", (Strategy.TOPP,))
_BY_PROBS = When("strategy", (Strategy.REJECTION,))

VERIFY_DRAFT_TOKENS = op(
    "verify_draft_tokens",
    4,
    "Keep a correct prefix of each slot's drafts and emit one more token.",
    """
    1. Every row of accept_tokens becomes -1 and every accept_num 0, all M slots [#cleared]. Padding, paused and
    stopped slots [#silent], slots with slt == 0 [#no-tokens], and prefill chunks that are not the last (dec + enc <
    prompt_lens) [#unfinished-chunk] stay so.

    2. Phase 1, for i = 0 .. slt-2 with row r = cu_seqlens_q_output[b] + i and draft x = draft_tokens[b, i+1]. It ends
    at once for REJECT_ALL [#reject-all], enc > 0 [#prefill] or reasoning_status == 1 [#reasoning]. ACCEPT_ALL accepts
    without comparing and ignores end tokens [#accept-all]. Otherwise x is accepted if: GREEDY, TARGET_MATCH:
    target_tokens[r] == x [#by-token]. TOPP: x is among the first candidate_lens[r] candidates (lens clamped to [1,
    C]) [#among-candidates]; or C >= 2, candidate_ids[r, 1] == x and the next `verify_window` positions all exist and
    have candidate_ids[., 0] equal to their draft: then i and the whole window are accepted [#window] and verification
    resumes at the position after it [#resume]; in both cases only if the mass of x's score is not 0, as it is of a
    forbidden token [#no-mass]. REJECTION: (U32 * mass(q(x))) >> 32 < mass(p(x)), purpose ACCEPT
    [#rejection]; q = 1 where `draft_probs` is absent (one-hot drafts) [#one-hot]; a draft outside [0, V) has p = q =
    0 and is rejected [#no-token]. Lossless (Leviathan et al. 2022, Chen et al. 2023).

    Emitting token t: it is counted; an end token (unless ACCEPT_ALL) stops the slot there [#end-token]; if step_idx +
    emitted == max_dec_len it stops there too [#limit] and, with `end_at_limit`, t no end token and E > 0, t is
    replaced by end_tokens[0] [#end-at-limit]. A slot that has already reached max_dec_len emits one token and stops
    [#past-limit].

    3. Phase 2, if not stopped: one more token at the first rejected, or after the last accepted, position under the
    same emit rule. GREEDY, TARGET_MATCH: target_tokens[r] [#one-more]. TOPP: a draw among the first candidate_lens[r]
    candidates in their order, total min(mass(top_p; NaN: 1), their mass), purpose CANDIDATE [#candidate-draw]; the
    first candidate if that total is 0 [#no-candidate-mass]. REJECTION: a draw from max(0, mass(p) - mass(q)) over the
    vocabulary [#residual] (at the bonus position, with enc > 0, under REJECT_ALL and where reasoning forced the end
    of phase 1: mass(p)) [#bonus], purpose RESIDUAL; if that total is 0, the argmax of p [#empty-residual].

    The position of a draw at i is prompt_lens + step_idx + i [#position]. accept_num is exact [#exact]. Only entries
    0..B-1 of cu_seqlens_q_output are read; rows are clamped to [0, R_cap) [#row-clamp]. Non-speculative decoding is
    this op with slt == 1 [#plain].
    """,
    inp("draft_tokens"),
    inp("target_tokens", when=_BY_TOKEN),
    inp("candidate_ids", "candidate_scores", "candidate_lens", "top_p", when=_BY_CANDIDATES),
    inp("target_probs", when=_BY_PROBS),
    inp("draft_probs", optional=True, when=_BY_PROBS),
    inp("seed", "prompt_lens", "step_idx", "max_dec_len", "stop_flags", "is_block_step"),
    inp("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "cu_seqlens_q_output", "reasoning_status"),
    inp("end_tokens"),
    out("accept_tokens", "accept_num"),
    attrs=(
        AttrSpec("strategy", Strategy, "How drafts are compared."),
        AttrSpec("verify_window", int, "TOPP: positions that must follow a second-best draft.", 2, minimum=1),
        AttrSpec("accept_policy", AcceptPolicy, "Test and warm-up modes.", AcceptPolicy.NORMAL),
        AttrSpec("end_at_limit", bool, "Whether the token at max_dec_len is replaced by an end token.", False),
    ),
    relations=(Relation("B", "M"),),
)

UPDATE_MODEL_STATUS = op(
    "update_model_status",
    5,
    "Append the emitted tokens to the history and advance every slot.",
    """
    With `end_at_limit`, the tokens of a slot < B, neither stopped nor paused on entry, first end after the first end
    token, or where step_idx + emitted reaches max_dec_len: accept_num is cut there [#cut], and a token at the limit
    that is no end token becomes end_tokens[0] in accept_tokens, if E > 0 [#end-at-limit].

    Slots < B, neither stopped nor paused on entry: step_idx += accept_num [#count]; the slot stops if the last
    emitted token is an end token or step_idx >= max_dec_len [#stop]. enc > 0: dec += enc, enc = 0 (also for a chunk
    that emitted nothing; the scheduler then sets the next chunk) [#prefill]; else if dec > 0: dec += accept_num
    [#decode]. The emitted tokens go to token_ids_all at prompt_lens + old step_idx, each one that fits in L
    [#history], and the last of them to draft_tokens[b, 0] [#base-token].

    Slots < B, stopped or paused on entry: stop_flags = true; enc = dec = slt = accept_num = 0 [#stopped].

    Slots >= B are untouched, whatever their flags [#padding]. has_running: any slot < B still running [#has-running].
    """,
    inout("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "stop_flags", "step_idx", "token_ids_all"),
    inout("draft_tokens"),
    inout("accept_tokens", "accept_num"),
    out("has_running"),
    inp("is_block_step", "prompt_lens", "end_tokens", "max_dec_len"),
    attrs=(
        AttrSpec(
            "end_at_limit", bool, "Whether tokens that nobody has verified are ended here: FastDeploy's rule.", False
        ),
    ),
    relations=(Relation("B", "M"),),
)

OPS = (VERIFY_DRAFT_TOKENS, UPDATE_MODEL_STATUS)
