"""A step's results on the host."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.request import RequestOutput, StreamDelta, TokenLogprobs
from specdec_hal.runner.sequence import Sequence
from specdec_hal.runner.slot_table import Ints, SlotTable
from specdec_hal.tensors.transfer import Arrays

Array = NDArray[Any]

_entry = partial(tuple.__new__, TokenLogprobs)
"""A fast constructor of TokenLogprobs."""


class StepReport:
    """The values of :data:`specdec_hal.runner.state.REPORT` after one step, and its log-probabilities if it made any.

    Those come from `token_logprobs` and `gather_accepted` or, by output row, from `sample_target`. All is valid until
    the next step is read, and tokens, drafts and counts longer. `slots` (B): those of the step; `most`: the most tokens
    that one emits.
    """

    def __init__(self, values: Arrays, slots: int, most: int | None = None) -> None:
        self._values, self._offsets = values, values["cu_seqlens_q"][: slots + 1]
        self.emitted, self.counts = values["accept_tokens"][:slots, :most].copy(), values["accept_num"][:slots].copy()
        """int64 [B, S] and int32 [B]."""
        self.fed = self._offsets[1:] - self._offsets[:-1]
        """[B]: tokens of each slot fed to the model."""
        self.stopped = values["stop_flags"][:slots]
        """[B]: whether the device has ended the slot's request."""
        self.drafted = self.fed - 1
        """[B]: drafts of a slot that decodes."""
        self._first_row: list[int] = []  # start of each slot's log-probabilities
        self._columns: list[list[Any]] = []
        self._entries: list[TokenLogprobs] | None = None  # for all rows at once, without alternatives
        if "ids" in values:
            self._keep(values["cu_batch_token_offset"], values["ids"], values["logprobs"], values["ranks"])
        elif "row_logprobs" in values:
            self._keep(values["cu_seqlens_q_output"], None, values["row_logprobs"][:, None], values["row_ranks"])

    def _keep(self, offsets: Array, ids: Array | None, logprobs: Array, ranks: Array) -> None:
        self._first_row = offsets.tolist()
        end = max(self._first_row)
        if logprobs.shape[1] == 1:
            self._entries = list(map(_entry, zip(logprobs[:end, 0].tolist(), ranks[:end].tolist(), repeat(()))))
        elif ids is not None:
            self._columns = [column[:end].tolist() for column in (ids, logprobs, ranks)]

    def limit_status(self, slot: int) -> int:
        """The slot's status under a limit of thinking (`limit_thinking`)."""
        return int(self._values["limit_status"][slot])

    def drafts(self, slot: int) -> tuple[int, ...]:
        """The verified drafts of a decoding slot."""
        start, end = self._offsets[slot : slot + 2].tolist()
        return tuple(self._inputs[start + 1 : end])

    def tokens(self, slot: int) -> list[int]:
        """The slot's emitted tokens."""
        return self._rows[slot][: self._lengths[slot]]

    def drafted_of(self, slot: int) -> int:
        """The number of drafts of a decoding slot."""
        return self._drafted[slot]

    def flags(self, slot: int) -> list[bool]:
        """Which of a decoding slot's tokens are accepted drafts."""
        return self._flag_rows[slot][: self._lengths[slot]]

    def logprobs(self, slot: int, count: int, top: int) -> list[TokenLogprobs]:
        """Of the slot's first `count` tokens, with `top` alternatives each."""
        start = self._first_row[slot]
        end = start + count
        if self._entries is not None:
            return self._entries[start:end]
        ids, values, ranks = self._columns
        return TokenLogprobs.rows(ids[start:end], values[start:end], ranks[start:end], top)

    def cut(self, kept: dict[int, int]) -> None:
        """Forget what these slots emitted after so many tokens."""
        if all(self._lengths[slot] == count for slot, count in kept.items()):
            return
        _ = self.accepted  # before they are forgotten
        self.counts[list(kept)] = list(kept.values())
        for name in ("counted", "matched", "_lengths"):
            vars(self).pop(name, None)
        self.matches &= self.counted

    def append_to(self, table: SlotTable, slots: Ints | slice, decoding: Ints | slice) -> None:
        """Have a table take over the tokens of these slots, and count the steps of those that decode.

        A row's places after its tokens hold anything.
        """
        at = table.places[slots, : self.emitted.shape[1]] + table.length[slots, None]
        table.tokens.reshape(-1)[at] = self.emitted[slots]
        if table.places.shape[1] > 1:
            table.from_draft.reshape(-1)[at] = self.matches[slots]
        table.length[slots] += self.counts[slots]  # after both: another thread may read as far
        table.counts[0, decoding] += 1
        if at.shape[1] > 1:
            table.counts[1, decoding] += self.drafted[decoding]
            table.counts[2, decoding] += self.matched[decoding]
            table.counts[3, decoding] += self.drafted[decoding] > 0

    def goes_on(self, ordinary: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[B]: whether a slot emitted tokens, and only `ordinary` ones: by token, with an entry for all other ids."""
        ids = np.minimum(self.emitted.view(np.uint64), len(ordinary) - 1)  # negative ids become large
        return (ordinary[ids] | ~self.counted).all(1) & (self.counts > 0)

    # ---- made when first asked for, once a step

    @cached_property
    def largest(self) -> int:
        """Of all token ids in `emitted`."""
        return int(self.emitted.max(initial=-1))

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """[B, S]: which of `emitted` were emitted."""
        counted: NDArray[np.bool_] = np.arange(self.emitted.shape[1]) < self.counts[:, None]
        return counted

    @cached_property
    def _rows(self) -> list[list[int]]:
        rows: list[list[int]] = self.emitted.tolist()
        return rows

    @cached_property
    def _lengths(self) -> list[int]:
        lengths: list[int] = self.counts.tolist()
        return lengths

    @cached_property
    def _drafted(self) -> list[int]:
        drafted: list[int] = self.drafted.tolist()
        return drafted

    @cached_property
    def scores(self) -> Arrays | None:
        """ids [A_cap, N], logprobs [A_cap, N], ranks [A_cap] and cu_batch_token_offset [B + 1], as long; or None."""
        if "row_logprobs" in self._values:
            return _by_token(self._values)
        return self._values if "ids" in self._values else None

    @cached_property
    def accepted(self) -> NDArray[np.int64]:
        """[B]: how many drafts the model accepted in each slot, also after the end of its request."""
        return self.matched

    @cached_property
    def matched(self) -> NDArray[np.int64]:
        """[B]: how many of each slot's tokens are accepted drafts."""
        matched: NDArray[np.int64] = self.matches.sum(1)
        return matched

    @cached_property
    def _flag_rows(self) -> list[list[bool]]:
        flags: list[list[bool]] = self.matches.tolist()
        return flags

    @cached_property
    def matches(self) -> NDArray[np.bool_]:
        """[B, S]: which emitted tokens equal the drafts at their places, if there were any."""
        if self.emitted.shape[1] == 1:
            return np.zeros(self.emitted.shape, np.bool_)
        offsets, ids = self._offsets, self._values["ids_remove_padding"][:, 0]
        at = offsets[:-1, None] + np.arange(1, self.emitted.shape[1] + 1)
        drafts = ids[np.minimum(at, len(ids) - 1)]
        matches: NDArray[np.bool_] = (self.emitted == drafts) & (at < offsets[1:, None]) & self.counted
        return matches

    @cached_property
    def _inputs(self) -> list[int]:
        """The tokens that the model was given."""
        given: list[int] = self._values["ids_remove_padding"][: self._offsets.max(), 0].tolist()
        return given


def _by_token(values: Arrays) -> Arrays:
    """`sample_target`'s log-probabilities of output rows in the form of `token_logprobs`."""
    counts = values["accept_num"].astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    slot = np.repeat(np.arange(len(counts)), counts)
    column = np.arange(offsets[-1]) - offsets[slot]
    rows = values["cu_seqlens_q_output"][slot] + column
    return {
        "ids": values["accept_tokens"][slot, column][:, None],
        "logprobs": values["row_logprobs"][rows][:, None],
        "ranks": values["row_ranks"][rows],
        "cu_batch_token_offset": offsets,
    }


class StepSink:
    """Receives the results of steps. Those of this class do nothing with them."""

    def begun(self, sequence: Sequence) -> None:
        """A request was queued."""

    def gained(self, sequence: Sequence, slot: int, from_draft: list[bool], drafted: int | None) -> None:
        """A step added ``len(from_draft)`` tokens to a request that is looked at alone; :meth:`took` follows.

        `drafted`: how many drafts it had; None after a chunk of its prompt.
        """

    def took(self, sequence: Sequence) -> int | None:
        """A request has new tokens from :meth:`gained`, or has ended; returns how many it has if its text ends it."""
        return None

    def scored(self, sequence: Sequence, entries: list[TokenLogprobs]) -> None:
        """The next of the request's prompt tokens got these log-probabilities, after `sequence.prompt_logprobs`."""

    def resumes(self, sequence: Sequence, *, failed: bool) -> None:
        """A request lost its slot, to an older one or by a failed step, and resumes later."""

    def stepped(
        self, report: StepReport, slots: Ints, table: SlotTable, running: Mapping[int, Sequence]
    ) -> dict[int, int]:
        """End of the step. Those `running` in `slots` got tokens and nothing else; `report` has these and `table`
        contexts with them. Returns the slots whose text ends, with how many of these tokens.
        """
        return {}

    def deliver(self) -> None:
        """Call the callbacks of what is queued."""

    def take(self) -> list[StreamDelta]:
        """Everything delivered since the last call."""
        return []

    def finished(self, sequence: Sequence) -> RequestOutput:
        """An ended request, which is forgotten."""
        return sequence.output()
