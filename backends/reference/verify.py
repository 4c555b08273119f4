"""Section 4 of the contract: keep a correct prefix of the drafts and emit one more token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.primitives import (
    MASS_ONE,
    accept_test,
    fraction_mass,
    mulhi64,
    philox_u32,
    philox_u64,
    prob_mass,
)
from specdec_hal.ops.enums import AcceptPolicy, Purpose, Strategy

BOOL = NDArray[np.bool_]
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]


def draw_from(masses: U64, seed: int, position: int, purpose: Purpose, total: int | None = None) -> int:
    """First index whose inclusive prefix sum exceeds high64(U64 * total); the masses' own total unless given."""
    sums = np.cumsum(masses, dtype=np.uint64)
    r = mulhi64(philox_u64(seed, position, purpose), sums[-1] if total is None else np.uint64(total))
    return int(np.searchsorted(sums, r, side="right"))


@dataclass
class _Slot:
    """One slot's drafts and the rows that verify them. `i` counts positions from the base token."""

    b: int
    drafts: I64  # draft_tokens[b, 1:slt]
    first_row: int
    last_row: int
    seed: int
    length: int  # prompt_lens + step_idx

    def row(self, i: int) -> int:
        return min(max(self.first_row + i, 0), self.last_row)

    def position(self, i: int) -> int:
        """Where a token emitted at i goes; wraps around at 64 bits, as in `build_sampling_params`."""
        return (self.length + i + 2**63) % 2**64 - 2**63


@dataclass
class _Emission:
    """The tokens a slot emits, and the one rule that stops it."""

    end_tokens: I64
    limit: int  # max_dec_len - step_idx
    ignore_end: bool
    end_at_limit: bool
    tokens: list[int] = field(default_factory=list)
    stopped: bool = False

    def emit(self, token: int) -> None:
        if self.stopped:
            return
        self.tokens.append(token)
        is_end = token in self.end_tokens
        at_limit = len(self.tokens) >= self.limit
        self.stopped = (is_end and not self.ignore_end) or at_limit
        if at_limit and self.end_at_limit and not is_end and len(self.end_tokens):
            self.tokens[-1] = int(self.end_tokens[0])


class _Verifier(Protocol):
    """A strategy: how many positions a draft at i lets pass, and the token that follows them."""

    def accepted(self, slot: _Slot, i: int) -> int:
        """Positions accepted from i on; 0 rejects."""

    def token(self, slot: _Slot, i: int, rejected: bool) -> int:
        """The token to emit at i, after a `rejected` draft or without one."""


class _ByToken:
    def __init__(self, target_tokens: I64) -> None:
        self.target_tokens = target_tokens

    def accepted(self, slot: _Slot, i: int) -> int:
        return int(self.target_tokens[slot.row(i)] == slot.drafts[i])

    def token(self, slot: _Slot, i: int, rejected: bool) -> int:
        return int(self.target_tokens[slot.row(i)])


class _ByCandidates:
    def __init__(self, ids: I64, scores: F32, lens: I32, top_p: F32, window: int) -> None:
        self.ids, self.scores, self.top_p, self.window = ids, scores, top_p, window
        self.lens = np.clip(lens, 1, ids.shape[1])

    def accepted(self, slot: _Slot, i: int) -> int:
        r = slot.row(i)
        found = (self.ids[r] == slot.drafts[i]) & (prob_mass(self.scores[r]) > 0)
        if found[: self.lens[r]].any():
            return 1
        following = range(i + 1, i + 1 + self.window)
        second_best = len(found) >= 2 and found[1]
        enough = following.stop <= len(slot.drafts)
        if second_best and enough and all(self.ids[slot.row(j), 0] == slot.drafts[j] for j in following):
            return 1 + self.window
        return 0

    def token(self, slot: _Slot, i: int, rejected: bool) -> int:
        r = slot.row(i)
        masses = prob_mass(self.scores[r, : self.lens[r]])
        total = min(int(fraction_mass(self.top_p[slot.b])), int(masses.sum(dtype=np.uint64)))
        if total == 0:
            return int(self.ids[r, 0])
        return int(self.ids[r, draw_from(masses, slot.seed, slot.position(i), Purpose.CANDIDATE, total)])


class _ByProbs:
    def __init__(self, target_probs: F32, draft_probs: F32 | None) -> None:
        self.target_probs, self.draft_probs = target_probs, draft_probs

    def accepted(self, slot: _Slot, i: int) -> int:
        draft = int(slot.drafts[i])
        p_row = self.target_probs[slot.row(i)]
        if not 0 <= draft < len(p_row):
            return 0
        p = prob_mass(p_row[draft])
        q = MASS_ONE if self.draft_probs is None else prob_mass(self.draft_probs[slot.b, i, draft])
        return int(accept_test(philox_u32(slot.seed, slot.position(i), Purpose.ACCEPT), q, p))

    def token(self, slot: _Slot, i: int, rejected: bool) -> int:
        p_row = self.target_probs[slot.row(i)]
        p = prob_mass(p_row)
        masses = p - np.minimum(p, self._draft_masses(slot, i, len(p))) if rejected else p
        if not masses.any():
            return int(np.argmax(p))
        return draw_from(masses, slot.seed, slot.position(i), Purpose.RESIDUAL)

    def _draft_masses(self, slot: _Slot, i: int, vocabulary: int) -> U64:
        if self.draft_probs is not None:
            return prob_mass(self.draft_probs[slot.b, i])
        one_hot = np.zeros(vocabulary, np.uint64)
        if 0 <= slot.drafts[i] < vocabulary:
            one_hot[slot.drafts[i]] = MASS_ONE
        return one_hot


def verify_draft_tokens(
    draft_tokens: I64,
    target_tokens: I64 | None,
    candidate_ids: I64 | None,
    candidate_scores: F32 | None,
    candidate_lens: I32 | None,
    top_p: F32 | None,
    target_probs: F32 | None,
    draft_probs: F32 | None,
    seed: I64,
    prompt_lens: I64,
    step_idx: I64,
    max_dec_len: I64,
    stop_flags: BOOL,
    is_block_step: BOOL,
    seq_lens_encoder: I32,
    seq_lens_decoder: I32,
    seq_lens_this_time: I32,
    cu_seqlens_q_output: I32,
    reasoning_status: I32,
    end_tokens: I64,
    ignore_end: BOOL | None,
    accept_tokens: I64,
    accept_num: I32,
    *,
    strategy: Strategy,
    verify_window: int,
    accept_policy: AcceptPolicy,
    end_at_limit: bool,
) -> None:
    """Keep a correct prefix of each slot's drafts and emit one more token."""
    accept_tokens[:] = -1
    accept_num[:] = 0
    verifier: _Verifier
    if target_tokens is not None:
        verifier, r_cap = _ByToken(target_tokens), len(target_tokens)
    elif target_probs is not None:
        verifier, r_cap = _ByProbs(target_probs, draft_probs), len(target_probs)
    else:
        assert candidate_ids is not None and candidate_scores is not None
        assert candidate_lens is not None and top_p is not None
        verifier = _ByCandidates(candidate_ids, candidate_scores, candidate_lens, top_p, verify_window)
        r_cap = len(candidate_ids)
    if r_cap == 0:
        return

    for b in range(len(seq_lens_this_time)):
        slt = min(int(seq_lens_this_time[b]), draft_tokens.shape[1])
        enc = int(seq_lens_encoder[b])
        unfinished_prompt = enc > 0 and int(seq_lens_decoder[b]) + enc < prompt_lens[b]
        if stop_flags[b] or is_block_step[b] or seq_lens_this_time[b] <= 0 or unfinished_prompt:
            continue
        slot = _Slot(
            b,
            draft_tokens[b, 1:slt],
            int(cu_seqlens_q_output[b]),
            r_cap - 1,
            int(seed[b]),
            int(prompt_lens[b]) + int(step_idx[b]),
        )
        accept_all = accept_policy is AcceptPolicy.ACCEPT_ALL
        ends = end_tokens[:0] if ignore_end is not None and ignore_end[b] else end_tokens
        out = _Emission(ends, int(max_dec_len[b]) - int(step_idx[b]), accept_all, end_at_limit)
        rejected = False
        if accept_policy is not AcceptPolicy.REJECT_ALL and enc <= 0 and reasoning_status[b] != 1:
            while len(out.tokens) < slt - 1 and not out.stopped and not rejected:
                i = len(out.tokens)
                count = 1 if accept_all else verifier.accepted(slot, i)
                rejected = count == 0
                for draft in slot.drafts[i : i + count]:
                    out.emit(int(draft))
        if not out.stopped:
            out.emit(verifier.token(slot, len(out.tokens), rejected))
        accept_tokens[b, : len(out.tokens)] = out.tokens
        accept_num[b] = len(out.tokens)
