"""FastDeploy's ops between logits and the advance of the slots, in NumPy. See `kernels_rows`.

Its known defects are not copied (docs/use/fastdeploy.md lists them): lengths are exact, slots without tokens emit
none, a window of TOPP is resumed where it ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fastdeploy.kernels_rows import output_rows, prefix_sums, undefined
from tests.fastdeploy.lockstep import ANY

Array = NDArray[Any]

TOPP, GREEDY, TARGET_MATCH = range(3)
_NEVER = -1e10
_SEED_STEP = 4


def flat(*arrays: Array) -> list[Array]:
    """In one axis each; writes go through."""
    return [array.reshape(-1) for array in arrays]


# ---- verification


class _Row:
    """A slot's emitted tokens, up to an end token or the limit."""

    def __init__(self, step: int, limit: int, ends: list[int]) -> None:
        self.step, self.limit, self.ends = step, limit, ends
        self.tokens: list[int] = []
        self.stopped = False

    def emit(self, token: int) -> None:
        self.step += 1
        full = self.step >= self.limit
        self.tokens.append(token if token in self.ends or not full else self.ends[0])
        self.stopped = token in self.ends or full


def verify_draft_tokens(
    ids: Array, lens: Array, drafts: Array, targets: Array | None, candidates: Array | None, scores: Array | None,
    candidate_lens: Array | None, topp: Array, stop: Array, enc: Array, tt: Array, ends: Array, paused: Array,
    cu: Array, reasoning: Array, max_dec_len: Array, step: Array, max_seq_len: int, window: int, strategy: int,
    reject_all: bool, accept_all: bool,
) -> None:  # fmt: skip
    lens, stop, enc, tt, ends, paused, cu, reasoning, max_dec_len, step = flat(
        lens, stop, enc, tt, ends, paused, cu, reasoning, max_dec_len, step
    )
    ids[:], lens[:] = -1, 0

    def best(row: int) -> list[int]:
        """Tokens that a row of logits allows."""
        if strategy != TOPP:
            return [int(targets.reshape(-1)[row])]  # type: ignore[union-attr]
        count = min(int(candidate_lens.reshape(-1)[row]), candidates.shape[1])  # type: ignore[union-attr]
        return [int(token) for token in candidates[row, : max(count, 1)]]  # type: ignore[index]

    for b in range(len(tt)):
        if stop[b] or paused[b] or tt[b] == 0:
            continue
        row, base, i = _Row(int(step[b]), int(max_dec_len[b]), ends.tolist()), int(cu[b]), 0
        verifies = not (reject_all or enc[b] != 0 or reasoning[b] == 1)
        while verifies and i < tt[b] - 1 and not row.stopped:
            draft = int(drafts[b, i + 1])
            if accept_all or draft in best(base + i):
                row.emit(draft)
                i += 1
                continue
            end = i if strategy != TOPP else _window(candidates, drafts[b], base, i, int(tt[b]), window)
            if end == i:
                break
            while i < end and not row.stopped:
                row.emit(int(drafts[b, i + 1]))
                i += 1
        if not row.stopped:
            allowed = best(base + i)
            row.emit(allowed[0])
            if len(allowed) > 1:
                row.tokens[-1] = ANY  # by chance: the runner sees that it is one of them
        ids[b, : len(row.tokens)], lens[b] = row.tokens, len(row.tokens)


def verify_draft_tokens_xpu(ids: Array, *args: Any) -> None:
    """What stands after the emitted tokens stays."""
    before, counts = ids.copy(), args[0].reshape(-1)
    verify_draft_tokens(ids, *args)
    for b, count in enumerate(counts):
        ids[b, count:] = before[b, count:]


def _window(candidates: Any, drafts: Array, base: int, i: int, tt: int, window: int) -> int:
    """After the drafts that are taken together although the one at i is no candidate; i if there are none."""
    if candidates.shape[1] < 2 or candidates[base + i, 1] != drafts[i + 1]:
        return i
    for ii in range(i + 1, tt - 1):
        if candidates[base + ii, 0] != drafts[ii + 1]:
            return i
        if ii - i == window:
            return ii + 1
    return i


def naive_update_model_status(ids: Array, lens: Array, tt: Array, next_tokens: Array, cu: Array) -> None:
    lens, tt, next_tokens, cu = flat(lens, tt, next_tokens, cu)
    for b in range(len(tt)):
        runs = tt[b] > 0
        if runs:
            ids[b, 0] = next_tokens[cu[b + 1] - 1]
        lens[b] = tt[b] = int(runs)


# ---- parameters, candidates


def _sampling_params(top_p: Array, top_k: Array, seeds: Array, rows: Array, total: int, increment: int,
                     modulus: int) -> list[Array]:  # fmt: skip
    top_p, top_k, seeds = flat(top_p, top_k, seeds)
    out = [undefined(total, 1, dtype=kind) for kind in (np.float32, np.int64, np.int64)]
    starts = prefix_sums(rows)
    for b, count in enumerate(rows.tolist()):
        mine = slice(int(starts[b]), int(starts[b + 1]))
        out[0][mine], out[1][mine] = top_p[b], top_k[b]
        out[2][mine, 0] = [(int(seeds[b]) + _SEED_STEP * k) % modulus for k in range(count)]
        seeds[b] = (int(seeds[b]) + increment) % modulus
    return out


def build_sampling_params(
    top_p: Array, top_k: Array, infer_seed: Array, tt: Array, cu: Array, token_num: int, increment: int
) -> list[Array]:
    rows = np.diff(cu.reshape(-1)[: tt.size + 1])
    return _sampling_params(top_p, top_k, infer_seed, rows, int(token_num), increment, 2**63 - 2)


def build_sampling_params_xpu(
    top_p: Array, top_k: Array, infer_seed: Array, tt: Array, enc: Array, token_num: int, increment: int
) -> list[Array]:
    tt = tt.reshape(-1)
    rows = output_rows(tt, enc.reshape(-1)[: len(tt)])
    return _sampling_params(top_p, top_k, infer_seed, rows, int(token_num), increment, 2**31 - 2)


def top_p_candidates(probs: Array, top_p: Array, owners: Array, count: int, max_seq_len: int) -> list[Array]:
    rows = len(probs)
    scores, ids = np.zeros((rows, count), np.float32), np.zeros((rows, count), np.int64)
    lens = np.full(rows, count, np.int32)
    for r in range(rows):
        order = np.argsort(-probs[r], kind="stable")[:count]
        total = np.cumsum(probs[r, order], dtype=np.float32)
        wanted = top_p.reshape(-1)[owners[r]]
        reached = np.flatnonzero(total >= wanted)
        lens[r] = reached[0] + 1 if len(reached) else count
        ids[r, : lens[r]], scores[r, : lens[r]] = order[: lens[r]], probs[r, order[: lens[r]]]
        if np.abs(total - wanted).min() < 1e-5:  # a matter of rounding
            lens[r], ids[r, 1:], scores[r, 1:] = ANY, ANY, np.nan
    return [scores, ids, lens]


# ---- emitted tokens


def speculate_set_stop_value_multi_seqs(
    tokens: Array, counts: Array, history: Array, prompts: Array, step: Array, stop: Array, seq_lens: Array,
    seqs: Array,
    seqs_lens: Array, ends: Array, min_tokens: Array,
) -> None:  # fmt: skip
    """The sequence stays; the token after it becomes an end token, in a later step if it was the newest one."""
    counts, prompts, step, stop, ends, min_tokens = flat(counts, prompts, step, stop, ends, min_tokens)
    for b in range(len(counts)):
        if stop[b]:
            tokens[b], counts[b] = ANY, ANY if counts[b] else 0  # a stopped slot's values are not read
            continue
        assert min_tokens[b] <= 1 or not seqs_lens[b].any(), "at which token the minimum is met is not known"
        text = history[b, prompts[b] : prompts[b] + step[b]].tolist()
        wanted = [seqs[b, q, :n].tolist() for q, n in enumerate(seqs_lens[b].tolist()) if n > 0]
        for i in range(counts[b]):
            if any(text[-len(seq) :] == seq for seq in wanted):
                tokens[b, i], counts[b] = ends[0], i + 1
                break
            text.append(int(tokens[b, i]))


def speculate_limit_thinking_content_length(
    tokens: Array, think: Array, reply: Array, step: Array, status: Array, counts: Array, stop: Array, ends: Array,
    inject: Array, end: int, is_decode_node: bool,
) -> None:  # fmt: skip
    think, reply, step, status, counts, stop, ends, inject = flat(
        think, reply, step, status, counts, stop, ends, inject
    )
    for b in range(len(counts)):
        if stop[b] or (think[b] < 0 and reply[b] < 0):
            continue
        if is_decode_node and think[b] == 0 and status[b] == 0 and counts[b] > 0:
            status[b] = 2  # the prefill node has emitted inject[0]
        for i in range(counts[b]):
            drawn = int(tokens[b, i])
            token, status[b], reply[b] = limited_token(
                drawn, int(step[b]) + i, int(think[b]), int(reply[b]), int(status[b]), inject.tolist(), ends.tolist(),
                end,
            )  # fmt: skip
            if token != drawn:
                tokens[b, i], counts[b] = token, i + 1
                break


def limited_token(
    token: int, number: int, think: int, reply: int, status: int, inject: list[int], ends: list[int], end: int
) -> tuple[int, int, int]:
    """The replacement of a generated token, the new status, and the new limit of the answer.

    Status: 0 while thinking, k while inject[k - 1] is next, len(inject) + 1 once all are out or thinking has ended by
    itself, len(inject) + 2 + n after n tokens of the answer.
    """
    done = len(inject) + 1
    if status == 0:
        if token == end:
            return token, done, reply + 2 if reply >= 0 else reply
        full = think == 0 or number == think
        if think < 0 or not (full or (inject and token in ends)):
            return token, 0, reply
        status = 1
        if not inject:
            return token, status, reply
    if status < done:
        return inject[status - 1], status + 1, reply
    status = max(status, done + 1)
    if 0 <= reply <= status - (done + 1):
        return ends[0], status, reply
    return token, status + 1, reply


def reasoning_phase_token_constraint(
    logits: Array, history: Array, prompts: Array, stop: Array, tt: Array, enc: Array, step: Array, allowed: Array,
    status: Array, owners: Array, cu: Array, enable: Array, end: int, newline: int,
) -> None:  # fmt: skip
    prompts, stop, tt, enc, step, status, cu, enable = flat(prompts, stop, tt, enc, step, status, cu, enable)
    for b in range(len(tt)):
        if stop[b] or status[b] == 3 or cu[b] == cu[b + 1]:
            continue
        last = [int(history[b, prompts[b] + step[b] - 1 - k]) if step[b] > k else -1 for k in range(4)]
        status[b] = next_phase(int(status[b]), last, bool(enable[b]), enc[b] > 0 and step[b] == 0, int(step[b]), end,
                               newline)  # fmt: skip
        if status[b] == 2 and len(allowed):
            kept = logits[cu[b], allowed].copy()
            logits[cu[b]] = _NEVER
            logits[cu[b], allowed] = kept


def next_phase(status: int, last: list[int], enabled: bool, first: bool, step: int, end: int, newline: int) -> int:
    """The reasoning status, of the last four tokens, the newest one first."""
    if status == 0 and not enabled and first:
        return 2
    if status == 0 and end in last:
        status = 1
    elif status == 2:
        return 3
    if status == 1 and step >= 4:
        if last[::-1] == [newline, end, newline, newline]:
            return 2
        if end not in last:
            return 3
    return status


def speculate_clear_accept_nums(counts: Array, dec: Array) -> None:
    counts, dec = flat(counts, dec)
    counts[dec[: len(counts)] == 0] = 0


def speculate_get_accept_tokens_and_logits(
    token_ids: Array, target_logits: Array, logits: Array, cu_batch: Array, cu: Array, tt: Array, enc: Array,
    counts: Array, tokens: Array,
) -> None:  # fmt: skip
    enc, counts, cu = flat(enc, counts, cu)
    slots = tt.size
    cu_batch.reshape(-1)[: slots + 1] = prefix_sums(counts[:slots])
    row = 0
    target_logits[:] = np.nan
    for b in range(slots):
        for i in range(counts[b]):
            token_ids[row] = tokens[b, i]
            target_logits[row] = logits[cu[b] + i] if enc[b] <= 0 or i == 0 else np.nan
            row += 1
    token_ids[row:] = ANY


# ---- the slots' state


def unified_update_model_status(
    enc: Array, dec: Array, running: Array, drafts: Array, tokens: Array, counts: Array, stop: Array, tt: Array,
    paused: Array, history: Array, prompts: Array, step: Array, ends: Array, max_dec_len: Array,
) -> None:  # fmt: skip
    enc, dec, counts, stop, tt, paused, prompts, step, ends, max_dec_len = flat(
        enc, dec, counts, stop, tt, paused, prompts, step, ends, max_dec_len
    )
    stopped = 0
    for b in range(len(stop)):
        if b >= len(tt):
            assert stop[b], "a slot that is not in use has stopped"
            stopped += 1
            continue
        if stop[b] or paused[b]:
            stop[b] = True
            enc[b] = dec[b] = tt[b] = counts[b] = 0
            stopped += 1
            continue
        for k in range(counts[b]):
            step[b] += 1
            token = tokens[b, k]
            if token in ends or step[b] >= max_dec_len[b]:
                tokens[b, k] = token if token in ends else ends[0]
                counts[b], stop[b] = k + 1, True
                break
        if enc[b] > 0:
            dec[b] += enc[b]
            enc[b] = 0
        elif dec[b] > 0:
            dec[b] += counts[b]
        stopped += int(stop[b])
        if counts[b] > 0:
            end = prompts[b] + step[b]
            assert end < history.shape[1], "whether a history that is full takes the last tokens differs"
            history[b, end - counts[b] : end] = tokens[b, : counts[b]]
            drafts[b, 0] = tokens[b, counts[b] - 1]
    running[...] = stopped < len(stop)


def unified_update_model_status_18(
    enc: Array, dec: Array, running: Array, drafts: Array, adaptive_lens: Array, tokens: Array, counts: Array,
    stop: Array, tt: Array, paused: Array, mask_rollback: Array, history: Array, prompts: Array, step: Array,
    ends: Array, max_dec_len: Array, is_naive: bool, max_draft_tokens: int,
) -> None:  # fmt: skip
    """The form of XPU, with the tokens to take back from a mask."""
    used, enc_before = tt.size, enc.reshape(-1).copy()
    idle = (stop.reshape(-1) | paused.reshape(-1)).copy()
    counts, stop, tt, mask_rollback, dec = flat(counts, stop, tt, mask_rollback, dec)
    if is_naive:
        counts[:used][~idle[:used]] = 1
    unified_update_model_status(
        enc, dec, running, drafts, tokens, counts, stop, tt, paused, history, prompts, step, ends, max_dec_len
    )
    for b in range(used):
        ended = stop[b] and not idle[b]
        if idle[b]:
            mask_rollback[b] = ANY
        else:
            mask_rollback[b] = tt[b] - counts[b] if not ended and enc_before[b] == 0 else 0
        if ended and enc_before[b] == 0:
            dec[b] = ANY  # FastDeploy does not advance what ends, the layer does; the next call clears it
        if is_naive:
            tt[b] = int(not stop[b])
