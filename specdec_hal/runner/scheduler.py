"""Which request sits in which slot, and what each slot does in the next step.

First come, first served. A step has a budget of tokens: decoding slots take theirs first, what is left goes to chunks
of prompts, the oldest request first. KV blocks are taken as contexts grow; when there are none, the youngest request
gives its blocks back and waits, and later computes its context again (recompute on resume). A request that takes a slot
begins after the blocks that hold the beginning of its context already (prefix caching), whoever computed them.

The scheduler runs ahead of what the host knows: a step is scheduled before the step before it has been read. So it goes
by bounds (a decoding slot may have gained S tokens in every step that is under way), and a slot that has stopped on the
device meanwhile costs nothing, since the device knows.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specdec_hal.ops import SlotAction
from specdec_hal.runner.blocks import BlockPool, block_keys
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.slot_writer import SlotWriter
from specdec_hal.runner.state import DecodeState


class Work(NamedTuple):
    """What a slot does in a step. `chunk`: prompt tokens that it takes, 0 if it decodes; `end`: where those end.

    `emits`: whether its emitted tokens count. A chunk inside the prompt emits none; one that ends inside the generated
    tokens of a resumed request draws a token that is known already.
    """

    sequence: Sequence
    chunk: int = 0
    emits: bool = True
    end: int = 0


@dataclass
class Schedule:
    """One step. `slots`: how many take part (B); `tokens`, `context`: bounds on its tokens, and on any slot's cache.
    `stops`: slots that the device hears have ended."""

    work: dict[int, Work] = field(default_factory=dict)
    filled: list[int] = field(default_factory=list)
    stops: frozenset[int] = frozenset()
    slots: int = 0
    tokens: int = 0
    context: int = 0
    chunked: bool = False


LONG_PROMPT = 512
"""Tokens from which a prompt gets its slot a step later, if others decode: a step does not both take it over, which
costs the host time for each token, and admit it, which does so too. What decodes would wait for both at once."""


@dataclass(frozen=True)
class PrefixCache:
    """How requests share KV blocks. `draft_rows`: the proposer has a row for every position of a context; `lookahead`:
    its cache_lookahead, see :class:`~specdec_hal.plugin.proposer.Proposer`."""

    draft_rows: bool = False
    lookahead: int | None = 0


class Scheduler:
    """The waiting line, the slots, and the KV blocks (`pool` None: the model keeps a cache for every slot).

    `headroom`: positions that padded drafts may take beyond a request's limit. `draft_positions`: those that the
    proposer's cache takes after a step's tokens, in the same blocks. `prefixes` None: every request computes its whole
    context.
    """

    def __init__(
        self,
        state: DecodeState,
        pool: BlockPool | None = None,
        headroom: int = 0,
        draft_positions: int = 0,
        prefixes: PrefixCache | None = None,
    ) -> None:
        self.state, self.pool, self.headroom, self.draft_positions = state, pool, headroom, draft_positions
        self._slots, self._prefixes = SlotWriter(state), prefixes
        self.prefix_queries = self.prefix_hits = 0
        """Tokens of requests that took their first slot, and those of them that were found in the KV cache."""
        self.budget = state.symbols["T_cap"]
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}  # in the order of admission: a preempted request leaves
        self.preemptions = 0
        self._decoding: dict[int, Work] = {}
        """What a running request's slot does after its prompt."""
        self._preempted: list[Sequence] = []
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
    def sequences(self) -> Collection[Sequence]:
        """Requests that wait or run, the oldest first."""
        return self._by_id.values()

    @property
    def live(self) -> int:
        """Requests that wait or run."""
        return len(self._by_id)

    @property
    def has_room(self) -> bool:
        """Whether a request more would find a free slot in the next step."""
        return len(self.waiting) < len(self._free_slots)

    @property
    def line(self) -> int:
        """Requests that wait and will not find a free slot in the next step."""
        return max(len(self.waiting) - len(self._free_slots), 0)

    def release(self, sequence: Sequence) -> None:
        """A request has ended: take it out of the line or out of its slot."""
        del self._by_id[sequence.request.request_id]
        if sequence.slot is None:
            self.waiting.remove(sequence)
            return
        if sequence.finish_reason == "error" and self.pool is not None:
            self.pool.forget(sequence.blocks)  # what has gone wrong may stand in them
        self._vacate(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Put a running request back at the head of the line; it resumes with the tokens that it has by then."""
        self._vacate(sequence)
        self.waiting.appendleft(sequence)

    def _give_way(self, sequence: Sequence) -> None:
        """Preempt a request for the blocks of another."""
        self.preempt(sequence)
        self._preempted.append(sequence)
        self.preemptions += 1

    def take_preempted(self) -> list[Sequence]:
        """Who gave its blocks to an older request since the last call."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def _vacate(self, sequence: Sequence) -> None:
        slot = sequence.slot
        assert slot is not None
        del self.running[slot], self._decoding[slot]
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
        self._prefill(step, self._decode(step, only))
        if self.preemptions == preempted:
            self._admit(step, only)
        else:
            step.work = {slot: work for slot, work in step.work.items() if work.sequence.slot == slot}
        if not step.work:
            return None
        step.stops = frozenset(self._stops)
        for slot in self._stops - self.running.keys():
            host["slot_actions"][slot] = SlotAction.STOP
        used = np.flatnonzero(host["slot_actions"])
        step.slots = 1 + max(max(self.running), int(used[-1]) if used.size else 0)
        if used.size or self._dirty:
            self.state.schedule.upload()
        if step.filled:
            self._slots.upload_requests()
        self._dirty = bool(used.size)
        return step

    def idle(self) -> None:
        """Tell the device that no slot does anything."""
        actions = self.state.schedule.host["slot_actions"]
        actions[:] = SlotAction.KEEP
        actions[list(self._stops)] = SlotAction.STOP
        self.state.schedule.upload()
        self._dirty = True

    def launched(self, step: Schedule) -> None:
        """The device will do what :meth:`schedule` has decided. A step that fails may not have come so far."""
        self._stops -= step.stops

    def _decode(self, step: Schedule, only: Collection[Sequence] | None) -> list[tuple[int, Sequence]]:
        """Let everybody decode whose context is computed; slots and requests of which some is not."""
        width, unfinished, context = self.state.symbols["S"], list[tuple[int, Sequence]](), 0
        block_size = 0 if self.pool is None else self.pool.block_size
        beyond, headroom = self.draft_positions - 1, self.headroom
        for slot, sequence in list(self.running.items()):
            if only is not None and sequence not in only:
                continue
            if sequence.cached < sequence.target:  # or preempted for an older one, just now
                unfinished.append((slot, sequence))
                continue
            # As _reach, of `length`; written out, since every step does it for every request.
            reach = sequence.prompt_len + len(sequence.token_ids) + (sequence.in_flight + 1) * width + beyond
            most = sequence.prompt_len + sequence.max_new_tokens + headroom
            if reach > most:
                reach = most
            if reach > len(sequence.blocks) * block_size and not self._reserve(sequence, reach):
                continue
            step.work[slot] = self._decoding[slot]
            if reach > context:
                context = reach
        step.context = context
        step.tokens += width * len(step.work)
        return unfinished

    def _prefill(self, step: Schedule, unfinished: list[tuple[int, Sequence]]) -> None:
        for slot, sequence in unfinished:
            if sequence.slot == slot and not self._chunk(step, slot, sequence):
                self.state.schedule.host["slot_actions"][slot] = SlotAction.WAIT

    def _admit(self, step: Schedule, only: Collection[Sequence] | None) -> None:
        while self.waiting and self._free_slots and step.tokens < self.budget:
            if only is None and step.work and self.waiting[0].leave_once(LONG_PROMPT):
                return
            sequence = self._next(only)
            if sequence is None:
                return
            self.waiting.remove(sequence)
            sequence.slot = slot = heapq.heappop(self._free_slots)
            self._share(slot, sequence)
            if sequence.queue_s is None:
                sequence.queue_s = time.monotonic() - sequence.arrived_s
                self._count(sequence)
            self.running[slot], self._decoding[slot] = sequence, Work(sequence)
            self._install(slot, sequence)
            self._chunk(step, slot, sequence)
            step.filled.append(slot)

    def _next(self, only: Collection[Sequence] | None) -> Sequence | None:
        """Who comes next; None if the next in line has to wait for KV blocks, or for results of its own."""
        first = self.waiting[0] if only is None else next((s for s in self.waiting if s in only), None)
        if first is None or first.in_flight:
            return None
        first.resume()
        if self.pool is None:
            return first
        pool, found = self.pool, self._find(first)
        wanted = pool.needed(self._reach(first, first.target + self.state.symbols["S"])) - len(found)

        def short() -> bool:  # a block to grow into for everybody, or the youngest would be sent back at once
            return wanted + pool.idle(found) + len(self.running) > pool.free

        if only is not None:  # those who sit out this step end nothing, and so free no block
            for other in [s for s in reversed(self.running.values()) if s not in only]:
                if short():
                    self._give_way(other)
        return None if self.running and short() else first

    def _chunk(self, step: Schedule, slot: int, sequence: Sequence) -> bool:
        """Give a slot the next chunk of its context; False if there is no room for it in this step."""
        start, prompt = sequence.cached, sequence.prompt_len
        count = min(sequence.target - start, self.state.symbols["I_cap"], self.budget - step.tokens)
        end = start + count
        reach = self._reach(sequence, end)
        if count <= 0 or not self._reserve(sequence, reach):
            return False
        self._slots.fill_chunk(slot, start, count, max(0, end - prompt))
        if start and sequence.token_ids:  # a token drawn after the chunk before stands in the history, and has counted
            self._write_generated(slot, sequence)
        sequence.cached = end
        step.work[slot] = Work(sequence, count, end == sequence.target, end)
        step.tokens += count
        step.context, step.chunked = max(step.context, reach), True
        return True

    # ---- KV blocks

    def _reach(self, sequence: Sequence, positions: int) -> int:
        """How far the caches of a request may come to reach in a step that feeds the model up to `positions`."""
        most = sequence.prompt_len + sequence.max_new_tokens + self.headroom
        reach = positions + self.draft_positions
        return reach if reach < most else most

    def _reserve(self, sequence: Sequence, positions: int) -> bool:
        """Let a request's cache reach `positions`, at the cost of younger requests; False if it had to go itself."""
        if self.pool is None:
            return True
        slot, before = sequence.slot, len(sequence.blocks)
        if positions <= before * self.pool.block_size:
            return True
        while not self.pool.extend(sequence.blocks, positions):
            youngest = next(reversed(self.running.values()))
            self._give_way(youngest)
            if youngest is sequence:
                return False
        self.state.schedule.host["block_tables"][slot, before : len(sequence.blocks)] = sequence.blocks[before:]
        self._dirty = True
        return True

    # ---- blocks that hold a known text

    def _find(self, sequence: Sequence) -> list[int]:
        """The blocks that hold the beginning of a request's context; its last token is computed in any case."""
        pool, prefixes = self.pool, self._prefixes
        if pool is None or prefixes is None or sequence.scores_prompt:
            return []
        drafts = self._keeps_draft_rows(sequence)
        if drafts and prefixes.lookahead is None:
            return []
        keys = self._keys(sequence)[: (sequence.target - 1) // pool.block_size]
        return pool.find(keys, drafts)

    def _share(self, slot: int, sequence: Sequence) -> None:
        """Let a request that takes a slot begin after the blocks that are found of its context."""
        if self.pool is None or self._prefixes is None:
            return
        found = self._find(sequence)
        self.pool.share(found)
        self.state.schedule.host["block_tables"][slot, : len(found)] = sequence.blocks = found
        self._dirty = True
        size = self.pool.block_size
        sequence.registered, sequence.cached = len(found), len(found) * size
        sequence.shares_at = sequence.cached + size
        sequence.draft_rows = self._keeps_draft_rows(sequence)

    def _count(self, sequence: Sequence) -> None:
        """Count what a request has found that takes its first slot."""
        if self._prefixes is not None and not sequence.scores_prompt:
            self.prefix_queries += sequence.target
            self.prefix_hits += sequence.cached
        sequence.num_cached_tokens = min(sequence.cached, sequence.prompt_len)

    def computed(self, sequence: Sequence, positions: int) -> None:
        """A step was read, with which the caches hold the first `positions` of a request's context: others may share
        the blocks that it has filled."""
        if positions < sequence.shares_at or sequence.slot is None or sequence.finish_reason == "error":
            return
        pool = self.pool
        assert pool is not None
        # The drafter is not fed what the last step emits, nor what leaves no room for a draft.
        room = sequence.max_new_tokens - len(sequence.token_ids)
        drafted = sequence.draft_rows and sequence.finish_reason is None and room > 1
        keys = self._keys(sequence)[: positions // pool.block_size]
        for at in range(sequence.registered, len(keys)):
            pool.register(sequence.blocks[at], keys[at], drafted)
        sequence.registered, sequence.shares_at = len(keys), (len(keys) + 1) * pool.block_size

    def forget_prefixes(self) -> None:
        """No later request finds the blocks of those so far."""
        if self.pool is not None:
            self.pool.reset()

    def _keeps_draft_rows(self, sequence: Sequence) -> bool:
        """Whether the proposer has rows for a request's tokens."""
        assert self._prefixes is not None
        return self._prefixes.draft_rows and sequence.request.params.num_speculative_tokens != 0

    def _keys(self, sequence: Sequence) -> list[bytes]:
        assert self.pool is not None and self._prefixes is not None
        size, lookahead = self.pool.block_size, self._prefixes.lookahead or 0
        keys = sequence.block_keys
        if (len(keys) + 1) * size + lookahead <= sequence.length:
            salt = sequence.request.params.cache_salt
            block_keys(keys, sequence.length, sequence.tokens, size, lookahead, salt)
        return keys

    # ---- a new owner

    def _install(self, slot: int, sequence: Sequence) -> None:
        """What the device goes on from: the context, and how far the limits of thinking are."""
        prompt = sequence.prompt
        self._slots.fill_request(slot, len(prompt), sequence.request.params, sequence.max_new_tokens)
        self.state.write("token_ids_all", (slot, slice(len(prompt))), prompt)
        self._write_generated(slot, sequence)
        if self.state.symbols["H"]:  # else no request's answer is constrained, and two launches are saved
            self._slots.start_reasoning(slot, sequence.request.params)

    def _write_generated(self, slot: int, sequence: Sequence) -> None:
        if sequence.wants.thinking:
            self.state.write("limit_status", slot, sequence.limit_status)
        if sequence.token_ids:
            where = slot, slice(sequence.prompt_len, sequence.length)
            self.state.write("token_ids_all", where, np.array(sequence.token_ids, np.int64))
