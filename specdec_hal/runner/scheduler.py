"""Assigns requests to slots, and work to each slot of the next step.

First come, first served. A step has a token budget: decoding slots first, then prompt chunks, oldest request first. KV
blocks are allocated as contexts grow; without free blocks, the youngest request is preempted and later recomputes its
context. A request that takes a slot starts after the blocks found for its context (prefix caching).

A step is scheduled before the previous one is read. So the scheduler uses bounds (a decoding slot may gain S tokens in
each pending step); slots that have already stopped on the device cost nothing. It only decides: a schedule is a value,
which :class:`~specdec_hal.runner.slot_writer.SlotWriter` carries out.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specdec_hal.ops import SlotAction
from specdec_hal.runner.blocks import BlockPool, PrefixStates, block_keys
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.slot_table import Bools, Ints, SlotTable
from specdec_hal.runner.state import DecodeState


class Work(NamedTuple):
    """A slot's work in a step. `chunk`: its prompt tokens, 0 if it decodes; `end`: their end.

    `emits`: whether its emitted tokens count. A chunk inside the prompt emits none; one that ends inside a resumed
    request's generated tokens redraws a known token.
    """

    sequence: Sequence
    chunk: int = 0
    emits: bool = True
    end: int = 0


@dataclass
class Schedule:
    """What one step does; :meth:`SlotWriter.apply <specdec_hal.runner.slot_writer.SlotWriter.apply>` carries it out.

    `slots`: number of participating slots (B); `tokens`, `context`: bounds on tokens and on any slot's cache; `budget`:
    the most tokens. `filled`: requests with a new slot; `chunks`: slots that take a part of their prompt; `grown`: the
    blocks of slots with other ones than before. `resumed`, `kept`: entry and position of recurrent states that a slot
    starts from, and that are kept after the step. `stops`: ended slots to report to the device. `changes`: whether the
    device must know of the decisions. `steady`: the requests are those of the previous step. By slot [M]: `actions`
    (:class:`~specdec_hal.ops.SlotAction`), `decodes`, `takes_part` (also with a chunk), and SlotTable.owner of then.
    """

    actions: Ints
    decodes: Bools
    takes_part: Bools
    owner: Ints
    work: dict[int, Work] = field(default_factory=dict)
    filled: dict[int, Sequence] = field(default_factory=dict)
    grown: dict[int, list[int]] = field(default_factory=dict)
    resumed: dict[int, tuple[int, int]] = field(default_factory=dict)
    kept: dict[int, tuple[int, int]] = field(default_factory=dict)
    chunks: list[int] = field(default_factory=list)
    stops: frozenset[int] = frozenset()
    slots: int = 0
    tokens: int = 0
    budget: int = 0
    context: int = 0
    chunked: bool = False
    changes: bool = True
    steady: bool = False


LONG_PROMPT = 512
"""Prompts of at least this length get their slot a step later if others decode: queueing and admission both cost host
time per token, and decoding requests would wait for both in one step.
"""


@dataclass(frozen=True)
class PrefixCache:
    """Settings of prefix caching. `draft_rows`: the proposer has a row per position of a context; `lookahead`: its
    cache_lookahead, see :class:`~specdec_hal.plugin.proposer.Proposer`. `states`: of a model with recurrent layers.
    """

    draft_rows: bool = False
    lookahead: int | None = 0
    states: PrefixStates | None = None


class Scheduler:
    """The queue, the slots, and the KV blocks (`pool` None: the model has a cache per slot).

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
        size = state.symbols
        self.table = SlotTable(size["M"], size["L"], size["S"])
        self._symbols, self.pool, self.headroom, self.draft_positions = size, pool, headroom, draft_positions
        self._prefixes = prefixes
        self._feeds = True
        """Whether the proposer is fed requests that begin."""
        self.prefix_queries = self.prefix_hits = 0
        """Tokens of requests at their first slot, and those found in the KV cache."""
        self.budget = size["T_cap"]
        self.prompt_limit: Callable[[int], int | None] = lambda decoding: None
        """From the number of decoding slots, the most prompt tokens of a step; None: what the budget leaves."""
        self.rope_switch: int | None = None
        """The model's: a request whose text gets longer is preempted once, and resumes with other frequencies."""
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}  # in the order of admission: a preempted request leaves
        self.preemptions = 0
        self._decoding: dict[int, Work] = {}
        """A running request's work after its prompt."""
        self._prefilling: dict[int, Sequence] = {}
        """Running requests with chunks left, in the order of admission."""
        self._preempted: list[Sequence] = []
        self._free_slots = list(range(size["M"]))
        self._by_id: dict[str, Sequence] = {}
        self._stops: set[int] = set()
        self._keep = np.full(size["M"], SlotAction.KEEP, np.int64)
        self._grown: dict[int, list[int]] = {}
        """See :class:`Schedule`; since the last one."""
        self._dirty = False  # whether the device has actions of the last step
        self._same = False
        """Whether the running requests are those of the last step."""

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
        """Whether one more request would get a slot in the next step."""
        return len(self.waiting) < len(self._free_slots)

    @property
    def line(self) -> int:
        """Waiting requests that will not get a slot in the next step."""
        return max(len(self.waiting) - len(self._free_slots), 0)

    def release(self, sequence: Sequence) -> None:
        """Remove an ended request from the queue or its slot."""
        del self._by_id[sequence.request.request_id]
        if sequence.slot is None:
            self.waiting.remove(sequence)
            return
        if sequence.finish_reason == "error" and self.pool is not None:
            self.pool.forget(sequence.blocks)  # they may hold wrong values
        self._vacate(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Requeue a running request at the head; it resumes with its tokens so far."""
        self._vacate(sequence)
        self.waiting.appendleft(sequence)

    def _give_way(self, sequence: Sequence) -> None:
        """Preempt a request for the blocks of another."""
        self.preempt(sequence)
        self._preempted.append(sequence)
        self.preemptions += 1

    def take_preempted(self) -> list[Sequence]:
        """Requests preempted since the last call."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def _vacate(self, sequence: Sequence) -> None:
        slot = sequence.slot
        assert slot is not None
        del self.running[slot], self._decoding[slot]
        self._prefilling.pop(slot, None)
        self._same = False
        sequence.leave()
        heapq.heappush(self._free_slots, slot)
        self._stops.add(slot)  # the device may still run it
        sequence.cached = 0
        self._grown.pop(slot, None)
        if self.pool is not None:
            self.pool.release(sequence.blocks)

    # ---- one step

    def schedule(self, only: Collection[Sequence] | None = None) -> Schedule | None:
        """Decide what the next step does; None if all slots are idle.

        `only`: allowed requests during recovery.
        """
        table = self.table
        decodes = table.used & ~table.prefilling
        step = Schedule(self._keep.copy(), decodes, decodes, table.owner)
        preempted = self.preemptions
        if only is not None:
            for slot, sequence in self.running.items():
                if sequence not in only:
                    step.actions[slot] = SlotAction.WAIT
                    step.decodes[slot] = False
        self._decode(step)
        self._prefill(step, only)
        if self.preemptions == preempted:
            self._admit(step, only)
        else:
            step.decodes &= table.used
            step.work = {slot: work for slot, work in step.work.items() if work.sequence.slot == slot}
        if not step.work:
            return None
        step.stops = frozenset(self._stops)
        if self._stops:
            step.actions[list(self._stops - self.running.keys())] = SlotAction.STOP
        used = np.flatnonzero(step.actions)
        step.slots = 1 + max(max(self.running), int(used[-1]) if used.size else 0)
        step.grown, self._grown = self._grown, {}
        step.changes, self._dirty = bool(used.size or self._dirty or step.grown), bool(used.size)
        step.owner = table.owner.copy()
        if step.chunked:
            step.takes_part = step.decodes.copy()
            step.chunks = [slot for slot in step.chunks if slot in step.work]
            step.takes_part[step.chunks] = True
            step.kept = self._kept(step)
        step.steady = self._same and len(step.work) == len(self.running)
        self._same = len(step.work) == len(self.running)
        return step

    def idle(self) -> Schedule:
        """A step in which no slot does anything."""
        nothing = np.zeros(len(self._keep), np.bool_)
        step = Schedule(self._keep.copy(), nothing, nothing, self.table.owner)
        step.actions[list(self._stops)] = SlotAction.STOP
        self._dirty = True
        return step

    def launched(self, step: Schedule) -> None:
        """Commit the decision of :meth:`schedule`; a failed step may not get here."""
        self._stops -= step.stops
        self.table.in_flight += step.takes_part & (step.owner == self.table.owner)

    def _decode(self, step: Schedule) -> None:
        """Schedule decoding for complete contexts."""
        table, width = self.table, self._symbols["S"]
        # As _reach of the length after all launched steps and this one.
        reach = table.length + (table.in_flight + 1) * width + (self.draft_positions - 1)
        np.minimum(reach, table.end + self.headroom, out=reach)
        reach *= step.decodes
        if self.pool is not None and (short := reach > table.room).any():
            slots = set(short.nonzero()[0].tolist())
            for slot, sequence in [(slot, one) for slot, one in self.running.items() if slot in slots]:
                if sequence.slot == slot:  # else just preempted for an older one
                    self._reserve(sequence, int(reach[slot]))
            step.decodes &= table.used
        slots_left = step.decodes.nonzero()[0].tolist()
        every = len(slots_left) == len(self._decoding)
        step.work = dict(self._decoding) if every else {slot: self._decoding[slot] for slot in slots_left}
        step.context = int(reach.max())
        step.tokens += width * len(step.work)
        most = self.prompt_limit(len(step.work)) if step.work else None
        step.budget = self.budget if most is None else min(self.budget, step.tokens + most)

    def _prefill(self, step: Schedule, only: Collection[Sequence] | None) -> None:
        """Schedule chunks of other contexts."""
        for slot, sequence in list(self._prefilling.items()):
            prefills = sequence.slot == slot
            if prefills and (only is None or sequence in only) and not self._chunk(step, slot, sequence):
                step.actions[slot] = SlotAction.WAIT

    def _admit(self, step: Schedule, only: Collection[Sequence] | None) -> None:
        while self.waiting and self._free_slots and step.tokens < step.budget:
            if only is None and step.work and self.waiting[0].leave_once(LONG_PROMPT):
                return
            sequence = self._next(only)
            if sequence is None:
                return
            self.waiting.remove(sequence)
            slot = heapq.heappop(self._free_slots)
            sequence.take(slot, self.table)
            self._share(slot, sequence, step)
            if sequence.queue_s is None:
                sequence.queue_s = time.monotonic() - sequence.arrived_s
                self._count(sequence)
            self.running[slot], self._decoding[slot], self._prefilling[slot] = sequence, Work(sequence), sequence
            self._same = False
            self._chunk(step, slot, sequence)
            step.filled[slot] = sequence

    def _next(self, only: Collection[Sequence] | None) -> Sequence | None:
        """The next request; None if it must wait for KV blocks or its own results."""
        first = self.waiting[0] if only is None else next((s for s in self.waiting if s in only), None)
        if first is None or first.in_flight:
            return None
        first.resume(self.rope_switch)
        if self.pool is None:
            return first
        pool, found = self.pool, self._find(first)
        wanted = pool.needed(self._reach(first, first.target + self._symbols["S"])) - len(found)

        def short() -> bool:  # a spare block for everyone, or the youngest would be preempted at once
            return wanted + pool.idle(found) + len(self.running) > pool.free

        if only is not None:  # deferred requests free no block
            for other in [s for s in reversed(self.running.values()) if s not in only]:
                if short():
                    self._give_way(other)
        return None if self.running and short() else first

    def _chunk(self, step: Schedule, slot: int, sequence: Sequence) -> bool:
        """Schedule the next chunk of a slot; False if the step is full."""
        count = min(sequence.target - sequence.cached, self._symbols["I_cap"], step.budget - step.tokens)
        if self._prefixes is not None and self._prefixes.states is not None:
            count = self._to_block_end(sequence, count)
        end = sequence.cached + count
        reach = self._reach(sequence, end)
        if count <= 0 or not self._reserve(sequence, reach):
            return False
        step.actions[slot] = SlotAction.PREFILL
        sequence.cached, self.table.prefilling[slot] = end, end < sequence.target
        if end == sequence.target:
            del self._prefilling[slot]
        step.chunks.append(slot)
        step.work[slot] = Work(sequence, count, end == sequence.target, end)
        step.tokens += count
        step.context, step.chunked = max(step.context, reach), True
        return True

    # ---- KV blocks

    def _reach(self, sequence: Sequence, positions: int) -> int:
        """Upper bound on a request's cache after a step with inputs up to `positions`."""
        most = sequence.prompt_len + sequence.stay + self.headroom
        reach = positions + self.draft_positions
        return reach if reach < most else most

    def _reserve(self, sequence: Sequence, positions: int) -> bool:
        """Grow a request's cache to `positions`, preempting younger requests; False if it was preempted itself."""
        if self.pool is None:
            return True
        slot = sequence.slot
        assert slot is not None
        if positions <= len(sequence.blocks) * self.pool.block_size:
            return True
        while not self.pool.extend(sequence.blocks, positions):
            youngest = next(reversed(self.running.values()))
            self._give_way(youngest)
            if youngest is sequence:
                return False
        self._grown[slot] = sequence.blocks
        self.table.room[slot] = len(sequence.blocks) * self.pool.block_size
        return True

    # ---- blocks that hold a known text

    def _find(self, sequence: Sequence) -> list[int]:
        """Known blocks of a request's context, except its last token, which is always computed."""
        pool, prefixes = self.pool, self._prefixes
        if pool is None or prefixes is None or sequence.scores_prompt:
            return []
        drafts = self._keeps_draft_rows(sequence)
        if drafts and prefixes.lookahead is None:
            return []
        found, most = list[int](), (sequence.target - 1) // pool.block_size
        while len(found) < most:  # ever more at once: most texts are unknown from the first block on
            wanted = min(2 * len(found) + 1, most)
            new = pool.find(self._keys(sequence, wanted * pool.block_size)[len(found) : wanted], drafts)
            found += new
            if len(found) < wanted:
                break
        if prefixes.states is not None:
            del found[prefixes.states.longest(sequence.block_keys[: len(found)]) :]
        return found

    def _to_block_end(self, sequence: Sequence, count: int) -> int:
        """Of a chunk of so many tokens, those up to the last block whose end a text can be resumed from, if any."""
        assert self.pool is not None
        size = self.pool.block_size
        end = min(sequence.cached + count, sequence.target - 1) // size * size
        return end - sequence.cached if end > sequence.cached else count

    def _kept(self, step: Schedule) -> dict[int, tuple[int, int]]:
        """The states to keep after a step: at the last block's end in a context, and where its length has doubled."""
        if self.pool is None or self._prefixes is None or self._prefixes.states is None:
            return {}
        states, size, kept = self._prefixes.states, self.pool.block_size, dict[int, tuple[int, int]]()
        for slot in step.chunks:
            sequence, count, _, end = step.work[slot]
            if end % size or not states.keeps(count):
                continue
            blocks, before = end // size, (end - count) // size
            keys = self._keys(sequence, end)
            last = blocks == (sequence.target - 1) // size
            if len(keys) < blocks or not (last or blocks.bit_length() > before.bit_length()):
                continue
            if (entry := states.add(keys[blocks - 1])) is not None:
                kept[slot] = entry, end
        return kept

    def _share(self, slot: int, sequence: Sequence, step: Schedule) -> None:
        """Start a request after its known blocks."""
        if self.pool is None or self._prefixes is None:
            return
        found = self._find(sequence)
        self.pool.share(found)
        self._grown[slot] = sequence.blocks = found
        size = self.pool.block_size
        sequence.registered = len(found)
        sequence.cached = self.table.room[slot] = len(found) * size
        self.table.shares_at[slot] = sequence.cached + size
        if found and self._prefixes.states is not None:
            step.resumed[slot] = self._prefixes.states.find(sequence.block_keys[len(found) - 1]), sequence.cached
        sequence.draft_rows = self._keeps_draft_rows(sequence)

    def _count(self, sequence: Sequence) -> None:
        """Count the found tokens of a request at its first slot."""
        if self._prefixes is not None and not sequence.scores_prompt:
            self.prefix_queries += sequence.target
            self.prefix_hits += sequence.cached
        sequence.num_cached_tokens = min(sequence.cached, sequence.prompt_len)

    def computed(self, slots: Ints, positions: Ints) -> None:
        """After a step with so many positions of the contexts in the caches, register their full blocks for sharing."""
        full = positions >= self.table.shares_at[slots]
        if not full.any():
            return
        pool = self.pool
        assert pool is not None
        for slot, position in zip(slots[full].tolist(), positions[full].tolist(), strict=True):
            sequence = self.running[slot]
            # The drafter skips the last step's tokens and those without room for a draft.
            drafted = sequence.draft_rows and sequence.finish_reason is None
            drafted = drafted and self.table.length[slot] + 1 < self.table.end[slot]
            keys, start = self._keys(sequence, position), sequence.registered
            end = sequence.registered = min(len(keys), position // pool.block_size)
            for block, key in zip(sequence.blocks[start:end], keys[start:end], strict=True):
                pool.register(block, key, drafted)
            self.table.shares_at[slot] = (end + 1) * pool.block_size

    @property
    def shares_prefixes(self) -> bool:
        """Whether requests share the blocks of equal prefixes."""
        return self._prefixes is not None

    def forget_prefixes(self) -> None:
        """Forget all known blocks."""
        if self.pool is not None:
            self.pool.reset()
        if self._prefixes is not None and self._prefixes.states is not None:
            self._prefixes.states.reset()

    def _keeps_draft_rows(self, sequence: Sequence) -> bool:
        """Whether the proposer has rows for a request's tokens."""
        assert self._prefixes is not None
        return self._feeds and self._prefixes.draft_rows and sequence.request.params.num_speculative_tokens != 0

    def feed(self, feeds: bool) -> None:
        """Whether the proposer is fed from now on: else requests of now have no more rows."""
        if self._feeds and not feeds:
            for sequence in self.running.values():
                sequence.draft_rows = False
        self._feeds = feeds

    def _keys(self, sequence: Sequence, positions: int) -> list[bytes]:
        """The keys of a request's full blocks, at least of those up to `positions`."""
        assert self.pool is not None and self._prefixes is not None
        keys, salt, size = sequence.block_keys, sequence.request.params.cache_salt, self.pool.block_size
        if sequence.long:
            salt = f"{salt or ''}\0long"  # blocks of texts with other frequencies
        ahead = self._prefixes.lookahead or 0
        block_keys(keys, sequence.context, min(positions + ahead, sequence.length), size, ahead, salt)
        return keys
