"""Section 8 got wrong: the scheduler's decisions, stop sequences, and what a caller keeps of a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from specdec_hal.ops import SlotAction
from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import Arrays, around, edited

_edit = partial(Edit, "schedule")
_SCHEDULE, _STOP = "schedule_slots", "set_stop_sequences"
_WRITE, _CLEAR = "write_accepted", "clear_accept_num"
_MATCHES = "0 < n <= generated and (tail[generated - n :] == s[:n]).all()"


def _padding_too(arrays: Arrays, launch: Callable[[], None]) -> None:
    launch()
    padding = slice(len(arrays["seq_lens_this_time"]), None)
    arrays["stop_flags"][padding] |= arrays["slot_actions"][padding] == SlotAction.STOP


MUTANTS = (
    edited("chunk-beyond-the-row", _SCHEDULE,
           "a chunk that the history's row cuts off keeps its length: stale tokens of input_ids are fed",
           _edit("seq_lens_encoder[b] = seq_lens_this_time[b] = count",
                 "seq_lens_encoder[b] = seq_lens_this_time[b] = min(max(int(chunk_lens[b]), 0), input_ids.shape[1])")),
    edited("prefill-keeps-the-stop", _SCHEDULE,
           "a slot that is given to the next request keeps the last one's stop flag",
           _edit("stop_flags[b] = is_block_step[b] = False", "is_block_step[b] = False")),
    edited("resume-from-the-first-token", _SCHEDULE,
           "a resumed request counts its generated tokens from 0 and draws other tokens than before",
           _edit("step_idx[b] = chunk_step_idx[b]", "step_idx[b] = 0")),
    edited("stop-keeps-the-cache", _SCHEDULE,
           "a stopped slot still has a length, and proposers take it for a decoding one",
           _edit("seq_lens_encoder[b] = seq_lens_decoder[b] = seq_lens_this_time[b] = 0",
                 "seq_lens_encoder[b] = seq_lens_this_time[b] = 0")),
    around("padding-scheduled", _SCHEDULE, "actions of slots beyond the batch, left from a larger one, are carried out",
           _padding_too),
    edited("stop-at-the-last-match", _STOP, "the search goes on after a match, and the last one decides",
           _edit("break", "continue", within=_STOP)),
    edited("stop-within-a-step", _STOP, "sequences that began in earlier steps are never seen",
           _edit("0 < n <= generated", "0 < n <= i + 1", given="accept_num[b] = i + 1")),
    edited("stop-in-the-prompt", _STOP,
           "a sequence may begin in the prompt: a prompt that ends in half of it ends the answer",
           _edit("tail = text[:generated]", "tail = np.concatenate([token_ids_all[b, :first], text[:generated]])",
                 given="first, end = history_bounds(row_width, prompt_lens[b], step_idx[b])"),
           _edit(_MATCHES, "0 < n <= len(tail) and (tail[len(tail) - n :] == s[:n]).all()")),
    edited("stop-of-the-first-sequence", _STOP, "only the first of a request's sequences counts",
           _edit("zip(sizes, stop_seqs[b], strict=True)", "zip(sizes[:1], stop_seqs[b, :1], strict=True)")),
    edited("stop-by-the-end-of-a-sequence", _STOP, "a sequence is recognised by its last token alone",
           _edit("(tail[generated - n :] == s[:n]).all()", "tail[generated - 1] == s[n - 1]")),
    edited("stop-at-nothing", _STOP, "an unused sequence, of length 0, matches everywhere",
           _edit("0 < n <= generated", "n <= generated")),
    edited("minimum-of-the-tokens-before", _STOP,
           "the minimum length is compared with the tokens before the step, not with those that a position completes",
           _edit("generated < min_dec_len[b]", "step_idx[b] < min_dec_len[b]")),
    edited("end-token-uncounted", _STOP, "the end token stands after the emitted tokens, where nobody reads",
           _edit("accept_tokens[b, i] = end", "accept_tokens[b, i + 1 : i + 2] = end")),
    edited("end-token-in-the-stops-place", _STOP,
           "the end token takes the place of the sequence's last token, which its reader then never sees",
           _edit("behind - first + i + (end is None)", "behind - first + i + 1")),
    edited("end-token-at-every-stop", _STOP, "an end token follows whether it was asked for or not",
           _edit("end_after_stop and end_tokens is not None and len(end_tokens)",
                 "end_tokens is not None and len(end_tokens)")),
    edited("tail-never-kept", _STOP, "tokens after the cut become -1 for a caller who keeps them",
           _edit("not keep_tail", "True")),
    edited("last-index-ignored", _WRITE, "the tokens of a caller who counts places stand one column early",
           _edit("prompt_len + int(step_idx[b]) + last_index - count", "prompt_len + int(step_idx[b]) - count")),
    edited("written-all-or-nothing", _WRITE, "tokens that do not all fit the row are not written at all (FastDeploy)",
           _edit("prompt_len <= start + i < row_width", "prompt_len <= start + i and start + count <= row_width",
                 given="count = min(max(int(accept_num[b]), 0), draft_width)")),
    edited("prompt-overwritten", _WRITE, "more accepted tokens than steps are written over the prompt's end",
           _edit("prompt_len <= start + i < row_width", "0 <= start + i < row_width")),
    edited("stopped-slots-write", _WRITE, "a stopped slot's stale tokens are written into the next request's history",
           _edit("stop_flags[b] or idle or step_idx[b] < 0", "idle or step_idx[b] < 0")),
    edited("idle-slots-write", _WRITE, "stale tokens of a slot without a request are written",
           _edit("stop_flags[b] or idle or step_idx[b] < 0", "stop_flags[b] or step_idx[b] < 0")),
    edited("prefilled-slots-do-not-write", _WRITE, "the first token of a request is missing in its history",
           _edit("seq_lens_encoder[b] <= 0 and seq_lens_decoder[b] <= 0", "seq_lens_decoder[b] <= 0")),
    edited("counts-of-prefilled-slots-kept", _CLEAR,
           "only a cache length of exactly 0 clears, so that a rolled-back slot keeps its count",
           _edit("seq_lens_decoder <= 0", "seq_lens_decoder == 0", within=_CLEAR)),
)  # fmt: skip
