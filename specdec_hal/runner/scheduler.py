"""Which request sits in which slot, and which part of its prompt comes next.

First come, first served: a waiting request takes the lowest free slot before the next step. Everything the ops need
to know of it is written into the slot's tensors here, and nowhere else.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from specdec_hal.runner.request import SamplingParams
from specdec_hal.runner.sequence import Sequence
from specdec_hal.state import DecodeState


class Scheduler:
    """The waiting line and the slots."""

    def __init__(self, state: DecodeState) -> None:
        self.state = state
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}

    def find(self, request_id: str) -> Sequence | None:
        """The live sequence of that id."""
        live = (*self.waiting, *self.running.values())
        return next((sequence for sequence in live if sequence.request.request_id == request_id), None)

    def admit(self) -> list[int]:
        """Give free slots to waiting requests; the slots that were filled."""
        filled = []
        for slot in range(self.state.symbols["M"]):
            if self.waiting and slot not in self.running:
                sequence = self.waiting.popleft()
                self._install(slot, sequence)
                self.running[slot] = sequence
                filled.append(slot)
        return filled

    def _install(self, slot: int, sequence: Sequence) -> None:
        state, params = self.state, sequence.request.params
        prompt = np.asarray(sequence.request.prompt_token_ids, np.int64)
        state.write("token_ids_all", (slot, slice(len(prompt))), prompt)
        k = state.symbols["S"] - 1
        wanted = params.num_speculative_tokens
        values = {
            "prompt_lens": len(prompt),
            "step_idx": 0,
            "max_dec_len": sequence.max_new_tokens,
            "min_dec_len": params.min_new_tokens,
            "seq_lens_decoder": 0,
            "draft_token_num": k if wanted is None else min(wanted, k),
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "seed": params.seed,
            "repetition": params.repetition_penalty,
            "frequency": params.frequency_penalty,
            "presence": params.presence_penalty,
            "stop_flags": False,
            "is_block_step": False,
            "reasoning_status": 0,
        }
        for name, value in values.items():
            state.write(name, slot, value)
        self._forbid(slot, params)
        self._next_chunk(slot, sequence)

    def _forbid(self, slot: int, params: SamplingParams) -> None:
        self.state.write("bad_tokens", slot, -1)
        if params.bad_token_ids:
            self.state.write("bad_tokens", (slot, slice(len(params.bad_token_ids))), params.bad_token_ids)

    def schedule_chunks(self) -> None:
        """After a step: set the next chunk of every prompt that is not all in the KV cache."""
        for slot, sequence in self.running.items():
            if sequence.prefilled < len(sequence.request.prompt_token_ids):
                self._next_chunk(slot, sequence)

    def _next_chunk(self, slot: int, sequence: Sequence) -> None:
        state = self.state
        start = sequence.prefilled
        chunk = sequence.request.prompt_token_ids[start : start + state.symbols["I_cap"]]
        state.write("input_ids", (slot, slice(len(chunk))), np.asarray(chunk, np.int64))
        for name in ("seq_lens_encoder", "seq_lens_this_time"):
            state.write(name, slot, len(chunk))
        sequence.prefilled += len(chunk)

    def release(self, sequence: Sequence) -> None:
        """Take a sequence out of the line or out of its slot."""
        for slot, other in self.running.items():
            if other is sequence:
                self.state.free(slot)
                del self.running[slot]
                return
        self.waiting.remove(sequence)
