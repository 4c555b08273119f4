"""FastDeploy around its runners: the buffers, the insertion of requests, preemption, KV blocks, the step's loop."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.compat.fastdeploy.chains.lockstep import Buffer, Lockstep
from tests.compat.fastdeploy.chains.scenes import ALLOWED, ENDS, MODEL_LEN, Request, Scene
from tests.compat.fastdeploy.chains.toy_model import START, Cache, advance

Array = NDArray[Any]
MOST_STOPS, LONGEST_STOP = 3, 2


def share_inputs(scene: Scene) -> dict[str, Buffer]:
    """FastDeploy's `share_inputs`, by its names, shapes, dtypes and first values."""
    n, width = scene.slots, scene.drafts + 1
    lens = (n, 1) if scene.columns else (n,)
    blocks = -(-MODEL_LEN // scene.block_size) + 8
    arrays: dict[str, Any] = {
        "accept_tokens": np.zeros((n, width), np.int64), "accept_num": np.zeros(n, np.int32),
        "draft_tokens": np.full((n, width), -1), "actual_draft_token_num": np.full(n, scene.drafts, np.int32),
        "cu_seqlens_q_output": np.zeros((n + 1, 1), np.int32),
        "batch_id_per_token_output": np.zeros(n * width, np.int32), "cu_batch_token_offset": np.zeros(n + 1, np.int32),
        "step_draft_tokens": np.full((n, width), -1), "step_seq_lens_this_time": np.zeros((n, 1), np.int32),
        "step_seq_lens_decoder": np.zeros((n, 1), np.int32), "token_ids_all": np.full((n, MODEL_LEN), -1),
        "input_ids": np.zeros((n, scene.chunk), np.int64), "seq_lens_this_time": np.zeros(lens, np.int32),
        "seq_lens_encoder": np.zeros(lens, np.int32), "seq_lens_decoder": np.zeros(lens, np.int32),
        "stop_flags": np.full((n, 1), True), "is_block_step": np.full(n, False), "not_need_stop": np.full(1, False),
        "eos_token_id": np.array(ENDS, np.int64).reshape(-1, 1), "infer_seed": np.zeros((n, 1), np.int64),
        "top_p": np.full((n, 1), scene.top_p, np.float32), "top_k": np.zeros((n, 1), np.int64),
        "temperature": np.ones((n, 1), np.float32), "penalty_score": np.ones((n, 1), np.float32),
        "frequency_score": np.zeros((n, 1), np.float32), "presence_score": np.zeros((n, 1), np.float32),
        "bad_tokens": np.full((n, 4), 1), "bad_tokens_len": np.zeros((n, 1), np.int64),
        "reasoning_status": np.zeros((n, 1), np.int32), "reasoning_allowed_tokens": np.array(ALLOWED, np.int64),
        "enable_thinking": np.full((n, 1), True), "mask_rollback": np.zeros((n, 1), np.int32),
        "preempted_idx": np.zeros((n, 1), np.int32), "stop_seqs": np.full((n, MOST_STOPS, LONGEST_STOP), -1),
        "stop_seqs_len": np.zeros((n, MOST_STOPS), np.int32), "max_think_lens": np.full((n, 1), -1, np.int32),
        "max_reply_lens": np.full((n, 1), -1, np.int32), "limit_think_status": np.zeros((n, 1), np.int32),
        "inject_token_ids": np.array(scene.inject, np.int64).reshape(-1, 1),
        "block_tables": np.full((n, blocks), -1, np.int32), "next_tokens": np.full((n, 1), -1),
        **{name: np.zeros((n, 1), np.int64) for name in ("prompt_lens", "step_idx", "max_dec_len", "min_dec_len")},
    }  # fmt: skip
    return {name: Buffer(array) for name, array in arrays.items()}


class Runner:
    """Common parts of both platforms' runners: buffers, insertion, preemption."""

    def __init__(self, scene: Scene, lockstep: Lockstep) -> None:
        self.scene, self.ops = scene, lockstep
        self.share = share_inputs(scene)
        self.cache = Cache(scene.slots, MODEL_LEN + 32)
        self.seeds = np.zeros(scene.slots, np.int64)
        """Of the requests, by which the toy model draws."""
        self._in_use: dict[int, Buffer] = {}

    def array(self, name: str) -> Array:
        """A buffer's values, in one axis unless it is wider."""
        array = self.share[name].array
        return array if array.ndim > 1 and array.shape[1] > 1 else array.reshape(-1)

    def write(self, slot: int, **values: Any) -> None:
        """Write a slot's values into buffers, as the host does."""
        for name, value in values.items():
            self.share[name].array[slot] = value
            self.share[name].flush()

    @property
    def lens(self) -> Buffer:
        """`seq_lens_this_time`: a view of the slots up to the last one with a request."""
        count = self.in_use
        if count not in self._in_use:
            self._in_use[count] = self.share["seq_lens_this_time"].first(count)
        return self._in_use[count]

    in_use = 1

    def insert(self, slot: int, request: Request, start: int, count: int) -> None:
        """A part of a prompt, as `insert_tasks_v1` does; of a preempted request, also of what it had generated."""
        tokens, known = request.prompt + request.output, len(request.output)
        is_last = start + count == len(tokens)
        history = np.full(MODEL_LEN, -1)
        history[: len(request.prompt)] = request.prompt
        inputs, stops = self.share["input_ids"].array[slot].copy(), np.full((MOST_STOPS, LONGEST_STOP), -1)
        inputs[:count] = tokens[start : start + count]
        stop_lens, bad = np.zeros(MOST_STOPS, np.int32), np.full(4, 1)
        bad[: len(request.bad)] = request.bad
        for q, stop in enumerate(request.stops):
            stops[q, : len(stop)], stop_lens[q] = stop, len(stop)
        self.write(
            slot, token_ids_all=history, input_ids=inputs, prompt_lens=len(tokens), step_idx=known if is_last else 0,
            seq_lens_this_time=count, seq_lens_encoder=count, seq_lens_decoder=start, stop_flags=False,
            is_block_step=False, max_dec_len=request.max_dec_len, min_dec_len=request.min_dec_len, draft_tokens=-1,
            infer_seed=request.seed, temperature=request.temperature, top_k=int(self.scene.rng.integers(1, 16)),
            frequency_score=request.frequency, presence_score=request.presence, bad_tokens=bad,
            bad_tokens_len=len(request.bad), reasoning_status=0, enable_thinking=request.enable_thinking,
            stop_seqs=stops, stop_seqs_len=stop_lens, max_think_lens=request.think, max_reply_lens=request.reply,
            limit_think_status=0, preempted_idx=0,
        )  # fmt: skip
        self.seeds[slot] = request.seed
        if start and not self.fed(slot, request, start):
            self.cache.feed(slot, 0, tokens[:start])  # a prefix that another request has left in the cache

    def fed(self, slot: int, request: Request, start: int) -> bool:
        """Whether the cache has the text's first tokens."""
        hidden = START
        for token in (request.prompt + request.output)[:start]:
            hidden = advance(hidden, token)
        return bool((self.cache.rows[slot, start - 1] == hidden).all())

    def preempt(self, slot: int) -> None:
        """Take a slot from its request."""
        self.write(slot, stop_flags=True, seq_lens_this_time=0, seq_lens_encoder=0, seq_lens_decoder=0,
                   is_block_step=False, preempted_idx=1, block_tables=-1)  # fmt: skip

    def step(self) -> dict[int, list[int]]:
        """Run the model once; the tokens that slots have gained."""
        raise NotImplementedError

    def forward(self, slot: int, tokens: Array) -> Array:
        """The target's hidden rows of a slot's tokens, from what its cache holds."""
        return self.cache.feed(slot, int(self.array("seq_lens_decoder")[slot]), tokens.tolist())


class Engine:
    """Gives requests to a runner's slots until all are written."""

    def __init__(self, scene: Scene, runner: Runner) -> None:
        self.scene, self.runner, self.rng = scene, runner, scene.rng
        self.waiting = sorted(scene.requests, key=lambda request: request.arrival)
        self.owners: list[Request | None] = [None] * scene.slots
        self.read = [0] * scene.slots
        """Tokens that each slot has been given."""
        self.late = [0] * scene.slots
        """Steps until each slot gets more blocks."""
        self.steps = 0

    def run(self) -> None:
        """Until every request has its end token."""
        while not all(request.finished for request in self.scene.requests):
            self.steps += 1
            assert self.steps < 600, "requests hang"
            self._preempt()
            self._insert()
            self._grant_blocks()
            used = [slot for slot, owner in enumerate(self.owners) if owner is not None]
            self.runner.in_use = max(used, default=0) + 1
            for slot, tokens in self.runner.step().items():
                request = self.owners[slot]
                assert request is not None, f"slot {slot} has no request and emits {tokens}"
                request.output += tokens
                if request.finished:
                    self.owners[slot] = None

    def _preempt(self) -> None:
        for slot, request in enumerate(self.owners):
            if request is not None and request.output and self.rng.random() < self.scene.preemption:
                self.runner.preempt(slot)
                self.owners[slot] = None
                request.recomputed.append(len(request.output))
                request.cached = 0
                self.waiting.insert(0, request)

    def _insert(self) -> None:
        for slot in range(self.scene.slots):
            if self.owners[slot] is None and self.waiting and self.waiting[0].arrival <= self.steps:
                request = self.owners[slot] = self.waiting.pop(0)
                self.read[slot] = request.cached
                self.late[slot] = 0
            owner = self.owners[slot]
            if owner is None or self.read[slot] >= self._length(slot, owner):
                continue
            count = min(self.scene.chunk, self._length(slot, owner) - self.read[slot])
            self.runner.insert(slot, owner, self.read[slot], count)
            self.read[slot] += count

    def _length(self, slot: int, request: Request) -> int:
        """Tokens read before the request continues."""
        return len(request.prompt) + (request.recomputed[-1] if request.recomputed else 0)

    def _grant_blocks(self) -> None:
        """Blocks for all that the next step may write; now and then some steps late."""
        tables, size = self.runner.share["block_tables"], self.scene.block_size
        reach = 3 * self.scene.drafts + 3
        for slot, owner in enumerate(self.owners):
            if owner is None:
                continue
            if self.late[slot] > 0:
                self.late[slot] -= 1
                continue
            if owner.output and self.rng.random() < self.scene.late_blocks:
                self.late[slot] = int(self.rng.integers(2, 6))
            count = (len(owner.prompt) + len(owner.output) + reach) // size + 1
            tables.array[slot, :count] = slot * tables.array.shape[1] + np.arange(count)
        tables.flush()
