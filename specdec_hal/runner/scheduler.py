"""Which request sits in which slot, and what each slot does in the next step.

First come, first served. A step has a budget of tokens: decoding slots take theirs first, what is left goes to chunks
of prompts, the oldest request first. KV blocks are taken as contexts grow; when there are none, the youngest request
gives its blocks back and waits, and later computes its context again (recompute on resume).

The scheduler runs ahead of what the host knows: a step is scheduled before the step before it has been read. So it goes
by bounds (a decoding slot may have gained S tokens in every step that is under way), and a slot that has stopped on the
device meanwhile costs nothing, since the device knows.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from specdec_hal.ops import SlotAction
from specdec_hal.runner.blocks import BlockPool
from specdec_hal.runner.sequence import Sequence
from specdec_hal.state import DecodeState


@dataclass(frozen=True)
class Work:
    """What a slot does in a step. `chunk`: prompt tokens that it takes, 0 if it decodes.

    `emits`: whether its emitted tokens count. A chunk inside the prompt emits none; one that ends inside the generated
    tokens of a resumed request draws a token that is known already.
    """

    sequence: Sequence
    chunk: int = 0
    emits: bool = True


@dataclass
class Schedule:
    """One step. `slots`: how many take part (B); `tokens`, `context`: bounds on its tokens, and on any slot's cache."""

    work: dict[int, Work] = field(default_factory=dict)
    filled: list[int] = field(default_factory=list)
    slots: int = 0
    tokens: int = 0
    context: int = 0
    chunked: bool = False


class Scheduler:
    """The waiting line, the slots, and the KV blocks (`pool` None: the model keeps a cache for every slot).

    `headroom`: positions that padded drafts may take beyond a request's limit.
    """

    def __init__(self, state: DecodeState, pool: BlockPool | None = None, headroom: int = 0) -> None:
        self.state, self.pool, self.headroom = state, pool, headroom
        self.budget = state.symbols["T_cap"]
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}  # in the order of admission: a preempted request leaves
        self.preemptions = 0
        self._free_slots = list(range(state.symbols["M"]))
        self._by_id: dict[str, Sequence] = {}
        self._stops: set[int] = set()
        self._dirty = False  # whether the device has seen `state.request`

    # ---- requests

    def add(self, sequence: Sequence) -> None:
        """Queue a request."""
        self._by_id[sequence.request.request_id] = sequence
        self.waiting.append(sequence)

    def find(self, request_id: str) -> Sequence | None:
        """The live sequence of that id."""
        return self._by_id.get(request_id)

    @property
    def live(self) -> int:
        """Requests that wait or run."""
        return len(self._by_id)

    def positions(self, sequence: Sequence) -> int:
        """The most positions that a request can come to need."""
        return len(sequence.request.prompt_token_ids) + sequence.max_new_tokens + self.headroom

    def release(self, sequence: Sequence) -> None:
        """A request has ended: take it out of the line or out of its slot."""
        del self._by_id[sequence.request.request_id]
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self._vacate(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Put a running request back at the head of the line; it resumes with the tokens that it has by then."""
        self._vacate(sequence)
        self.waiting.appendleft(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        slot = sequence.slot
        assert slot is not None
        del self.running[slot]
        heapq.heappush(self._free_slots, slot)
        self._stops.add(slot)  # the device may not know that it has ended
        sequence.slot, sequence.cached = None, 0
        if self.pool is not None:
            self.pool.release(sequence.blocks)

    # ---- one step

    def schedule(self, only: Collection[Sequence] | None = None) -> Schedule | None:
        """Decide the next step and tell the device; None if no slot has anything to do.

        `only`: requests that may take part, where a failed step is being taken apart.
        """
        step = Schedule()
        host = self.state.schedule.host
        host["slot_actions"][:] = SlotAction.KEEP
        preempted = self.preemptions
        if only is not None:
            for slot, sequence in self.running.items():
                if sequence not in only:
                    host["slot_actions"][slot] = SlotAction.WAIT
        self._decode(step, only)
        self._prefill(step, only)
        step.work = {slot: work for slot, work in step.work.items() if work.sequence.slot == slot}
        if self.preemptions == preempted:
            self._admit(step, only)
        if not step.work:
            return None
        for slot in self._stops - self.running.keys():
            host["slot_actions"][slot] = SlotAction.STOP
        self._stops.clear()
        used = np.flatnonzero(host["slot_actions"])
        step.slots = 1 + max(max(self.running), int(used[-1]) if used.size else 0)
        if used.size or self._dirty:
            self.state.schedule.upload()
        if step.filled:
            self.state.request.upload()
        self._dirty = bool(used.size)
        return step

    def _decode(self, step: Schedule, only: Collection[Sequence] | None) -> None:
        width = self.state.symbols["S"]
        for slot, sequence in list(self.running.items()):
            if sequence.prefilling or sequence.slot != slot:  # the latter: preempted for an older one, just now
                continue
            if only is not None and sequence not in only:
                continue
            reach = min(sequence.length - 1 + (sequence.in_flight + 1) * width, self.positions(sequence))
            if not self._reserve(sequence, reach):
                continue
            step.work[slot] = Work(sequence)
            step.tokens += width
            step.context = max(step.context, reach)

    def _prefill(self, step: Schedule, only: Collection[Sequence] | None) -> None:
        for slot, sequence in list(self.running.items()):
            if only is not None and sequence not in only:
                continue
            if sequence.prefilling and sequence.slot == slot and not self._chunk(step, slot, sequence):
                self.state.schedule.host["slot_actions"][slot] = SlotAction.WAIT

    def _admit(self, step: Schedule, only: Collection[Sequence] | None) -> None:
        while self.waiting and self._free_slots and step.tokens < self.budget:
            sequence = self._next(only)
            if sequence is None:
                return
            self.waiting.remove(sequence)
            sequence.slot = slot = heapq.heappop(self._free_slots)
            self.running[slot] = sequence
            self._install(slot, sequence)
            self._chunk(step, slot, sequence)
            step.filled.append(slot)

    def _next(self, only: Collection[Sequence] | None) -> Sequence | None:
        """Who comes next; None if the next in line has to wait for KV blocks, or for results of its own."""
        first = self.waiting[0] if only is None else next((s for s in self.waiting if s in only), None)
        if first is None or first.in_flight:
            return None
        first.resume()
        if self.pool is not None and self.running:
            # A block to grow into for everybody, or the youngest would be sent back at once.
            wanted = self.pool.needed(first.target + self.state.symbols["S"]) + len(self.running)
            if wanted > self.pool.free:
                return None
        return first

    def _chunk(self, step: Schedule, slot: int, sequence: Sequence) -> bool:
        """Give a slot the next chunk of its context; False if there is no room for it in this step."""
        start, prompt = sequence.cached, len(sequence.request.prompt_token_ids)
        count = min(sequence.target - start, self.state.symbols["I_cap"], self.budget - step.tokens)
        end = start + count
        if count <= 0 or not self._reserve(sequence, end):
            return False
        host = self.state.schedule.host
        host["slot_actions"][slot] = SlotAction.PREFILL
        host["chunk_lens"][slot], host["chunk_starts"][slot] = count, start
        host["chunk_step_idx"][slot] = max(0, end - prompt)
        self._show_blocks(slot, sequence)
        if start and sequence.token_ids:  # a token drawn behind the chunk before stands in the history
            self._write_history(slot, sequence)
        sequence.cached = end
        step.work[slot] = Work(sequence, count, end == sequence.target)
        step.tokens += count
        step.context, step.chunked = max(step.context, end), True
        return True

    # ---- KV blocks

    def _reserve(self, sequence: Sequence, positions: int) -> bool:
        """Let a request's cache reach `positions`, at the cost of younger requests; False if it had to go itself."""
        if self.pool is None:
            return True
        before = len(sequence.blocks)
        while not self.pool.extend(sequence.blocks, positions):
            youngest = next(reversed(self.running.values()))
            self.preempt(youngest)
            self.preemptions += 1
            if youngest is sequence:
                return False
        if sequence.slot is not None and len(sequence.blocks) > before:
            self._show_blocks(sequence.slot, sequence)
        return True

    def _show_blocks(self, slot: int, sequence: Sequence) -> None:
        if self.pool is not None:
            self.state.schedule.host["block_tables"][slot, : len(sequence.blocks)] = sequence.blocks
            self._dirty = True

    # ---- a new owner

    def _install(self, slot: int, sequence: Sequence) -> None:
        params, host = sequence.request.params, self.state.request.host
        k = self.state.symbols["S"] - 1
        wanted = params.num_speculative_tokens
        values = {
            "prompt_lens": len(sequence.request.prompt_token_ids),
            "max_dec_len": sequence.max_new_tokens,
            "min_dec_len": params.min_new_tokens,
            "draft_token_num": k if wanted is None else min(wanted, k),
            "reasoning_status": 0,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "seed": params.seed,
            "repetition": params.repetition_penalty,
            "frequency": params.frequency_penalty,
            "presence": params.presence_penalty,
            "bad_tokens": -1,
            "stop_seqs_lens": 0,
        }
        for name, value in values.items():
            host[name][slot] = value
        host["bad_tokens"][slot, : len(params.bad_token_ids)] = params.bad_token_ids
        for i, tokens in enumerate(sequence.stop_sequences):
            host["stop_seqs"][slot, i, : len(tokens)] = tokens
            host["stop_seqs_lens"][slot, i] = len(tokens)
        self._write_history(slot, sequence)

    def _write_history(self, slot: int, sequence: Sequence) -> None:
        tokens = np.array([*sequence.request.prompt_token_ids, *sequence.token_ids], np.int64)
        self.state.write("token_ids_all", (slot, slice(len(tokens))), tokens)
