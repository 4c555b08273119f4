"""A :class:`~.draft_scene.DraftScene` with requests that think before they answer, and rows reported by a draft
model."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from specdec_hal.ops.inputs.draft_scene import DraftScene
from specdec_hal.ops.inputs.rows import to_logits
from specdec_hal.ops.inputs.scene import WIDE, Array, pick


class PhaseScene(DraftScene):
    """Some requests are about to end thinking, at a limit or by themselves; others are far from it."""

    # Limits

    @cached_property
    def max_think_lens(self) -> Array:
        """[M]: none, reached already, reached within this step, or far away."""
        rng, s = self.rng("max_think_lens"), self.size["S"]
        near = self.step_idx + rng.choice([-1, 0, 0, 1, 1, 2, s - 1, s], self.size["M"])
        far = rng.choice([-1, 0, 1000], self.size["M"], p=[0.6, 0.1, 0.3])
        return np.where(rng.random(self.size["M"]) < 0.6, near.clip(0), far).astype(np.int32)

    @cached_property
    def max_reply_lens(self) -> Array:
        """[M]."""
        values = [-1, -1, 0, 1, 1, 2, 3, self.size["S"], 1000]
        return self.rng("max_reply_lens").choice(values, self.size["M"]).astype(np.int32)

    @cached_property
    def limit_status(self) -> Array:
        """[M]: thinking, in the text that ends it, or answering."""
        rng, size = self.rng("limit_status"), max(self.size["J"], 1)
        status = rng.choice([0, 0, 0, 1, size, size + 1, size + 2, size + 3], self.size["M"])
        return status.astype(np.int32)

    @cached_property
    def inject_token_ids(self) -> Array:
        """[J]: sometimes tokens that were emitted anyway."""
        rng, emitted = self.rng("inject_token_ids"), self.accept_tokens[self.accept_tokens >= 0]
        tokens = rng.integers(0, self.size["V"], self.size["J"])
        if len(emitted):
            same = rng.random(self.size["J"]) < 0.3
            tokens[same] = rng.choice(emitted, int(same.sum()))
        return tokens + (WIDE if self.wide_ids else 0)

    # Reasoning

    @cached_property
    def _newest(self) -> list[Array]:
        """The last four generated tokens of each slot in use, or as many as there are."""
        rows = []
        for b, slot in enumerate(self.slots):
            end = min(len(slot.text), self.size["L"])
            rows.append(self.token_ids_all[b, max(end - 4, slot.prompt_len) : max(end, slot.prompt_len)])
        return rows

    @cached_property
    def _separators(self) -> tuple[int, int]:
        """(think_end_id, line_break_id): from the text of a slot at the border, else any tokens."""
        rng = self.rng("separators")
        at_border = [t for t in self._newest if len(t) == 4 and t[0] == t[2] == t[3]]
        if at_border and rng.random() < 0.7:
            tokens = at_border[int(rng.integers(len(at_border)))]
            return int(tokens[1]), int(tokens[0])
        seen = [self.accept_tokens[self.accept_tokens >= 0], *self._newest, np.array([self.size["V"] - 1])]
        known = np.concatenate(seen)
        return int(rng.choice(known)), int(rng.choice(known))

    @cached_property
    def think_end_id(self) -> int:
        """A token that was emitted, or generated before."""
        return self._separators[0]

    @cached_property
    def line_break_id(self) -> int:
        """A token of a text."""
        return self._separators[1]

    @cached_property
    def allowed_tokens(self) -> Array:
        """[H]: some outside the vocabulary, some twice."""
        v = self.size["V"]
        return self.rng("allowed_tokens").choice([*range(min(v, 4)), v - 1, v, -1, v + WIDE], self.size["H"])

    @cached_property
    def reasoning_seen(self) -> Array:
        """[M]: all tokens, all but a step's, or none."""
        rng, s = self.rng("reasoning_seen"), self.size["S"]
        distance = rng.choice([0, 1, 1, 2, 3, s], self.size["M"])
        seen = np.where(rng.random(self.size["M"]) < 0.2, -1, self.step_idx - distance)
        return seen.clip(-1, self.size["L"]).astype(np.int64)

    @cached_property
    def enable_thinking(self) -> Array:
        """[M]."""
        return self.rng("enable_thinking").random(self.size["M"]) < 0.5

    # Draft model

    @cached_property
    def next_tokens(self) -> Array:
        """[R_cap]."""
        tokens = self.rng("next_tokens").integers(0, self.size["V"], self.size["R_cap"])
        return tokens + (WIDE if self.wide_ids else 0)

    @cached_property
    def draft_token_ids(self) -> Array:
        """[D_cap]: what the buffer held before."""
        return np.full(self.size["D_cap"], -7)

    @cached_property
    def first_token_logits(self) -> Array:
        """[M, V]."""
        rows = [self._logits(self.rng(f"first token logits {b}")) for b in range(self.size["M"])]
        return to_logits(np.array(rows, np.float32), self.dtype)

    @cached_property
    def draft_logits(self) -> Array:
        """[D_cap, V]: what the buffer held before."""
        shape = (self.size["D_cap"], self.size["V"])
        return to_logits(np.full(shape, pick(self.rng("draft_logits"), -1, 3), np.float32), self.dtype)
