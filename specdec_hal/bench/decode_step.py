"""One decode step of a batch as tensors, for benchmarks of all ops but the n-gram search.

The decode-step set: B 1 8 32 128 256 512, K 1 3 5 7, V 32,000 128,256 151,936; all slots decode, or a third of them
prefill and a tenth is idle; drafts are accepted with a given probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

BATCHES = (1, 8, 32, 128, 256, 512)
DRAFTS = (1, 3, 5, 7)
VOCABULARIES = (32_000, 128_256, 151_936)
ACCEPTANCES = (0.0, 0.6, 1.0)

_CHUNK = 128
"""Longest prefill chunk."""
_PROMPT = 1024
"""Longest prompt."""
HISTORY = 4096
"""Capacity of a slot's history: `update_model_status` appends in each of many runs."""
_FAR = 1 << 30


@dataclass(frozen=True)
class DecodeStep:
    """Sizes and rates of a step. `mixed`: a third of the slots prefill and a tenth is idle, else all decode."""

    slots: int
    drafts: int
    vocabulary: int
    acceptance: float = 0.6
    mixed: bool = True
    candidates: int = 5
    seed: int = 0

    @property
    def width(self) -> int:
        """S."""
        return self.drafts + 1

    def state(self) -> Arrays:
        """The slots' tensors, by their names in the contract: lengths, histories, drafts, sampling parameters."""
        rng = np.random.default_rng([self.seed, 1])
        m, s = self.slots, self.width
        prompt = rng.integers(_CHUNK, _PROMPT, m)
        step = rng.integers(16, 256, m)
        chunk = rng.integers(1, _CHUNK + 1, m)
        kind = self._kinds(rng)
        prefill, idle = kind == 1, kind == 2
        final = prefill & (rng.random(m) < 0.5)
        done = np.where(final, prompt - chunk, np.minimum(prompt - chunk, chunk))
        return {
            "seq_lens_encoder": np.where(prefill, chunk, 0).astype(np.int32),
            "seq_lens_decoder": np.where(idle, 0, np.where(prefill, done, prompt + step - 1)).astype(np.int32),
            "seq_lens_this_time": np.where(idle, 0, np.where(prefill, chunk, s)).astype(np.int32),
            "stop_flags": idle,
            "is_block_step": np.zeros(m, np.bool_),
            "reasoning_status": np.zeros(m, np.int32),
            "prompt_lens": prompt,
            "step_idx": np.where(prefill, 0, step),
            "max_dec_len": np.full(m, _FAR),
            "min_dec_len": np.zeros(m, np.int64),
            "draft_token_num": np.full(m, self.drafts, np.int32),
            "end_tokens": np.array([self.vocabulary, self.vocabulary + 1]),
            "token_ids_all": rng.integers(0, self.vocabulary, (m, HISTORY)),
            "input_ids": rng.integers(0, self.vocabulary, (m, _CHUNK)),
            "draft_tokens": rng.integers(0, self.vocabulary, (m, s)),
            "temperature": rng.uniform(0.5, 1.5, m).astype(np.float32),
            "top_p": np.full(m, 0.9, np.float32),
            "top_k": np.zeros(m, np.int32),
            "min_p": np.zeros(m, np.float32),
            "seed": rng.integers(0, 1 << 62, m),
        }

    def _kinds(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """0 decodes, 1 prefills, 2 is idle."""
        kinds = np.zeros(self.slots, np.int64)
        if self.mixed:
            kinds[: self.slots // 3] = 1
            kinds[self.slots // 3 : self.slots // 3 + self.slots // 10] = 2
        return rng.permutation(kinds)

    def rows(self, state: Arrays) -> Arrays:
        """The output rows: offsets, the slot of each row, and the capacity of packed arrays as a runner has it."""
        slt, enc = state["seq_lens_this_time"], state["seq_lens_encoder"]
        per_slot = np.where(slt == 0, 0, np.where(enc > 0, 1, slt))
        capacity = self.slots * self.width
        slots = np.full(capacity, -1, np.int32)
        used = np.repeat(np.arange(self.slots, dtype=np.int32), per_slot)
        slots[: len(used)] = used
        return {
            "cu_seqlens_q": np.concatenate([[0], np.cumsum(slt)]).astype(np.int32),
            "cu_seqlens_q_output": np.concatenate([[0], np.cumsum(per_slot)]).astype(np.int32),
            "batch_id_per_token_output": slots,
        }

    def verified(self, state: Arrays, rows: Arrays) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """For every output row the draft that it verifies (-1: none), and whether to accept it."""
        rng = np.random.default_rng([self.seed, 2])
        slot = rows["batch_id_per_token_output"]
        position = np.arange(len(slot)) - rows["cu_seqlens_q_output"][np.maximum(slot, 0)]
        tests = (slot >= 0) & (state["seq_lens_encoder"][slot] == 0) & (position < self.drafts)
        drafts = np.where(tests, state["draft_tokens"][slot, np.minimum(position, self.drafts - 1) + 1], -1)
        return drafts, tests & (rng.random(len(slot)) < self.acceptance)

    def target_tokens(self, state: Arrays, rows: Arrays) -> NDArray[np.int64]:
        """The target model's token of each row."""
        rng = np.random.default_rng([self.seed, 3])
        drafts, accepted = self.verified(state, rows)
        others = rng.integers(0, self.vocabulary, len(drafts))
        return np.where(accepted, drafts, np.where(others == drafts, (others + 1) % self.vocabulary, others))

    def candidate_lists(self, state: Arrays, rows: Arrays) -> Arrays:
        """Candidates of each row: an accepted draft is among those within top_p."""
        rng = np.random.default_rng([self.seed, 4])
        drafts, accepted = self.verified(state, rows)
        r, c = len(drafts), self.candidates
        ids = rng.integers(0, self.vocabulary, (r, c))
        ids[ids == drafts[:, None]] += 1
        lens = rng.integers(1, c + 1, r)
        ids[accepted, rng.integers(0, lens)[accepted]] = drafts[accepted]
        scores = -np.sort(-rng.dirichlet(np.ones(c + 1), r)[:, :c], axis=1)
        return {
            "candidate_ids": ids,
            "candidate_scores": scores.astype(np.float32),
            "candidate_lens": lens.astype(np.int32),
        }

    def target_probs(self, state: Arrays, rows: Arrays) -> NDArray[np.float32]:
        """The target's probabilities of each row: a draft has the probability of being accepted."""
        rng = np.random.default_rng([self.seed, 5])
        drafts, _ = self.verified(state, rows)
        probs = rng.random((len(drafts), self.vocabulary), np.float32)
        tested = np.flatnonzero(drafts >= 0)
        for row in probs:
            row /= row.sum()
        probs[tested] *= np.float32(1 - self.acceptance)
        probs[tested, drafts[tested]] = self.acceptance
        return probs

    def draft_probs(self, state: Arrays) -> NDArray[np.float32]:
        """The proposer's probabilities: close to 1 for drafts, uniform for all other tokens."""
        rng = np.random.default_rng([self.seed, 6])
        row = rng.random(self.vocabulary, np.float32)
        probs = np.empty((self.slots, self.drafts, self.vocabulary), np.float32)
        probs[:] = row * (np.float32(0.1) / row.sum())
        np.put_along_axis(probs, state["draft_tokens"][:, 1:, None], np.float32(0.9), axis=2)
        return probs
