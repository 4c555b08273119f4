"""Check a ForwardBatch and split it into blocks of few rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_hal.errors import ArgumentError
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities, Segment


@dataclass(frozen=True)
class Limits:
    """Limits of a batch. `framework` is for messages only."""

    framework: str
    vocab_size: int
    max_num_seqs: int
    max_model_len: int

    def _error(self, argument: str, expected: str, got: object, hint: str) -> ArgumentError:
        return refused(self.framework, "forward", argument, expected, got, hint)

    def check(self, batch: ForwardBatch) -> npt.NDArray[np.int64]:
        """The token ids as a contiguous int64 array; ArgumentError for an invalid batch."""
        ids = np.asarray(batch.token_ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise self._error("token_ids", "int64 [T]", f"{ids.dtype} {list(ids.shape)}", "pass packed token ids")
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.vocab_size):
            bad = int(np.flatnonzero((ids < 0) | (ids >= self.vocab_size))[0])
            expected = f"token ids in 0..{self.vocab_size - 1}"
            raise self._error("token_ids", expected, f"{ids[bad]} at {bad}", "pass no padding; check the tokenizer")
        end = 0
        seen = set()
        for i, segment in enumerate(batch.segments):
            name = f"segments[{i}]"
            if segment.start != end or segment.length < 1:
                got = f"start {segment.start}, length {segment.length}"
                hint = "let segments tile the tokens in order; leave idle slots out"
                raise self._error(name, f"start {end} and length >= 1", got, hint)
            if not 0 <= segment.slot < self.max_num_seqs:
                hint = "allocate() more slots"
                raise self._error(f"{name}.slot", f"0..{self.max_num_seqs - 1}", segment.slot, hint)
            if segment.slot in seen:
                hint = "give each slot one segment a step"
                raise self._error(f"{name}.slot", "a slot that is not in this batch yet", segment.slot, hint)
            if segment.position < 0 or segment.position + segment.length > self.max_model_len:
                got = f"positions {segment.position}..{segment.position + segment.length - 1}"
                raise self._error(name, f"positions in 0..{self.max_model_len - 1}", got, "allocate() a longer context")
            seen.add(segment.slot)
            end += segment.length
        if end != len(ids):
            hint = "let segments tile the tokens"
            raise self._error("segments", f"{len(ids)} tokens, as in token_ids", end, hint)
        return np.ascontiguousarray(ids, np.int64)


def refused(framework: str, op: str, argument: str, expected: str, got: object, hint: str) -> ArgumentError:
    """The error for an argument of a model."""
    return ArgumentError(op=op, backend=framework, argument=argument, expected=expected, got=str(got), hint=hint)


def check_threads(framework: str, threads: int | None) -> None:
    """ArgumentError for an invalid number of threads."""
    if threads is not None and threads < 1:
        raise refused(framework, "load_model", "threads", "an integer >= 1", threads, "leave it out, or ask for more")


def no_cache(framework: str, op: str, allocate: str = "allocate") -> ArgumentError:
    """The error of a call before `allocate`."""
    return refused(framework, op, "batch", "a KV cache to write to", "none", f"call {allocate}() first")


def check_positive(framework: str, **sizes: int) -> None:
    """ArgumentError for a size below 1 of an allocation."""
    for name, value in sizes.items():
        if value < 1:
            raise refused(framework, "allocate", name, "an integer >= 1", value, "ask for at least one")


def check_rows(framework: str, op: str, hidden: Any, width: int, rows: int | None = None) -> None:
    """ArgumentError unless `hidden` is [rows, width]; any number of rows without `rows`."""
    shape = list(hidden.shape)
    if len(shape) != 2 or shape[1] != width or (rows is not None and shape[0] != rows):
        expected, hint = f"[R, {width}]", "pass rows that forward() returned"
        if rows is not None:
            expected, hint = str([rows, width]), "pass a row for each token"
        raise refused(framework, op, "hidden", expected, shape, hint)


def check_hidden_layers(batch: ForwardBatch, capabilities: ModelCapabilities, framework: str) -> frozenset[int]:
    """The layers whose hidden states `forward` returns; ArgumentError for an undeclared one."""
    for layer in batch.hidden_layers:
        if layer not in capabilities.hidden_layers:
            expected = f"layers among {', '.join(map(str, sorted(capabilities.hidden_layers)))}"
            hint = "ask for hidden states that the model's capabilities declare"
            raise refused(framework, "forward", "hidden_layers", expected, layer, hint)
    return frozenset((FINAL_NORM, *batch.hidden_layers))


def blocks(segments: Sequence[Segment], limit: int, whole: int = 0) -> Iterator[list[Segment]]:
    """Consecutive groups of at most `limit` tokens; a segment that does not fit is continued in the next group, or is
    put there if it has at most `whole` tokens.

    Starts count from the beginning of the whole batch. Running the groups in order equals running the batch, since
    tokens do not depend on later ones.
    """
    group: list[Segment] = []
    room = limit
    for segment in segments:
        start, length, position = segment.start, segment.length, segment.position
        if room < length <= whole and group:
            yield group
            group, room = [], limit
        while length:
            taken = min(length, room)
            group.append(Segment(segment.slot, start, taken, position))
            start, length, position, room = start + taken, length - taken, position + taken, room - taken
            if not room:
                yield group
                group, room = [], limit
    if group:
        yield group
