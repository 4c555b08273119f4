"""A model's, sampler's and verifier's results for a :class:`~specdec_hal.ops.inputs.scene.Scene`.

Probabilities agree with a random prefix of the drafts, candidate lists with the probabilities, and accepted tokens are
drafts and a bonus token. So inputs reach the deep branches of an op.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from specdec_hal.ops.inputs.scene import Array, OneOf, Scene, pick
from specdec_hal.ops.spec import FLOATS

NUMPY_DTYPES = {"bfloat16": "uint16"}
"""NumPy's stand-ins for dtypes it lacks; all others keep their names."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype that carries a contract dtype."""
    return np.dtype(NUMPY_DTYPES.get(name, name))


def to_logits(values: Array, dtype: str) -> Array:
    """float32 values as logits of `dtype`; bfloat16 by cutting off bits, as uint16."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


class OfRows(cached_property[Array]):
    """[R_cap]: the value of each row's slot; `tail` after the last row."""

    def __init__(self, per_slot: str, tail: float) -> None:
        def made(scene: Scene) -> Array:
            values = getattr(scene, per_slot)
            rows = np.full(scene.size["R_cap"], tail, values.dtype)
            for r, (b, _) in enumerate(scene.row_slots[: len(rows)]):
                rows[r] = values[b]
            return rows

        super().__init__(made)


class ModelScene(Scene):
    """A scene with logits, probabilities and results.

    `dtype` is that of logits (and of hidden rows, if it is a float); `nan` allows rows without a distribution.
    """

    def __init__(self, seed: int, *, dtype: str = "", nan: bool = True, **options: Any) -> None:
        super().__init__(seed, **options)
        self.dtype = dtype or str(self.rng("dtype").choice(FLOATS))
        self.nan = nan

    # Sampling parameters

    def _choice(self, name: str, values: Sequence[float], dtype: str = "float32") -> Array:
        return self.rng(name).choice(np.array(values), self.size["M"]).astype(dtype)

    temperature = OneOf(  # greedy, ordinary, and so small or large that 1/t overflows or vanishes
        *(0, 0, 1, 1, 0.7, 0.8, 1.5, 2, 1e-6, 1e-30, 1e-45, 1e6, 1e30, 3e38), dtype="float32"
    )

    @cached_property
    def top_p(self) -> Array:
        """[M]."""
        other = self.rng("top_p other").random(3).tolist()
        return self._choice("top_p", [0, 1, 1, 0.5, 0.9, 0.95, 1 - 2**-24, 2**-24, 1e-9, *other])

    @cached_property
    def top_k(self) -> Array:
        """[M]."""
        v = self.size["V"]
        return self._choice("top_k", [0, 0, 0, 1, 2, 3, v - 1, v, v + 1, 2**31 - 1], "int32")

    min_p = OneOf(0, 0, 0, 0.05, 0.5, 1, 2**-24, 1e-9, dtype="float32")
    repetition = OneOf(1, 1, 1.1, 1.3, 2, 0.5, 0.1, dtype="float32")
    frequency = OneOf(0, 0, 0.1, 0.3, 2, -1, dtype="float32")
    presence = OneOf(0, 0, 0.1, 0.7, 2, -1, dtype="float32")

    @cached_property
    def seed_values(self) -> Array:
        """[M]: the operand `seed` (the scene's own seed has that name)."""
        rng = self.rng("seed")
        edges = [0, 1, -1, 2**32 - 1, 2**32, 2**63 - 1, -(2**63), *rng.integers(-(2**63), 2**63 - 1, 8)]
        return rng.choice(np.array(edges, np.int64), self.size["M"])

    @cached_property
    def infer_seed(self) -> Array:
        """[M]: below any modulus, far above it, and so large that sums wrap."""
        rng = self.rng("infer_seed")
        edges = [0, 1, -1, 2**31 - 3, 2**63 - 1, 2**63 - 3, -(2**63), *rng.integers(0, 2**62, 8)]
        return rng.choice(np.array(edges, np.int64), self.size["M"])

    row_seed_step = OneOf(0, 4, 4, 32, 2**62)  # FastDeploy's, and none
    seed_increment = OneOf(0, 1, 4, 24, 2**63 - 1)  # the most rows of a step, or more
    seed_modulus = OneOf(1, 7, 2**31 - 2, 2**63 - 2, 2**63 - 1)  # FastDeploy's two, and others
    row_temperature = OfRows("temperature", 1)
    row_top_p = OfRows("top_p", 1)
    row_top_k = OfRows("top_k", 0)
    row_min_p = OfRows("min_p", 0)
    row_seed = OfRows("seed_values", 0)

    @cached_property
    def position(self) -> Array:
        """[R_cap]."""
        rows = np.full(self.size["R_cap"], -1, np.int64)
        for r, (b, i) in enumerate(self.row_slots[: len(rows)]):
            rows[r] = len(self.slots[b].text) + i
        return rows

    # Logits and probabilities

    @cached_property
    def x(self) -> Array:
        """[T_cap, D]: every row different."""
        count, width = self.size["T_cap"], self.size["D"]
        return (np.arange(count * width) % 65521 + 1).astype(numpy_dtype(self.dtype)).reshape(count, width)

    @cached_property
    def logits(self) -> Array:
        """[R_cap, V]: smooth, tied, degenerate and undefined rows."""
        rows = [self._logits(self.rng(f"logits {r}")) for r in range(self.size["R_cap"])]
        return to_logits(np.array(rows, np.float32).reshape(len(rows), self.size["V"]), self.dtype)

    def _logits(self, rng: np.random.Generator) -> Array:
        v = self.size["V"]
        row: Array = rng.normal(size=v) * rng.choice([0.5, 2, 8])
        undefined = ["nan", "undefined"] if self.nan else []
        style = rng.choice(["smooth", "smooth", "tied", "tied", "constant", "forbidden", "peak", "huge", *undefined])
        if style == "tied":
            row = np.rint(row * 2) / 2
        elif style == "constant":
            row[:] = row[0]
        elif style == "forbidden":
            row[rng.random(v) < 0.7] = -np.inf
            row[rng.integers(v)] = 1.0
        elif style == "peak":
            row[rng.integers(0, v, 2)] = rng.choice([30, 1000, np.inf])
        elif style == "huge":
            largest = 6e4 if self.dtype == "float16" else 3e38
            row = np.clip(row * (largest / 2), -largest, largest)
        elif style == "nan":
            row[rng.integers(v)] = np.nan
        elif style == "undefined":
            row[:] = -np.inf
        return row

    @cached_property
    def probs(self) -> Array:
        """[R_cap, V]: a row's draft is often likely."""
        rows = np.zeros((self.size["R_cap"], self.size["V"]), np.float32)
        for r, (b, i) in enumerate(self.row_slots[: len(rows)]):
            rng = self.rng(f"probs {r}")
            rows[r] = self._distribution(rng)
            draft = self.slots[b].drafts[i : i + 1]
            if draft and 0 <= draft[0] < self.size["V"]:
                ranked = np.argsort(-rows[r], kind="stable")
                other = ranked[min(int(rng.choice([0, 0, 0, 0, 0, 0, 1, 1, 2, 5])), len(ranked) - 1)]
                rows[r, [draft[0], other]] = rows[r, [other, draft[0]]]
        return rows

    def _distribution(self, rng: np.random.Generator) -> Array:
        v = self.size["V"]
        style = rng.choice(["smooth", "smooth", "steep", "tied", "sparse", "one", "uniform", "least"])
        weights: Array = rng.exponential(size=v)
        if style == "steep":
            weights **= 6
        elif style == "tied":
            weights = rng.integers(0, 4, v).astype(np.float64)
        elif style == "sparse":
            weights[rng.random(v) < 0.7] = 0
        elif style == "uniform":
            weights[:] = 1
        elif style == "least":  # masses of 0 to 3, so that draws often hit their borders
            return (rng.integers(0, 4, v) * 2.0**-40).astype(np.float32)
        if style == "one" or not weights.any():
            weights[:] = 0
            weights[rng.integers(v)] = 1
        probs: Array = (weights / weights.sum()).astype(np.float32)
        return probs

    @cached_property
    def target_probs(self) -> Array:
        """[R_cap, V]."""
        return self.probs

    @cached_property
    def draft_probs(self) -> Array:
        """[M, S-1, V]: the target's own, one-hot, none, or another distribution."""
        shape = (self.size["M"], self.size["S"] - 1, self.size["V"])
        probs = np.zeros(shape, np.float32)
        first = self.cu_seqlens_q_output
        for b in range(shape[0]):
            for i in range(shape[1]):
                rng = self.rng(f"draft_probs {b} {i}")
                style = rng.choice(["other", "other", "same", "one-hot", "none"])
                drafts = self.slots[b].drafts if b < self.size["B"] else []
                if style == "same" and i < len(drafts) and first[b] + i < len(self.probs):
                    probs[b, i] = self.probs[first[b] + i]
                elif style == "one-hot" and i < len(drafts) and 0 <= drafts[i] < shape[2]:
                    probs[b, i, drafts[i]] = 1
                elif style != "none":
                    probs[b, i] = self._distribution(rng)
        return probs

    @cached_property
    def target_tokens(self) -> Array:
        """[R_cap]."""
        rng = self.rng("target_tokens")
        rows = rng.integers(0, self.size["V"], self.size["R_cap"])
        for r, (b, i) in enumerate(self.row_slots[: len(rows)]):
            draft = self.slots[b].drafts[i : i + 1]
            if draft and rng.random() < 0.75:
                rows[r] = draft[0]
            elif rng.random() < 0.15:
                rows[r] = rng.choice([-1, *self.end_tokens])
        rows[len(self.row_slots) :] = -1
        return rows

    @cached_property
    def candidate_ids(self) -> Array:
        """[R_cap, C]."""
        ids = np.argsort(-self.probs, axis=1, kind="stable")[:, : self.size["C"]]
        ids[len(self.row_slots) :] = -1
        return ids

    @cached_property
    def candidate_scores(self) -> Array:
        """[R_cap, C]."""
        return np.take_along_axis(self.probs, np.maximum(self.candidate_ids, 0), 1)

    @cached_property
    def candidate_lens(self) -> Array:
        """[R_cap]: one, all, or in between."""
        c = self.size["C"]
        lens = self.rng("candidate_lens").choice([1, 1, 1, 2, c], self.size["R_cap"]).clip(1, c)
        lens[len(self.row_slots) :] = 0
        return lens.astype(np.int32)

    # Accepted tokens

    @cached_property
    def accept_num(self) -> Array:
        """[M]; stale in slots that emit nothing, as after a step that did not run."""
        rng = self.rng("accept_num")
        counts = rng.integers(0, self.size["S"] + 1, self.size["M"])
        for b, slot in enumerate(self.slots):
            if slot.finishes_prompt and not (slot.stopped or slot.paused):
                counts[b] = rng.integers(1, slot.rows + 1)
            elif slot.slt > 0 or rng.random() < 0.5:
                counts[b] = 0
        return counts.astype(np.int32)

    @cached_property
    def accept_tokens(self) -> Array:
        """[M, S]: some drafts, then another token, sometimes an end token."""
        rng = self.rng("accept_tokens")
        tokens = np.full((self.size["M"], self.size["S"]), -1, np.int64)
        for b, count in enumerate(self.accept_num):
            tokens[b, :count] = rng.integers(0, self.size["V"], count)
            if b < self.size["B"]:
                kept = self.slots[b].drafts[: max(count - 1, 0)]
                tokens[b, : len(kept)] = kept
            if count and len(self.end_tokens) and rng.random() < 0.3:
                tokens[b, count - 1] = rng.choice(self.end_tokens)
        return tokens

    def _generated(self, b: int) -> Array:
        """Slot b's generated tokens after this step, as far as the row holds the older ones."""
        first = min(int(self.prompt_lens[b]), self.size["L"])
        older = self.token_ids_all[b, first : first + int(self.step_idx[b])]
        return np.concatenate([older, self.accept_tokens[b, : self.accept_num[b]]])

    @cached_property
    def _stops(self) -> tuple[Array, Array]:
        """Stop sequences and their lengths: most end at a token of this step, some lack one token.

        Others begin in the prompt, are of length 0, or are any tokens; what stands after a sequence is stale.
        """
        m, many, width = (self.size[symbol] for symbol in ("M", "Q", "Z"))
        rng, first = self.rng("stop_seqs"), self.prompt_lens.clip(0, self.size["L"])
        tokens = rng.integers(0, self.size["V"], (m, many, width))
        lens = rng.integers(0, width + 1, (m, many)).astype(np.int32)
        for b in range(m):
            generated, count = self._generated(b), int(self.accept_num[b])
            text = np.concatenate([self.token_ids_all[b, : first[b]], generated])
            for q in range(many):
                style = rng.choice(["ends", "ends", "all but one", "other", "none"])
                if style == "none":
                    lens[b, q] = 0
                if style not in ("ends", "all but one") or count == 0 or width == 0:
                    continue
                end = len(text) - int(rng.integers(0, count))
                most = len(generated) - (len(text) - end)  # beyond it, a sequence begins in the prompt
                n = min(max(pick(rng, 1, width, most, most + 1, between=(1, width)), 1), width, end)
                tokens[b, q, :n], lens[b, q] = text[end - n : end], n
                if style == "all but one":
                    tokens[b, q, rng.integers(n)] += 1
        return tokens, lens

    @cached_property
    def stop_seqs(self) -> Array:
        """[M, Q, Z]."""
        return self._stops[0]

    @cached_property
    def stop_seqs_lens(self) -> Array:
        """[M, Q]."""
        return self._stops[1]

    @cached_property
    def _accepted(self) -> list[tuple[int, int, int]]:
        """(slot, token, logit row) of every accepted token of this step."""
        first = self.cu_seqlens_q_output
        return [
            (b, int(self.accept_tokens[b, i]), int(first[b]) + (0 if slot.enc > 0 else i))
            for b, slot in enumerate(self.slots)
            if slot.slt > 0
            for i in range(self.accept_num[b])
        ]

    def _packed(self, values: list[int], dtype: str) -> Array:
        return np.array([*values, *[-1] * self.size["A_cap"]], dtype)[: self.size["A_cap"]]

    @cached_property
    def token_ids(self) -> Array:
        """[A_cap]."""
        return self._packed([token for _, token, _ in self._accepted], "int64")

    @cached_property
    def rows(self) -> Array:
        """[A_cap]."""
        return self._packed([row for _, _, row in self._accepted], "int32")

    @cached_property
    def cu_batch_token_offset(self) -> Array:
        """[B+1]."""
        counts = np.bincount([b for b, _, _ in self._accepted], minlength=self.size["B"])[: self.size["B"]]
        return np.cumsum([0, *counts]).astype(np.int32)
