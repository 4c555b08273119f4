"""Section 3 of the contract: from logits to the target model's tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.floats import from_f32, to_f32
from specdec_hal.backends.reference.history import history_bounds
from specdec_hal.backends.reference.primitives import (
    MASS_ONE,
    exp2_mass,
    fraction_mass,
    mass_ratio,
    mulhi64,
    philox_u64,
    prob_mass,
    softmax_t,
    threshold,
)
from specdec_hal.ops.enums import Purpose

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]


def build_sampling_params(
    temperature: F32,
    top_p: F32,
    top_k: I32,
    min_p: F32,
    seed: I64,
    prompt_lens: I64,
    step_idx: I64,
    cu_seqlens_q_output: I32,
    batch_id_per_token_output: I32,
    row_temperature: F32,
    row_top_p: F32,
    row_top_k: I32,
    row_min_p: F32,
    row_seed: I64,
    position: I64,
) -> None:
    """Spread per-slot sampling parameters over the output rows."""
    slot = batch_id_per_token_output
    used = (slot >= 0) & (slot < len(cu_seqlens_q_output) - 1)
    b = np.where(used, slot, 0)
    row_temperature[:] = np.where(used, temperature[b], 1)
    row_top_p[:] = np.where(used, top_p[b], 1)
    row_top_k[:] = np.where(used, top_k[b], 0)
    row_min_p[:] = np.where(used, min_p[b], 0)
    row_seed[:] = np.where(used, seed[b], 0)
    row_in_slot = np.arange(len(slot)) - cu_seqlens_q_output[b]
    position[:] = np.where(used, prompt_lens[b] + step_idx[b] + row_in_slot, -1)


def apply_penalties(
    logits: NDArray[Any],
    token_ids_all: I64,
    prompt_lens: I64,
    step_idx: I64,
    draft_tokens: I64,
    cu_seqlens_q_output: I32,
    batch_id_per_token_output: I32,
    repetition: F32,
    frequency: F32,
    presence: F32,
    bad_tokens: I64,
    end_tokens: I64,
    min_dec_len: I64,
) -> None:
    """Penalties, bad tokens and minimum length, per output row."""
    vocabulary, s = logits.shape[1], draft_tokens.shape[1]

    def valid(ids: I64) -> I64:
        inside: I64 = ids[(ids >= 0) & (ids < vocabulary)]
        return inside

    for r, b in enumerate(batch_id_per_token_output):
        if not 0 <= b < len(cu_seqlens_q_output) - 1:
            continue
        i = min(max(r - int(cu_seqlens_q_output[b]), 0), s - 1)
        row = logits[r]
        if repetition[b] != 1 or frequency[b] != 0 or presence[b] != 0:
            prompt_len, end = history_bounds(token_ids_all.shape[1], prompt_lens[b], step_idx[b])
            drafts = draft_tokens[b, 1 : i + 1]
            generated = valid(np.concatenate([token_ids_all[b, prompt_len:end], drafts]))
            seen = np.union1d(valid(token_ids_all[b, :prompt_len]), generated)
            values = to_f32(row[seen])
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                values = np.where(values > 0, values / repetition[b], values * repetition[b])
                ids, counts = np.unique(generated, return_counts=True)
                at = np.searchsorted(seen, ids)
                values[at] = (values[at] - counts.astype(np.float32) * frequency[b]) - presence[b]
            row[seen] = from_f32(values, row.dtype)
        forbidden = valid(bad_tokens[b])
        if int(step_idx[b]) + i < min_dec_len[b]:
            forbidden = np.concatenate([forbidden, valid(end_tokens)])
        row[forbidden] = from_f32(np.full(len(forbidden), -np.inf, np.float32), row.dtype)


def kept_masses(row: F32, temperature: float, top_p: float, top_k: int, min_p: float) -> U64 | None:
    """Mass of every token under the sampling parameters, 0 outside the kept set; None if there is no distribution."""
    row_max = row.max()
    if np.isnan(row_max) or row_max == -np.inf:
        return None
    if not temperature > 0:
        masses = np.zeros(len(row), np.uint64)
        masses[np.argmax(row)] = MASS_ONE
        return masses
    with np.errstate(over="ignore", divide="ignore"):
        inv_temperature = np.float32(1) / np.float32(temperature)
    masses = exp2_mass(softmax_t(row, row_max, inv_temperature))
    k = top_k if 0 < top_k < len(row) else len(row)
    if k < len(row) or top_p < 1:
        best = np.argsort(-row, kind="stable")[:k]  # logit descending, equal logits by ascending id
        sums = np.cumsum(masses[best], dtype=np.uint64)
        count = int(np.searchsorted(sums, threshold(top_p, sums[-1]), side="left")) + 1
        kept = np.zeros_like(masses)
        kept[best[:count]] = masses[best[:count]]
        masses = kept
    # The largest logit has t = 0, so its mass is exactly MASS_ONE.
    masses[masses < threshold(min_p, np.uint64(MASS_ONE))] = 0
    return masses


def draw_from(masses: U64, seed: int, position: int, purpose: Purpose, total: int | None = None) -> int:
    """First index whose inclusive prefix sum exceeds high64(U64 * total); the masses' own total unless given."""
    sums = np.cumsum(masses, dtype=np.uint64)
    r = mulhi64(philox_u64(seed, position, purpose), sums[-1] if total is None else np.uint64(total))
    return int(np.searchsorted(sums, r, side="right"))


def sample_target(
    logits: NDArray[Any],
    row_temperature: F32,
    row_top_p: F32,
    row_top_k: I32,
    row_min_p: F32,
    row_seed: I64,
    position: I64,
    target_tokens: I64,
    purpose: Purpose,
) -> None:
    """Draw the target model's token for every output row, or a proposer's draft."""
    for r in range(len(logits)):
        masses = None
        if position[r] >= 0:
            row = to_f32(logits[r])
            masses = kept_masses(row, row_temperature[r], row_top_p[r], row_top_k[r], row_min_p[r])
        target_tokens[r] = -1 if masses is None else draw_from(masses, row_seed[r], position[r], purpose)


def processed_probs(
    logits: NDArray[Any],
    row_temperature: F32,
    row_top_p: F32,
    row_top_k: I32,
    row_min_p: F32,
    position: I64,
    probs: F32,
) -> None:
    """The distribution that `sample_target` draws from."""
    for r in range(len(logits)):
        masses = None
        if position[r] >= 0:
            row = to_f32(logits[r])
            masses = kept_masses(row, row_temperature[r], row_top_p[r], row_top_k[r], row_min_p[r])
        probs[r] = 0 if masses is None else mass_ratio(masses, masses.sum(dtype=np.uint64))


def top_p_candidates(
    probs: F32,
    top_p: F32,
    batch_id_per_token_output: I32,
    candidate_scores: F32,
    candidate_ids: I64,
    candidate_lens: I32,
) -> None:
    """The C most probable tokens of each row, and how many of them reach top_p."""
    c = candidate_ids.shape[1]
    for r, b in enumerate(batch_id_per_token_output):
        if not 0 <= b < len(top_p):
            candidate_scores[r], candidate_ids[r], candidate_lens[r] = 0, -1, 0
            continue
        row = np.where(np.isnan(probs[r]), np.float32(0), probs[r])
        best = np.argsort(-row, kind="stable")[:c]
        candidate_ids[r], candidate_scores[r] = best, row[best]
        sums = np.cumsum(prob_mass(row[best]), dtype=np.uint64)
        candidate_lens[r] = min(int(np.searchsorted(sums, fraction_mass(top_p[b]), side="left")) + 1, c)
