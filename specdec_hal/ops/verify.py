"""Sections 4 and 5: accept a prefix of the drafts, then advance the slots."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op, out
from specdec_hal.ops.enums import AcceptPolicy, Strategy
from specdec_hal.ops.spec import AttrSpec, When

_BY_TOKEN = When("strategy", (Strategy.GREEDY, Strategy.TARGET_MATCH))
_BY_CANDIDATES = When("strategy", (Strategy.TOPP,))
_BY_PROBS = When("strategy", (Strategy.REJECTION,))

VERIFY_DRAFT_TOKENS = op(
    "verify_draft_tokens",
    4,
    "Accept a correct prefix of each slot's drafts and emit one more token.",
    """
    All M slots start with accept_tokens[b] = -1 and accept_num[b] = 0 [#cleared]. This is final for padding, paused and
    stopped slots [#silent], slots with slt == 0 [#no-tokens], and prefill chunks before the last (dec + enc <
    prompt_lens) [#unfinished-chunk].

    Drafts: for i = 0 .. slt-2, row r = cu_seqlens_q_output[b] + i verifies draft x = draft_tokens[b, i+1], up to the
    first rejection. REJECT_ALL [#reject-all], enc > 0 [#prefill] and reasoning_status == 1 [#reasoning] skip this
    phase. ACCEPT_ALL accepts without comparing and ignores end tokens [#accept-all]. Otherwise x is accepted if:

    - GREEDY, TARGET_MATCH: target_tokens[r] == x [#by-token].
    - TOPP: x is among the first candidate_lens[r] candidates (lens clamped to [1, C]) [#among-candidates]; or C >= 2,
      candidate_ids[r, 1] == x, and each of the next `verify_window` positions exists and has candidate_ids[., 0] equal
      to its draft. Then i and the whole window are accepted [#window] and verification resumes after the window
      [#resume]. In both cases the mass of x's score must not be 0, as it is for a forbidden token [#no-mass].
    - REJECTION: (U32 * mass(q(x))) >> 32 < mass(p(x)), purpose ACCEPT [#rejection]. q = 1 without `draft_probs`
      (one-hot drafts) [#one-hot]. A draft outside [0, V) has p = q = 0 and is rejected [#no-token]. Lossless (Leviathan
      et al. 2022, Chen et al. 2023).

    Each emitted token counts. The slot stops at an end token, except under ACCEPT_ALL [#end-token], and once step_idx +
    emitted == max_dec_len [#limit]; there, with `end_at_limit` and E > 0, end_tokens[0] replaces a token that is no end
    token [#end-at-limit]. A slot that has already reached max_dec_len emits one token and stops [#past-limit]. A slot
    with ignore_end true has no end tokens, as if E were 0 [#ignore-end].

    One more token: unless the slot has stopped, it emits a token at the first rejected position, or after the last
    accepted one:

    - GREEDY, TARGET_MATCH: target_tokens[r] [#one-more].
    - TOPP: a draw among the first candidate_lens[r] candidates in their order, total min(mass(top_p; NaN: 1), their
      mass), purpose CANDIDATE [#candidate-draw]; if that total is 0, the first candidate [#no-candidate-mass].
    - REJECTION: a draw from max(0, mass(p) - mass(q)) over the vocabulary, purpose RESIDUAL [#residual]. At the bonus
      position, and if the drafts were skipped, mass(p) replaces the difference [#bonus]. If the total is 0, the argmax
      of p [#empty-residual].

    The position of a draw at i is prompt_lens + step_idx + i [#position]. accept_num is exact [#exact]. Only entries
    0..B-1 of cu_seqlens_q_output are read; rows are clamped to [0, R_cap) [#row-clamp]. Plain decoding is this op with
    slt == 1 [#plain].
    """,
    inp("draft_tokens"),
    inp("target_tokens", when=_BY_TOKEN),
    inp("candidate_ids", "candidate_scores", "candidate_lens", "top_p", when=_BY_CANDIDATES),
    inp("target_probs", when=_BY_PROBS),
    inp("draft_probs", optional=True, when=_BY_PROBS),
    inp("seed", "prompt_lens", "step_idx", "max_dec_len", "stop_flags", "is_block_step"),
    inp("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "cu_seqlens_q_output", "reasoning_status"),
    inp("end_tokens"),
    inp("ignore_end", optional=True),
    out("accept_tokens", "accept_num"),
    attrs=(
        AttrSpec("strategy", Strategy, "How drafts are compared."),
        AttrSpec("verify_window", int, "TOPP: positions that must follow a second-best draft.", 2, minimum=1),
        AttrSpec("accept_policy", AcceptPolicy, "Test and warm-up modes.", AcceptPolicy.NORMAL),
        AttrSpec("end_at_limit", bool, "Replace the token at max_dec_len by an end token.", False),
    ),
)

UPDATE_MODEL_STATUS = op(
    "update_model_status",
    5,
    "Append the emitted tokens to the history and advance every slot.",
    """
    For slots < B that are neither stopped nor paused on entry:

    - With `end_at_limit`, accept_num is first cut after the first end token, or where step_idx + emitted reaches
      max_dec_len [#cut]; a token at the limit that is no end token becomes end_tokens[0] if E > 0 [#end-at-limit].
    - step_idx += accept_num [#count]. The slot stops if the last emitted token is an end token or step_idx >=
      max_dec_len [#stop].
    - A slot with ignore_end true has no end tokens, as if E were 0 [#ignore-end].
    - If enc > 0: dec += enc, enc = 0, also after a chunk that emitted nothing; the scheduler then sets the next chunk
      [#prefill]. Otherwise, if dec > 0: dec += accept_num [#decode].
    - The emitted tokens go to token_ids_all from column prompt_lens + old step_idx on, as far as L reaches [#history].
      The last emitted token goes to draft_tokens[b, 0] [#base-token].

    Slots < B that are stopped or paused on entry: stop_flags = true and enc = dec = slt = accept_num = 0 [#stopped].
    Slots >= B are untouched, whatever their flags [#padding]. has_running: whether any slot < B still runs
    [#has-running].
    """,
    inout("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "stop_flags", "step_idx", "token_ids_all"),
    inout("draft_tokens"),
    inout("accept_tokens", "accept_num"),
    out("has_running"),
    inp("is_block_step", "prompt_lens", "end_tokens", "max_dec_len"),
    inp("ignore_end", optional=True),
    attrs=(AttrSpec("end_at_limit", bool, "End unverified tokens here: FastDeploy's rule.", False),),
)

OPS = (VERIFY_DRAFT_TOKENS, UPDATE_MODEL_STATUS)
