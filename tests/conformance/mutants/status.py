"""Section 5 got wrong: history and slot states."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited, undefined

_edit = partial(Edit, "status")
_OP = "update_model_status"

MUTANTS = (
    edited("history-one-short", _OP, "the last column of the history is never written (FastDeploy)",
           _edit("fits = min(count, row_width - start)", "fits = min(count, max(row_width - 1 - start, 0))")),
    edited("padding-slot-runs", _OP,
           "an unstopped padding slot counts as running, so that the engine never becomes idle (FastDeploy)",
           _edit("has_running[0] = False", "has_running[0] = bool((~stop_flags[len(seq_lens_this_time) :]).any())")),
    edited("paused-slot-goes-on", _OP, "a preempted slot is advanced as if it had run",
           _edit("stop_flags[b] or is_block_step[b]", "stop_flags[b]")),
    edited("any-end-token-stops", _OP,
           "an end token anywhere among the emitted ones stops the slot, also under ACCEPT_ALL",
           _edit("ended = emitted[-1] in ends", "ended = bool(np.isin(emitted, ends).any())")),
    edited("end-token-stops-one-that-ignores-it", _OP, "a request that ignores end tokens stops at one",
           _edit("end_tokens[:0] if ignore_end is not None and ignore_end[b] else end_tokens", "end_tokens")),
    edited("no-slot-has-end-tokens", _OP, "one request that ignores end tokens makes all slots ignore them",
           _edit("ignore_end is not None and ignore_end[b]", "ignore_end is not None and ignore_end.any()")),
    edited("no-end-token-at-the-limit", _OP,
           "under `end_at_limit` a request at its limit has no end token, and FastDeploy waits for one",
           _edit("accept_tokens[b, ending] = ends[0]", "pass")),
    edited("prefill-decodes-at-once", _OP,
           "the token emitted by the last prefill chunk is counted as cached, which it is only after the next step",
           _edit("seq_lens_decoder[b] += seq_lens_encoder[b]", "seq_lens_decoder[b] += seq_lens_encoder[b] + count",
                 given="step_idx[b] += count")),
    edited("silent-chunk-does-not-advance", _OP, "a chunk that emitted nothing is computed again and again",
           _edit("seq_lens_encoder[b] > 0", "seq_lens_encoder[b] > 0 and count", given="step_idx[b] += count")),
    edited("idle-slot-becomes-decoding", _OP, "dec grows in a slot that has no cache yet",
           _edit("seq_lens_decoder[b] > 0", "True")),
    edited("running-as-it-was", _OP,
           "has_running is from before the step: one more step after the last request has ended",
           _edit("has_running[0] |= not stop_flags[b]", "has_running[0] = True")),
    undefined(_OP, "has_running", False, "has_running is only ever set, never cleared"),
)  # fmt: skip
