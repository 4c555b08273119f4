"""Section 3 of the contract: from logits to the target model's tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.floats import from_f32, to_f32
from specdec_hal.backends.reference.history import history_bounds
from specdec_hal.backends.reference.primitives import (
    MASS_ONE,
    ChunkMasses,
    chunk_masses,
    draw,
    draw_from_chunks,
    exp2_mass,
    fraction_mass,
    ln_ratio,
    mass_ratio,
    mass_threshold,
    philox_u64,
    prob_mass,
    softmax_t,
)
from specdec_hal.ops.enums import LogprobMode, Purpose

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

LOWEST = np.finfo(np.float32).min


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
    infer_seed: I64 | None,
    *,
    row_seed_step: int,
    seed_increment: int,
    seed_modulus: int,
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
    if infer_seed is not None:
        advanced = infer_seed[b] + np.array([row_seed_step], np.int64) * row_in_slot
        row_seed[:] = np.where(used, advanced % seed_modulus, 0)
        in_use = infer_seed[: len(cu_seqlens_q_output) - 1]
        in_use[:] = (in_use + np.array([seed_increment], np.int64)) % seed_modulus


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


class Distribution(NamedTuple):
    """The distribution of a row."""

    row_max: np.float32
    inv_temperature: np.float32
    total: np.uint64
    chunks: ChunkMasses | None
    """Of a row without filters."""
    kept: U64 | None
    """Of a row with filters: [V], each token's mass relative to the row's maximum, 0 outside the kept set."""

    def draw(self, random: np.uint64) -> int:
        """The token for 64 random bits."""
        if self.chunks is not None:
            return draw_from_chunks(random, self.chunks)
        assert self.kept is not None
        return int(draw(random, self.kept))


def distribution(row: F32, temperature: float, top_p: float, top_k: int, min_p: float) -> Distribution | None:
    """The distribution of a row under sampling parameters; None if it has NaN or only -inf."""
    row_max = row.max()
    if np.isnan(row_max) or row_max == -np.inf:
        return None
    one = np.uint64(MASS_ONE)
    if not temperature > 0:
        kept = np.zeros(len(row), np.uint64)
        kept[np.argmax(row)] = one
        return Distribution(row_max, np.float32(1), one, None, kept)
    with np.errstate(over="ignore", divide="ignore"):
        inverse = np.float32(1) / np.float32(temperature)
    by_count, by_mass, by_weight = 0 < top_k < len(row), top_p < 1, not min_p <= 0
    if not (by_count or by_mass or by_weight):
        chunks = chunk_masses(row, inverse)
        return Distribution(row_max, inverse, chunks.total, chunks, None)
    masses = exp2_mass(softmax_t(row, row_max, inverse))
    if by_count:
        best = first_of_order(row, np.partition(row, -top_k)[-top_k])[:top_k]
        if by_mass:
            best = nucleus(best, masses, mass_threshold(top_p, masses[best].sum(dtype=np.uint64)))
        masses = only(best, masses)
    elif by_mass:
        need = mass_threshold(top_p, chunk_masses(row, inverse).total)
        spare = int(masses.sum(dtype=np.uint64)) - int(need)
        if spare >= 0:
            # Elements below this may all be dropped: the prefix ends among the others.
            heavy = masses >= np.uint64(spare // len(row))
            masses = only(nucleus(first_of_order(row, row[heavy].min()), masses, need), masses)
    masses[masses < mass_threshold(min_p, one)] = 0  # the largest logit weighs exactly `one`
    return Distribution(row_max, inverse, masses.sum(dtype=np.uint64), None, masses)


def first_of_order(row: F32, least: np.float32) -> I64:
    """The ids of all logits >= `least`, logits descending, equal ones by ascending id."""
    ids = np.flatnonzero(row >= least)
    return np.asarray(ids[np.argsort(-row[ids], kind="stable")])


def nucleus(best: I64, masses: U64, need: U64) -> I64:
    """The shortest nonempty prefix of `best` whose masses reach `need`; all of it if none does."""
    sums = np.cumsum(masses[best], dtype=np.uint64)
    return best[: int(np.searchsorted(sums, need, side="left")) + 1]


def only(ids: I64, masses: U64) -> U64:
    """The masses of these ids, 0 for the others."""
    kept = np.zeros_like(masses)
    kept[ids] = masses[ids]
    return kept


def sample_target(
    logits: NDArray[Any],
    row_temperature: F32,
    row_top_p: F32,
    row_top_k: I32,
    row_min_p: F32,
    row_seed: I64,
    position: I64,
    target_tokens: I64,
    logprobs: F32 | None,
    ranks: I64 | None,
    purpose: Purpose,
    logprob_mode: LogprobMode,
) -> None:
    """Draw the target model's token for every output row, or a proposer's draft."""
    # Greedy rows need no random bits, which would take half of their time.
    sampled = bool(np.any(row_temperature > 0))
    random = philox_u64(row_seed, position, purpose) if sampled else np.zeros(len(logits), np.uint64)
    below_max, totals = np.zeros(len(logits), np.float32), np.full(len(logits), MASS_ONE, np.uint64)
    target_tokens[:] = -1
    if ranks is not None:
        ranks[:] = -1
    for r in np.flatnonzero(position >= 0):
        row = to_f32(logits[r])
        found = distribution(row, row_temperature[r], row_top_p[r], row_top_k[r], row_min_p[r])
        if found is None:
            below_max[r] = LOWEST
            continue
        token = target_tokens[r] = found.draw(random[r])
        if ranks is not None:
            ranks[r] = np.count_nonzero(row >= row[token])
        if logprobs is not None:
            scale, totals[r] = found.inv_temperature, found.total
            if logprob_mode is LogprobMode.RAW:
                scale = np.float32(1)
                at_one = found.chunks is not None and found.inv_temperature == 1
                totals[r] = found.total if at_one else chunk_masses(row, scale).total
            below_max[r] = below(row[token], found.row_max, scale)
    if logprobs is not None:
        logprobs[:] = np.maximum(below_max - ln_ratio(totals), LOWEST)


def below(logits: F32 | np.float32, row_max: np.float32, inv_temperature: np.float32) -> F32:
    """(logit - row_max) * inv_temperature, 0 where the two are equal."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(logits == row_max, np.float32(0), (logits - row_max) * inv_temperature)


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
    probs[:] = 0
    for r in np.flatnonzero(position >= 0):
        row = to_f32(logits[r])
        found = distribution(row, row_temperature[r], row_top_p[r], row_top_k[r], row_min_p[r])
        if found is not None:
            masses = found.kept
            if masses is None:
                masses = exp2_mass(softmax_t(row, found.row_max, found.inv_temperature))
            probs[r] = mass_ratio(masses, found.total)


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
