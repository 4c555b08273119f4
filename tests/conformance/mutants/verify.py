"""Section 4 got wrong: accepting drafts."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited, undefined

_edit = partial(Edit, "verify")
_OP = "verify_draft_tokens"

_RESIDUAL = "p - np.minimum(p, self._draft_masses(slot, i, len(p))) if rejected else p"
_WINDOW = "second_best and enough and all(self.ids[slot.row(j), 0] == slot.drafts[j] for j in following)"
_SILENT = "stop_flags[b] or is_block_step[b] or seq_lens_this_time[b] <= 0 or unfinished_prompt"
_VERIFIED = "accept_policy is not AcceptPolicy.REJECT_ALL and enc <= 0 and reasoning_status[b] != 1"
_REPLACED = "at_limit and self.end_at_limit and not is_end and len(self.end_tokens)"

_RANDOM = (
    edited("accepts-with-u-zero", _OP,
           "the acceptance test's random number is 0: every draft of any probability passes (FastDeploy XPU)",
           _edit("accept_test(philox_u32(slot.seed, slot.position(i), Purpose.ACCEPT), q, p)", "accept_test(0, q, p)")),
    edited("verify-position-ignored", _OP,
           "all positions of a step share one random number: drafts pass together or not at all",
           _edit("self.length + i", "self.length")),
    edited("verify-position-wraps-at-32-bits", _OP, "draws repeat after 2^32 tokens, or where a position is an int32",
           _edit("(self.length + i + 2**63) % 2**64 - 2**63", "(self.length + i + 2**31) % 2**32 - 2**31")),
    edited("verify-steps-in-32-bits", _OP, "step_idx is read as an int32 where the position is computed",
           _edit("int(prompt_lens[b]) + int(step_idx[b])",
                 "int(prompt_lens[b]) + (int(step_idx[b]) + 2**31) % 2**32 - 2**31")),
    edited("acceptance-shares-the-draw", _OP, "the number that rejected the draft also chooses the token in its place",
           _edit("Purpose.RESIDUAL", "Purpose.ACCEPT")),
)  # fmt: skip
_REJECTION = (
    edited("q-of-another-position", _OP,
           "q is not the probability that the draft was sampled with: rows of the draft model off by one",
           _edit("self.draft_probs[slot.b, i, draft]", "self.draft_probs[slot.b, max(i - 1, 0), draft]")),
    edited("bonus-from-the-residual", _OP, "the last draft's residual is used for the bonus token, too",
           _edit(_RESIDUAL, _RESIDUAL.replace("rejected", "rejected or slot.drafts[i : i + 1].size"))),
    edited("accepts-the-border", _OP, "<= for <: a draft that the target forbids passes once in a while",
           Edit("primitives", "mulhi64(u << _32, q_mass) < np.asarray(p_mass, np.uint64)",
                "mulhi64(u << _32, q_mass) <= np.asarray(p_mass, np.uint64)")),
    edited(
        "draws-the-border",
        _OP,
        "a draw takes the first prefix sum that reaches r and not the first beyond it: forbidden tokens can come out",
        Edit("verify", 'np.searchsorted(sums, r, side="right")', 'np.searchsorted(sums, r, side="left")'),
    ),
    edited("residual-keeps-token-0", _OP, "< for <=: a rejected one-hot draft of token 0 is drawn all the same",
           _edit("0 <= slot.drafts[i] < vocabulary", "0 < slot.drafts[i] < vocabulary")),
    edited("draft-outside-the-vocabulary", _OP, "a draft of -1 reads the last token's probability",
           _edit("if not 0 <= draft < len(p_row): return 0", "draft %= len(p_row)")),
)  # fmt: skip
_TOPP = (
    edited("window-does-not-resume", _OP,
           "after a window the next position is accepted without being verified (FastDeploy XPU)",
           _edit("return 1 + self.window", "return 2 + self.window")),
    edited("window-after-the-drafts", _OP, "the window may reach beyond the last draft",
           _edit(_WINDOW, _WINDOW.replace("and enough ", "")),
           _edit("range(i + 1, i + 1 + self.window)", "range(i + 1, min(i + 1 + self.window, len(slot.drafts)))",
                 given="following.stop <= len(slot.drafts)")),
    edited("window-before-the-last-draft", _OP, "< for <=: a window may not end with the last draft",
           _edit("following.stop <= len(slot.drafts)", "following.stop < len(slot.drafts)")),
    edited("window-from-its-second-position", _OP, "the position after a second-best draft is not compared",
           _edit("range(i + 1, i + 1 + self.window)", "range(i + 2, i + 1 + self.window)")),
    edited("window-not-compared", _OP, "a second-best draft is accepted without looking at what follows",
           _edit(_WINDOW, "second_best and enough")),
    edited("candidates-without-mass", _OP,
           "a forbidden token passes where the candidates do not reach top_p (FastDeploy)",
           _edit("(self.ids[r] == slot.drafts[i]) & (prob_mass(self.scores[r]) > 0)", "self.ids[r] == slot.drafts[i]")),
    edited("no-lens-no-candidate", _OP, "lens of 0 is not raised to 1, and the first candidate is rejected",
           _edit("np.clip(lens, 1, ids.shape[1])", "np.clip(lens, 0, ids.shape[1])"),
           _edit("masses = prob_mass(self.scores[r, : self.lens[r]])",
                 "masses = prob_mass(self.scores[r, : max(self.lens[r], 1)])")),
    edited("candidates-of-any-mass", _OP,
           "the draw goes over the candidates' whole mass, also where it is more than top_p",
           _edit("min(int(fraction_mass(self.top_p[slot.b])), int(masses.sum(dtype=np.uint64)))",
                 "int(masses.sum(dtype=np.uint64))")),
    edited("candidate-draw-shares-the-sampler's", _OP, "the draw among candidates has the purpose of sample_target",
           _edit("Purpose.CANDIDATE", "Purpose.SAMPLE")),
)  # fmt: skip
_WHO = (
    edited("idle-slot-takes-a-neighbour's-row", _OP,
           "a running slot without tokens emits from the row at its offset, which is another slot's (FastDeploy)",
           _edit(_SILENT, _SILENT.replace(" or seq_lens_this_time[b] <= 0", "")),
           _edit("min(int(seq_lens_this_time[b]), draft_tokens.shape[1])",
                 "min(max(int(seq_lens_this_time[b]), 1), draft_tokens.shape[1])")),
    edited("stopped-slot-emits", _OP, "the stop flag is read one step late",
           _edit(_SILENT, _SILENT.replace("stop_flags[b] or ", ""))),
    edited("paused-slot-emits", _OP, "a preempted request goes on emitting from rows that are no longer its own",
           _edit(_SILENT, _SILENT.replace("is_block_step[b] or ", ""))),
    edited(
        "padding-slot-emits",
        _OP,
        "all M slots are processed, the last ones with what an earlier, larger batch left",
        _edit("for b in range(len(seq_lens_this_time)): ...",
              "slots = len(draft_tokens)\n"
              "seq_lens_this_time = np.concatenate([seq_lens_this_time, np.ones(slots, np.int32)])[:slots]\n"
              "cu_seqlens_q_output = np.concatenate([cu_seqlens_q_output, np.zeros(slots, np.int32)])[:slots]\n"
              "for b in range(slots): ..."),
    ),
    edited("unfinished-chunk-emits", _OP, "every prefill chunk emits a token, not only the prompt's last",
           _edit("enc > 0 and int(seq_lens_decoder[b]) + enc < prompt_lens[b]", "False")),
    edited("prefill-verifies-drafts", _OP, "the chunk's length is taken for the number of drafts",
           _edit(_VERIFIED, _VERIFIED.replace(" and enc <= 0", ""))),
    edited("reasoning-verifies-drafts", _OP, "drafts are accepted at the point where the reasoning has to be ended",
           _edit(_VERIFIED, _VERIFIED.replace(" and reasoning_status[b] != 1", ""))),
    edited("rows-not-clamped", _OP, "an offset beyond the rows is used as it is",
           _edit("return min(max(self.first_row + i, 0), self.last_row)", "return self.first_row + i")),
)  # fmt: skip
_EMIT = (
    edited("end-token-is-a-token", _OP, "drafts after an end token are emitted",
           _edit("(is_end and not self.ignore_end) or at_limit", "at_limit")),
    edited("verify-limit-in-32-bits", _OP, "what a limit of 64 bits leaves is kept in an int32",
           _edit("int(max_dec_len[b]) - int(step_idx[b])",
                 "(int(max_dec_len[b]) - int(step_idx[b]) + 2**31) % 2**32 - 2**31")),
    edited("accept-all-stops-at-end-tokens", _OP, "warm-up and benchmarks end early by chance",
           _edit("_Emission(ends, int(max_dec_len[b]) - int(step_idx[b]), accept_all, end_at_limit)",
                 "_Emission(ends, int(max_dec_len[b]) - int(step_idx[b]), False, end_at_limit)")),
    edited("end-token-of-one-that-ignores-it", _OP, "a request that ignores end tokens stops at one",
           _edit("end_tokens[:0] if ignore_end is not None and ignore_end[b] else end_tokens", "end_tokens")),
    edited("all-ignore-end-tokens", _OP, "one request that ignores end tokens makes all slots ignore them",
           _edit("ignore_end is not None and ignore_end[b]", "ignore_end is not None and ignore_end.any()")),
    edited("reject-all-verifies", _OP, "REJECT_ALL has no effect",
           _edit(_VERIFIED, _VERIFIED.replace("accept_policy is not AcceptPolicy.REJECT_ALL and ", ""))),
    edited("end-at-limit-replaces-an-end-token", _OP,
           "a request that ends by itself at its limit gets another end token",
           _edit(_REPLACED, _REPLACED.replace("not is_end and ", ""))),
    edited("end-at-limit-is-always-on", _OP, "the last token of every request that runs into its limit is lost",
           _edit(_REPLACED, _REPLACED.replace("self.end_at_limit and ", ""))),
    undefined(_OP, "accept_tokens", -1, "after accept_num stands what the last step accepted"),
    undefined(_OP, "accept_num", 0, "an idle slot keeps the last step's count, and its tokens are sent twice"),
)  # fmt: skip

MUTANTS = (*_RANDOM, *_REJECTION, *_TOPP, *_WHO, *_EMIT)
