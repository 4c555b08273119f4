"""Log-probabilities of prompts, from the rows of chunks.

A step only gathers the last row of a chunk for sampling. For a request with prompt_logprobs, the other rows are still
in the step's hidden states after its plan. They are gathered, turned into logits and scored in blocks, with memory
independent of the prompt's length. Plans and other steps are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.model import DeviceModel, TargetModel
from specdec_hal.request import TokenLogprobs
from specdec_hal.runner import sequence as running
from specdec_hal.runner.scheduler import Schedule
from specdec_hal.runner.state import DecodeState
from specdec_hal.tensors.transfer import Fetched, Field, Outputs

LEAST_BLOCK, MOST_BLOCK = 64, 256
"""Rows per block, if decode steps have fewer or more. A model may need memory of this size; blocks beyond a few hundred
rows are not faster.
"""


@dataclass(frozen=True)
class PromptChunk:
    """A step's part of a prompt: `count` tokens from position `first` on.

    Their rows are those of the slot's tokens in the step from number `offset` on.
    """

    sequence: running.Sequence
    slot: int
    offset: int
    first: int
    count: int


def chunks_of(schedule: Schedule) -> list[PromptChunk]:
    """The unscored part of a newly scheduled step (a preempted request may be partly scored)."""
    chunks = []
    for slot in schedule.chunks:
        work = schedule.work[slot]
        sequence = work.sequence
        if sequence.request.params.prompt_logprobs is None:
            continue
        start = sequence.cached - work.chunk
        first = max(start + 1, len(sequence.prompt_logprobs))
        count = min(sequence.cached, sequence.prompt_len - 1) + 1 - first
        if count > 0:
            chunks.append(PromptChunk(sequence, slot, first - 1 - start, first, count))
    return chunks


@dataclass
class ScoredPrompts:
    """The scores of a step's chunks, on their way to the host."""

    chunks: list[PromptChunk]
    fetched: Fetched

    def read(self, send: Callable[[running.Sequence, list[TokenLogprobs]], None]) -> None:
        """Wait for the scores and add them to the requests, calling `send` first."""
        values, at = self.fetched(), 0
        for chunk in self.chunks:
            sequence, rows = chunk.sequence, slice(at, at + chunk.count)
            at += chunk.count
            if sequence.finish_reason is not None:
                continue
            assert len(sequence.prompt_logprobs) == chunk.first, "chunks are read in their order"
            ids, scores, ranks = (values[name][rows].tolist() for name in ("ids", "logprobs", "ranks"))
            entries = TokenLogprobs.rows(ids, scores, ranks, sequence.request.params.prompt_logprobs or 0)
            send(sequence, entries)
            sequence.prompt_logprobs += entries


class PromptScorer:
    """Scores the chunks of one runner's steps. `logits` [R_cap, V] may be overwritten after a step's plan."""

    def __init__(self, backend: Backend, model: TargetModel, state: DecodeState, logits: Any) -> None:
        self._backend, self._model, self._state = backend, model, state
        size, device = state.symbols, state.device
        self._block = block = min(max(size["R_cap"], min(LEAST_BLOCK, size["T_cap"])), MOST_BLOCK)
        blocks = -(-size["T_cap"] // block)
        self._capacity = rows = blocks * block
        self._inputs = device.inputs(
            {
                "slots": Field((rows,), "int32"),
                "offsets": Field((rows,), "int32"),
                "token_ids": Field((rows,), "int64"),
                "starts": Field((size["M"] + 1,), "int32"),
                "ends": Field((blocks, 2), "int32"),
            }
        )
        lent = block <= size["R_cap"]
        self._logits = logits[:block] if lent else device.zeros((block, model.config.vocab_size), "float32")
        self._rows = device.upload(np.arange(block, dtype=state.field("rows", A_cap=block).numpy_dtype))
        self._outputs: dict[int, Outputs] = {}

    def launch(
        self, chunks: list[PromptChunk], hidden: Any, starts: Mapping[int, int] | None, columns: int, stream: int
    ) -> ScoredPrompts:
        """Enqueue the scores of chunks of the step that was launched just now, `columns` = N for each token.

        `hidden` [T_cap, D] are its final hidden states. `starts`: at which of their rows each slot's tokens begin; None
        where they stand in slot order, so that the device knows.
        """
        state, device, model = self._state, self._state.device, self._model
        total = self._fill(chunks, starts)
        self._inputs.upload()
        given, blocks = self._inputs.tensors, -(-total // self._block)
        reach = blocks * self._block
        offsets = given["starts"] if starts is not None else state["cu_seqlens_q"]
        picked = device.gather_rows(hidden, offsets, given["slots"][:reach], given["offsets"][:reach])
        outputs = self._scores(columns)
        for at in range(blocks):
            rows = slice(at * self._block, (at + 1) * self._block)
            filled = min(total - rows.start, self._block)
            end = given["ends"][at]
            if starts is None:
                num_rows = None if self._backend.debug else end[1:]  # debug checks read every row
                cast(DeviceModel, model).compute_logits_device(picked[rows], self._logits, num_rows)
            else:
                logits = model.compute_logits(picked[rows.start : rows.start + filled])
                device.assign(self._logits[:filled], logits)
            scores = {name: tensor[rows] for name, tensor in outputs.tensors.items()}
            score = self._backend.bind(
                "token_logprobs",
                self._logits,
                rows=self._rows,
                token_ids=given["token_ids"][rows],
                cu_batch_token_offset=end,
                **scores,
            )
            score(stream)
        return ScoredPrompts(chunks, outputs.fetch())

    def _fill(self, chunks: Sequence[PromptChunk], starts: Mapping[int, int] | None) -> int:
        """Write the rows and tokens of chunks into the host's side of the inputs. Returns how many there are."""
        host, at = self._inputs.host, 0
        for chunk in chunks:
            rows = slice(at, at + chunk.count)
            host["slots"][rows] = chunk.slot
            host["offsets"][rows] = np.arange(chunk.offset, chunk.offset + chunk.count)
            prompt = chunk.sequence.request.prompt_token_ids
            host["token_ids"][rows] = prompt[chunk.first : chunk.first + chunk.count]
            at += chunk.count
        host["slots"][at:] = host["offsets"][at:] = host["token_ids"][at:] = 0
        for slot, start in (starts or {}).items():
            host["starts"][slot] = start
        host["ends"][:, 1] = np.clip(at - np.arange(len(host["ends"])) * self._block, 0, self._block)
        return at

    def _scores(self, columns: int) -> Outputs:
        """Where the scores of N columns come out, at full capacity."""
        if columns not in self._outputs:
            state, shape = self._state, {"A_cap": self._capacity, "N": columns}
            fields = {name: state.field(name, **shape) for name in ("ids", "logprobs", "ranks")}
            self._outputs[columns] = state.device.outputs(fields)
        return self._outputs[columns]
