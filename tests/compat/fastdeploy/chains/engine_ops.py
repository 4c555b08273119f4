"""FastDeploy's ops that are left to it, in NumPy: its scheduler of KV blocks, and decoding without drafts."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tests.compat.fastdeploy.chains.kernels_tokens import flat, limited_token

Array = NDArray[Any]


def speculate_schedule_cache(
    drafts: Array, block_tables: Array, stop: Array, prompts: Array, tt: Array, enc: Array, dec: Array, step_dec: Array,
    step_drafts: Array, step_tt: Array, counts: Array, tokens: Array, paused: Array, running: Array, block_size: int,
    most_drafts: int,
) -> None:  # fmt: skip
    """End chunks that are not the last, and pause texts for which there is no block."""
    stop, prompts, tt, enc, dec, step_dec, step_tt, counts, paused = flat(
        stop, prompts, tt, enc, dec, step_dec, step_tt, counts, paused
    )
    for b in range(len(tt)):
        if stop[b]:
            continue
        block = (dec[b] + 2 * most_drafts + 2) // block_size
        if dec[b] < prompts[b]:
            stop[b] = True
            tt[b] = enc[b] = dec[b] = counts[b] = 0
        elif block < block_tables.shape[1] and block_tables[b, block] == -1:
            step_dec[b], step_tt[b], step_drafts[b] = dec[b], tt[b], drafts[b]
            tt[b] = dec[b] = counts[b] = 0
            tokens[b] = -1
            paused[b] = stop[b] = True
    running[...] = not stop.all()


def recover_decode_task(
    stop: Array, tt: Array, enc: Array, dec: Array, step_dec: Array, block_tables: Array, paused: Array,
    drafts: Array | None, step_drafts: Array | None, step_tt: Array | None, block_size: int, most_drafts: int,
) -> None:  # fmt: skip
    """Resume paused texts whose block has arrived."""
    stop, tt, dec, step_dec, paused = flat(stop, tt, dec, step_dec, paused)
    for b in range(len(tt)):
        if not paused[b]:
            continue
        speculative = drafts is not None and step_drafts is not None and step_tt is not None
        block = (step_dec[b] + (2 * most_drafts + 2 if speculative else 0)) // block_size
        if block_tables[b, block] == -1:
            continue
        paused[b] = stop[b] = False
        dec[b], tt[b] = step_dec[b], 1
        if drafts is not None and step_drafts is not None and step_tt is not None:
            tt[b], drafts[b] = step_tt.reshape(-1)[b], step_drafts[b]


# ---- without drafts


def limit_thinking_content_length(
    next_tokens: Array, think: Array, reply: Array, step: Array, status: Array, stop: Array, ends: Array, inject: Array,
    end: int, is_decode_node: bool,
) -> None:  # fmt: skip
    next_tokens, think, reply, step, status, stop, ends, inject = flat(
        next_tokens, think, reply, step, status, stop, ends, inject
    )
    for b in range(len(next_tokens)):
        if not stop[b] and (think[b] >= 0 or reply[b] >= 0):
            next_tokens[b], status[b], reply[b] = limited_token(
                int(next_tokens[b]), int(step[b]), int(think[b]), int(reply[b]), int(status[b]), inject.tolist(),
                ends.tolist(), end,
            )  # fmt: skip


def set_stop_value_multi_ends(
    tokens: Array, stop: Array, tt: Array, ends: Array, next_tokens: Array, history: Array, prompts: Array, step: Array,
    max_dec_len: Array, seqs: Array, seqs_lens: Array,
) -> None:  # fmt: skip
    """End a text at an end token, at the limit, and at the token after a stop sequence."""
    tokens, stop, tt, ends, next_tokens, prompts, step, max_dec_len = flat(
        tokens, stop, tt, ends, next_tokens, prompts, step, max_dec_len
    )
    for b in range(len(tt)):
        if stop[b]:
            tokens[b] = -1
            continue
        text = history[b, prompts[b] : prompts[b] + step[b]].tolist()
        found = any(n > 0 and text[-n:] == seqs[b, q, :n].tolist() for q, n in enumerate(seqs_lens[b].tolist()))
        if found or (tokens[b] not in ends and step[b] + 1 >= max_dec_len[b]):
            tokens[b] = ends[0]
        stop[b] = tokens[b] in ends
        next_tokens[b] = tokens[b]


def set_value_by_flags_and_idx(tokens: Array, tt: Array, history: Array, prompts: Array, step: Array) -> None:
    """Append the new tokens."""
    tokens, tt, prompts, step = flat(tokens, tt, prompts, step)
    for b in range(len(tt)):
        if tt[b] > 0 and tokens[b] >= 0:
            history[b, prompts[b] + step[b]] = tokens[b]
            step[b] += 1


def update_inputs_v1(
    tokens: Array, stop: Array, running: Array, tt: Array, enc: Array, dec: Array, step_dec: Array, prompts: Array,
    input_ids: Array, block_tables: Array, next_tokens: Array, paused: Array, block_size: int,
) -> None:  # fmt: skip
    """Advance each slot by its token; end chunks that are not the last, pause texts for which there is no block."""
    stop, tt, enc, dec, step_dec, prompts, tokens, next_tokens, paused = flat(
        stop, tt, enc, dec, step_dec, prompts, tokens, next_tokens, paused
    )
    for b in range(len(tt)):
        if stop[b]:
            tt[b] = enc[b] = dec[b] = 0
        elif dec[b] + tt[b] < prompts[b]:
            stop[b] = True
            tt[b] = enc[b] = dec[b] = 0
            tokens[b] = -1
        else:
            dec[b] += tt[b]
            enc[b], tt[b] = 0, 1
            input_ids[b, 0] = next_tokens[b]
            if block_tables[b, dec[b] // block_size] == -1:
                paused[b] = stop[b] = True
                step_dec[b] = dec[b]
                tt[b] = dec[b] = 0
    running[...] = not stop.all()
