"""A random but coherent state of a batch, from which `generate` takes the inputs of any op.

A :class:`Scene` holds slots as a runner would: some prefill, some decode drafts, some are idle, stopped or paused, and
padding has stale values. Its properties have the names of the vocabulary; each draws from its own random stream (seed
and name), so adding one does not change others. `rows` adds a model's results.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import vocabulary

Array = NDArray[Any]

STATES = {"decode": 14, "prefill": 4, "idle": 2, "stopped": 1, "paused": 1}
"""Slot states and how often each occurs."""

WIDE = 1 << 40
"""Added to some token ids of some scenes, since ops must not truncate 64-bit ids."""


def pick(rng: np.random.Generator, *values: int, between: tuple[int, int] | None = None, times: int = 3) -> int:
    """One of the values or, with weight `times`, any in [low, high]."""
    drawn = [] if between is None else rng.integers(between[0], between[1] + 1, times).tolist()
    chosen = [*values, *drawn]
    return int(chosen[rng.integers(len(chosen))])


@dataclass
class Slot:
    """A slot in use. `text` is prompt ++ generated, and may be longer than a row of `token_ids_all`."""

    state: str
    text: list[int]
    prompt_len: int
    enc: int = 0
    dec: int = 0
    slt: int = 0
    stopped: bool = False
    paused: bool = False
    drafts: list[int] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Tokens generated so far."""
        return len(self.text) - self.prompt_len

    @property
    def rows(self) -> int:
        """Output rows (section 1 of the contract)."""
        return 0 if self.slt == 0 else 1 if self.enc > 0 else self.slt

    @property
    def finishes_prompt(self) -> bool:
        """Whether this step emits tokens: a decode step, or the last chunk of a prompt."""
        return self.slt > 0 and (self.enc == 0 or self.dec + self.enc >= self.prompt_len)


class OneOf(cached_property[Any]):
    """One of the values: a number or, with a dtype, one for each slot [M]."""

    def __init__(self, *values: float, dtype: str = "") -> None:
        super().__init__(self._drawn)
        self._values, self._dtype = values, dtype

    def _drawn(self, scene: Scene) -> Any:
        rng, values = scene.rng(str(self.attrname)), self._values
        if not self._dtype:
            return pick(rng, *values)  # type: ignore[arg-type]
        return rng.choice(np.array(values), scene.size["M"]).astype(self._dtype)


class OfSlots(cached_property[Array]):
    """[M]: what `value` says of the slots in use, then stale values in [0, `stale`)."""

    def __init__(self, value: Callable[[Slot], int], dtype: str, stale: Callable[[int], int]) -> None:
        def made(scene: Scene) -> Array:
            values = [value(slot) for slot in scene.slots]
            return scene._per_slot(str(self.attrname), dtype, values, 0, stale(scene.size["L"]))

        super().__init__(made)


class Scene:
    """Slots, their texts, and the packed batch.

    Sizes are those of the vocabulary; unspecified ones are drawn, often with awkward values (1, none, one too many).
    `states` limits the states of slots in use.
    """

    SYMBOLS = tuple(symbol for symbol in vocabulary.SYMBOLS if symbol not in ("G", "X"))  # KV blocks; a backend's index

    def __init__(self, seed: int, *, states: Sequence[str] = tuple(STATES), **fixed: int) -> None:
        self.seed = seed
        rng = self.rng("sizes")
        drawn = {
            "M": int(rng.integers(1, 9)),
            "S": pick(rng, 1, 2, 3, 4, 5, 6, 8),
            "L": pick(rng, 1, 2, 3, 8, 16, 24, 40, 40),
            "V": pick(rng, 1, 2, 3, 7, 16, 40, 40, 111),
            "D": int(rng.integers(1, 6)),
            "E": pick(rng, 0, 0, 1, 2, 3),
            "W": int(rng.integers(0, 4)),
        }
        size = {**drawn, **fixed}
        padding = pick(rng, 0, 0, 0, 1, 2) if rng.random() > 0.03 else size["M"]
        size.setdefault("B", max(size["M"] - padding, 0))
        size.setdefault("C", int(rng.integers(1, min(size["V"], 6) + 1)))
        size.setdefault("N", int(rng.integers(1, min(size["V"], 5) + 1)))
        size.setdefault("I_cap", int(rng.integers(1, size["L"] + 2)))
        stops = self.rng("stop sequence sizes")
        size.setdefault("Q", pick(stops, 0, 1, 1, 2, 3, 4, 9))
        size.setdefault("Z", pick(stops, 0, 1, 2, 3, 4, 5, 8))
        phases = self.rng("phase sizes")
        size.setdefault("J", pick(phases, 0, 1, 1, 2, 3, 5))
        size.setdefault("H", pick(phases, 0, 1, 2, 2, 3, 20))
        size.setdefault("P", max(size["L"] + pick(self.rng("pre_ids width"), 0, 0, 0, 3, -2, -size["L"]), 0))
        self.size = size
        self.wide_ids = bool(rng.random() < 0.1)
        weights = np.array([STATES[state] for state in states], np.float64)
        chosen = rng.choice(list(states), size["B"], p=weights / weights.sum())
        self.slots = [self._slot(f"slot {b}", str(state)) for b, state in enumerate(chosen)]
        tokens = sum(slot.slt for slot in self.slots)
        rows = sum(slot.rows for slot in self.slots)
        size.setdefault("T_cap", tokens + pick(rng, 0, 1, 5))
        size.setdefault("R_cap", rows + pick(rng, 0, 1, 5))
        size.setdefault("A_cap", rows + pick(rng, 0, 1, 5))
        masks = self.rng("mask sizes")
        size.setdefault("U", pick(masks, 0, 1, rows, rows, rows + 2))
        words = -(-size["V"] // 32)
        size.setdefault("Y", max(pick(masks, words, words, words, words - 1, words + 1, 1), 1))
        drafter = self.rng("drafter sizes")
        size.setdefault("V_draft", pick(drafter, 1, size["V"], size["V"] + 3, between=(1, size["V"])))
        size.setdefault("C_draft", pick(self.rng("draft candidates"), 1, 2, 3, 4, 5, 8, 16))
        size.setdefault("num_masks", pick(drafter, 0, 1, min(size["S"] - 1, 31), 31, between=(0, 5)))
        most = tokens + size["num_masks"] * sum(slot.slt > 0 for slot in self.slots)
        size.setdefault("F_cap", most + pick(drafter, 0, 1, 5))
        size.setdefault("D_cap", rows + sum(slot.enc > 0 for slot in self.slots) + pick(phases, 0, 1, 5))

    def rng(self, name: str) -> np.random.Generator:
        """The random stream of one tensor (or slot, or row)."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    # Slots

    def _slot(self, name: str, state: str) -> Slot:
        rng, size = self.rng(name), self.size
        length, s = size["L"], size["S"]
        if state in ("stopped", "paused"):
            slot = self._slot(name, str(rng.choice(["decode", "prefill", "idle"])))
            slot.state, slot.stopped, slot.paused = state, state == "stopped", state == "paused"
            return slot
        prompt_len = min(pick(rng, 0, 1, 2, length - 1, length, between=(1, length), times=9), length)
        if state == "idle":
            slot = Slot(state, self._text(rng, prompt_len, prompt_len), prompt_len, stopped=bool(rng.random() < 0.5))
            if not slot.stopped and prompt_len and rng.random() < 0.5:
                slot.dec = prompt_len  # a running request without a token in this step
            return slot
        if state == "prefill":
            prompt_len = max(prompt_len, 1)
            # A request resumed after preemption already has generated tokens.
            steps = int(rng.integers(1, 4)) if rng.random() < 0.1 else 0
            slot = Slot(state, self._text(rng, prompt_len + steps, prompt_len), prompt_len)
            slot.dec = pick(rng, 0, between=(0, prompt_len - 1), times=1)
            left = min(prompt_len - slot.dec, size["I_cap"])
            slot.enc = slot.slt = pick(rng, 1, left, between=(1, left), times=1)
            return slot
        room = length - prompt_len
        steps = pick(rng, 1, 2, room - 1, room, room + 1, between=(1, room + 1), times=9)
        steps = max(steps, 2 if prompt_len == 0 else 1)  # dec >= 1, or the slot would be idle
        slot = Slot(state, self._text(rng, prompt_len + steps, prompt_len), prompt_len)
        slot.dec = prompt_len + steps - 1
        slot.slt = pick(rng, 1, s, s, between=(1, s), times=2)
        slot.drafts = self._drafts(rng, slot)
        return slot

    def _text(self, rng: np.random.Generator, length: int, prompt_len: int) -> list[int]:
        """A text with recurring n-grams: a small alphabet, a period, or its end planted earlier."""
        if length == 0:
            return []
        text = rng.integers(0, self.size["V"], length)
        style = rng.choice(["random", "small", "periodic", "planted", "planted"])
        if style == "small":
            text = rng.choice(text[: int(rng.integers(1, 4))], length)
        elif style == "periodic":
            text = np.resize(text[: int(rng.integers(1, 6))], length)
            noise = rng.random(length) < rng.choice([0.0, 0.0, 0.1])
            text[noise] = rng.integers(0, self.size["V"], int(noise.sum()))
        elif style == "planted" and length > 1:
            n = int(rng.integers(1, min(6, length - 1) + 1))
            last = length - n - 1  # one token later and the copy is the end of the text itself
            # The start; the end of the prompt and across it; next to and overlapping the end of the text.
            edges = (0, prompt_len - n, prompt_len - n // 2 - 1, length - 2 * n, last)
            for _ in range(2):
                column = min(max(pick(rng, *edges, between=(0, last)), 0), last)
                text[column : column + n] = text[length - n :]
        if self.wide_ids:
            text = np.where(text % 2 == 1, text + WIDE, text)
        return [int(token) for token in text]

    def _drafts(self, rng: np.random.Generator, slot: Slot) -> list[int]:
        """Drafts of a look-up, or any tokens, with end tokens and a few bad ids."""
        count, v = slot.slt - 1, self.size["V"]
        if rng.random() < 0.4:
            start = int(rng.integers(0, len(slot.text)))
            drafts = np.resize(np.array(slot.text[start:], np.int64), count)
        else:
            drafts = rng.integers(0, v, count)
        for i in range(count):
            odd = rng.random()
            if odd < 0.08 and self.size["E"]:
                drafts[i] = rng.choice(self.end_tokens)
            elif odd > 0.97:
                drafts[i] = rng.choice([-1, v, v + WIDE])
        return [int(token) for token in drafts]

    # Slot state, by name

    def _per_slot(self, name: str, dtype: str, values: Sequence[int | bool], low: int, high: int) -> Array:
        """[M]: the values of the slots in use, then stale ones in [low, high)."""
        stale = self.rng(name).integers(low, max(high, low + 1), self.size["M"] - self.size["B"])
        return np.array([*values, *stale.tolist()]).astype(dtype)

    prompt_lens = OfSlots(lambda slot: slot.prompt_len, "int64", lambda length: length + 1)
    step_idx = OfSlots(lambda slot: slot.step, "int64", lambda length: length + 1)
    seq_lens_encoder = OfSlots(lambda slot: slot.enc, "int32", lambda length: length)
    seq_lens_decoder = OfSlots(lambda slot: slot.dec, "int32", lambda length: length)

    @cached_property
    def seq_lens_this_time(self) -> Array:
        """[B]."""
        return np.array([s.slt for s in self.slots], np.int32)

    stop_flags = OfSlots(lambda slot: slot.stopped, "bool", lambda length: 2)
    is_block_step = OfSlots(lambda slot: slot.paused, "bool", lambda length: 2)

    @cached_property
    def token_ids_all(self) -> Array:
        """[M, L]; after the text a plausible continuation, other tokens, or ids outside any vocabulary."""
        rng, (m, length) = self.rng("token_ids_all"), (self.size["M"], self.size["L"])
        cells = rng.integers(0, self.size["V"], (m, length))
        for b, slot in enumerate(self.slots):
            text = slot.text[:length]
            stale = rng.choice(["continued", "random", "bad"])
            if stale == "continued" and text:
                cells[b] = np.resize(text, length)
            elif stale == "bad":
                cells[b] = rng.choice([-1, -(1 << 62), 1 << 62])
            cells[b, : len(text)] = text
        return cells

    @cached_property
    def draft_tokens(self) -> Array:
        """[M, S]; after the drafts, and everywhere in slots that do not decode, stale ids."""
        rng, (m, s) = self.rng("draft_tokens"), (self.size["M"], self.size["S"])
        cells = rng.integers(-1, self.size["V"] + 2, (m, s))
        for b, slot in enumerate(self.slots):
            if slot.dec and slot.text:
                cells[b, : len(slot.drafts) + 1] = [slot.text[-1], *slot.drafts]
        return cells

    @cached_property
    def input_ids(self) -> Array:
        """[M, I_cap]."""
        rng, (m, width) = self.rng("input_ids"), (self.size["M"], self.size["I_cap"])
        cells = rng.integers(-1, self.size["V"] + 2, (m, width))
        for b, slot in enumerate(self.slots):
            cells[b, : slot.enc] = slot.text[slot.dec : slot.dec + slot.enc]
        return cells

    # Limits and wishes of the requests

    def _limits(self, name: str, offsets: Sequence[int]) -> Array:
        rng = self.rng(name)
        values = [max(slot.step + pick(rng, *offsets), 0) for slot in self.slots]
        return self._per_slot(f"{name} stale", "int64", values, 0, self.size["L"])

    @cached_property
    def max_dec_len(self) -> Array:
        """[M]: reached already, reached within this step, or far away."""
        s = self.size["S"]
        return self._limits("max_dec_len", [0, 1, 2, s - 1, s, s + 1, *[1000] * 10])

    @cached_property
    def min_dec_len(self) -> Array:
        """[M]."""
        s = self.size["S"]
        return self._limits("min_dec_len", [-1000, 0, 1, 2, s - 1, s, 1000])

    @cached_property
    def draft_token_num(self) -> Array:
        """[M]; none, all, or more than there is room for."""
        k = self.size["S"] - 1
        return self.rng("draft_token_num").choice([0, 1, k, k, k, k + 3], self.size["M"]).astype(np.int32)

    reasoning_status = OneOf(0, 0, 0, 0, 1, 2, -1, dtype="int32")

    @cached_property
    def end_tokens(self) -> Array:
        """[E]."""
        return self.rng("end_tokens").integers(0, self.size["V"], self.size["E"])

    @cached_property
    def ignore_end(self) -> Array:
        """[M]."""
        return self.rng("ignore_end").random(self.size["M"]) < 0.3

    @cached_property
    def bad_tokens(self) -> Array:
        """[M, W]; some are padding."""
        shape = (self.size["M"], self.size["W"])
        return self.rng("bad_tokens").integers(-1, self.size["V"] + 1, shape)

    @cached_property
    def reset_slots(self) -> Array:
        """[M]."""
        return self.rng("reset_slots").random(self.size["M"]) < 0.5

    # The scheduler's decisions

    slot_actions = OneOf(0, 0, 1, 1, 1, 1, 2, 3, 4, -1, dtype="int32")  # some name no action

    @cached_property
    def chunk_starts(self) -> Array:
        """[M]: where the slot is in its text, the ends of the row, or anywhere."""
        rng, length = self.rng("chunk_starts"), self.size["L"]
        starts = rng.integers(0, length + 1, self.size["M"])
        for b, slot in enumerate(self.slots):
            starts[b] = pick(rng, 0, 0, *[min(slot.dec, length)] * 4, length - 1, length, between=(0, length))
        return starts.astype(np.int32)

    @cached_property
    def chunk_lens(self) -> Array:
        """[M]: none, one, up to the end of the prompt, of the row or of `input_ids`, or more than the row has left."""
        rng, width, length = self.rng("chunk_lens"), self.size["I_cap"], self.size["L"]
        lens = rng.integers(0, width + 1, self.size["M"])
        for b, slot in enumerate(self.slots):
            left = length - int(self.chunk_starts[b])
            drawn = pick(rng, 0, 1, slot.prompt_len - slot.dec, left, left + 1, width, between=(0, width))
            lens[b] = min(max(drawn, 0), width)
        return lens.astype(np.int32)

    @cached_property
    def chunk_step_idx(self) -> Array:
        """[M]: 0 in a prompt; more in a request that resumes, and in some that do not."""
        rng, length = self.rng("chunk_step_idx"), self.size["L"]
        steps = rng.integers(0, length + 1, self.size["M"])
        ends = self.chunk_starts.astype(np.int64) + self.chunk_lens
        for b, slot in enumerate(self.slots):
            if rng.random() < 0.8:
                steps[b] = min(max(int(ends[b]) - slot.prompt_len, 0), length)
        return steps

    # The packed batch (section 1)

    @cached_property
    def row_slots(self) -> list[tuple[int, int]]:
        """(slot, row within the slot) of every output row."""
        return [(b, i) for b, slot in enumerate(self.slots) for i in range(slot.rows)]

    @cached_property
    def cu_seqlens_q(self) -> Array:
        """[B+1]."""
        return np.cumsum([0, *(s.slt for s in self.slots)]).astype(np.int32)

    @cached_property
    def cu_seqlens_q_output(self) -> Array:
        """[B+1]."""
        return np.cumsum([0, *(s.rows for s in self.slots)]).astype(np.int32)

    @cached_property
    def batch_id_per_token_output(self) -> Array:
        """[R_cap]."""
        slots = [b for b, _ in self.row_slots]
        return np.array([*slots, *[-1] * self.size["R_cap"]], np.int32)[: self.size["R_cap"]]

    # Attributes

    max_ngram_size = OneOf(1, 2, 3, 3, 4, 6, 16)  # mostly small enough to match

    @cached_property
    def min_ngram_size(self) -> int:
        """At most `max_ngram_size`."""
        most = int(self.max_ngram_size)
        return min(pick(self.rng("min_ngram_size"), 1, 1, 1, 2, most), most)

    @cached_property
    def token_budget(self) -> int:
        """None, near the number of base tokens, near the drafts' need, or plenty."""
        active = sum(slot.enc > 0 or slot.dec > 0 for slot in self.slots)
        prefill = sum(slot.slt for slot in self.slots if slot.enc > 0)
        full = prefill + active * self.size["S"]
        edges = (0, active, prefill + active, prefill + active + 1, full - 1, full, *[10**9] * 6)
        return max(pick(self.rng("token_budget"), *edges, between=(0, full), times=4), 0)

    verify_window = OneOf(1, 1, 2, 2, 3, 8)  # mostly short enough to fit
