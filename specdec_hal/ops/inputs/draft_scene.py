"""A :class:`~.mask_scene.MaskScene` for a draft model, with the target's state."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops.inputs.mask_scene import MaskScene
from specdec_hal.ops.inputs.rows import to_logits
from specdec_hal.ops.inputs.scene import WIDE, OneOf, pick

Array = NDArray[Any]


class DraftScene(MaskScene):
    """The slots are the draft model's; the target's have the same tokens and rejected drafts."""

    @cached_property
    def base_model_draft_tokens(self) -> Array:
        """[M, S]: drafts, then -1."""
        rng, (m, s) = self.rng("base_model_draft_tokens"), (self.size["M"], self.size["S"])
        tokens = rng.integers(0, self.size["V"], (m, s)) + (WIDE if self.wide_ids else 0)
        tokens[np.arange(s) > rng.integers(0, s, (m, 1))] = -1
        return tokens

    @cached_property
    def base_model_seq_lens_decoder(self) -> Array:
        """[M]."""
        fed = np.where(self.seq_lens_encoder > 0, self.seq_lens_encoder, self.accept_num)
        return (self.seq_lens_decoder + fed).clip(0, self.size["L"]).astype(np.int32)

    @cached_property
    def base_model_step_idx(self) -> Array:
        """[M]."""
        return (self.step_idx + self.accept_num).clip(0, self.size["L"])

    @cached_property
    def base_model_stop_flags(self) -> Array:
        """[M]: some have stopped in this step."""
        ended: Array = self.rng("base_model_stop_flags").random(self.size["M"]) < 0.1
        return self.stop_flags | ended

    @cached_property
    def base_model_cu_seqlens_q(self) -> Array:
        """[B+1]: at least the draft model's tokens per slot, within T_cap."""
        rng, room = self.rng("base_model_cu_seqlens_q"), self.size["T_cap"] - sum(slot.slt for slot in self.slots)
        lens = []
        for slot in self.slots:
            more = pick(rng, 0, 0, 1, 2)
            lens.append(slot.slt + min(more, room))
            room = max(room - more, 0)
        return np.cumsum([0, *lens]).astype(np.int32)

    @cached_property
    def batch_id_per_token(self) -> Array:
        """[T_cap]."""
        slots = [b for b, slot in enumerate(self.slots) for _ in range(slot.slt)]
        return np.array([*slots, *[-1] * self.size["T_cap"]], np.int32)[: self.size["T_cap"]]

    @cached_property
    def ids_remove_padding(self) -> Array:
        """[T_cap]."""
        tokens = self.rng("ids_remove_padding").integers(0, self.size["V"], self.size["T_cap"])
        return tokens + (WIDE if self.wide_ids else 0)

    @cached_property
    def mask_token_id(self) -> int:
        """A token of the vocabulary, or one after it."""
        return pick(self.rng("mask_token_id"), self.size["V"], 2**24 - 1, between=(0, self.size["V"] - 1))

    @cached_property
    def num_masks(self) -> int:
        """As the sizes have it."""
        return self.size["num_masks"]

    @cached_property
    def own_logits(self) -> Array:
        """[R_cap, V_draft]: every one different, as far as the dtype can tell."""
        shape = (self.size["R_cap"], self.size["V_draft"])
        return to_logits(self.rng("own_logits").normal(size=shape) * 9, self.dtype)

    @cached_property
    def target_to_draft(self) -> Array:
        """[V]: ascending columns with gaps, or in any order; some tokens have none."""
        rng, (v, own) = self.rng("target_to_draft"), (self.size["V"], self.size["V_draft"])
        columns = rng.integers(-1, own, v)
        if rng.random() < 0.5:
            columns.sort()
        columns[rng.random(v) < rng.choice([0.0, 0.3, 0.8])] = -1
        return np.array(columns, np.int32)

    @cached_property
    def draft_confidence(self) -> Array:
        """[M, S-1]: mostly high."""
        rng, shape = self.rng("draft_confidence"), (self.size["M"], self.size["S"] - 1)
        confidence = 1 - rng.random(shape) ** rng.choice([1, 4, 9])
        confidence[rng.random(shape) < 0.1] = rng.choice([0.0, 1.0, np.nan, 1e-20])
        return np.array(confidence, np.float32)

    @cached_property
    def min_confidence(self) -> Array:
        """[M]: never, often, always; and a product of confidences itself."""
        rng, some = self.rng("min_confidence"), self.draft_confidence[:, :2].prod(1, dtype=np.float32)
        chosen = rng.choice(np.array([0, 0.1, 0.5, 0.9, 1, 2], np.float32), self.size["M"])
        return np.array(np.where(rng.random(self.size["M"]) < 0.3, some, chosen), np.float32)

    @cached_property
    def _path(self) -> tuple[Array, Array]:
        """Ids and logits of the best tokens of some rows."""
        count, shape = self.size["C_draft"], (self.size["R_cap"], self.size["V"])
        rows = np.array([self._logits(self.rng(f"path {r}")) for r in range(shape[0])], np.float32).reshape(shape)
        ids = np.argsort(-rows, axis=1, kind="stable")[:, :count]
        ids = np.concatenate([ids, np.full((len(ids), count - ids.shape[1]), -1)], 1)
        return ids, np.take_along_axis(rows, np.maximum(ids, 0), 1)

    @cached_property
    def path_ids(self) -> Array:
        """[R_cap, C_draft]: some are repeated, or -1."""
        rng, ids = self.rng("path_ids"), self._path[0]
        other = rng.random(ids.shape) < rng.choice([0.0, 0.0, 0.2])
        return np.where(other, rng.integers(-1, self.size["V"], ids.shape), ids)

    @cached_property
    def path_logits(self) -> Array:
        """[R_cap, C_draft]."""
        return self._path[1]

    def _codes(self, name: str, rows: str) -> Array:
        """Small integers in some scenes, so that scores are tied."""
        rng = self.rng(name)
        codes = rng.normal(size=(self.size[rows], self.size["D"]))
        return to_logits(np.rint(codes) if self.rng("whole codes").random() < 0.3 else codes, self.dtype)

    @cached_property
    def path_hidden(self) -> Array:
        """[R_cap, D]."""
        return self._codes("path_hidden", "R_cap")

    @cached_property
    def predecessor_codes(self) -> Array:
        """[V, D]."""
        return self._codes("predecessor_codes", "V")

    @cached_property
    def successor_codes(self) -> Array:
        """[V, D]."""
        return self._codes("successor_codes", "V")

    @cached_property
    def anchor_tokens(self) -> Array:
        """[B]: a token, sometimes one that the vocabulary lacks."""
        rng, size = self.rng("anchor_tokens"), self.size
        tokens = rng.integers(0, size["V"], size["B"])
        return np.where(rng.random(size["B"]) < 0.05, rng.choice([-1, size["V"], 2**62], size["B"]), tokens)

    @cached_property
    def inter_next_tokens(self) -> Array:
        """[R_cap]: a token for each row, sometimes none."""
        rng, rows = self.rng("inter_next_tokens"), self.size["R_cap"]
        tokens = rng.integers(0, self.size["V"], rows) + (WIDE if self.wide_ids else 0)
        return np.where(rng.random(rows) < 0.05, -1, tokens)

    @cached_property
    def pre_ids(self) -> Array:
        """[M, P]: mostly the generated tokens."""
        rng = self.rng("pre_ids")
        ids = rng.integers(-1, self.size["V"], (self.size["M"], self.size["P"]))
        for b, prompt_len in enumerate(self.prompt_lens.clip(0, self.size["L"]).tolist()):
            generated = self.token_ids_all[b, prompt_len:][: self.size["P"]]
            if rng.random() < 0.8:
                ids[b, : len(generated)] = generated
        return ids

    min_room = OneOf(0, 2, 2, 3, 5)  # one token that can be accepted beside the target's own, or more

    @cached_property
    def substep(self) -> int:
        """The first, another, or one without a column in draft_tokens."""
        k = self.size["S"] - 1
        return pick(self.rng("substep"), 0, 0, max(k - 1, 0), k, between=(0, k))
