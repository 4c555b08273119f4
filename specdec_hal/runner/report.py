"""A step's results on the host."""

from __future__ import annotations

from functools import cached_property, partial
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_hal.runner.request import TokenLogprobs
from specdec_hal.runner.sequence import Sequence
from specdec_hal.tensors.transfer import Arrays

Array = NDArray[Any]

_entry = partial(tuple.__new__, TokenLogprobs)
"""A fast constructor of TokenLogprobs."""


class StepReport:
    """The values of :data:`specdec_hal.runner.state.REPORT` after one step, and its log-probabilities if it made any.

    Those come from `token_logprobs` and `gather_accepted` or, by output row, from `sample_target`. All is valid until
    the next step is read. Values beyond the step's slots are stale.
    """

    def __init__(self, values: Arrays) -> None:
        self._values = values
        self.emitted, self.counts = values["accept_tokens"], values["accept_num"]
        """int64 [M, S] and int32 [M], as they came."""
        self.accepted: list[list[int]] = values["accept_tokens"].tolist()
        """The same as `emitted`, and `counts` as `accepted_counts`."""
        self.accepted_counts: list[int] = values["accept_num"].tolist()
        self.fed: list[int] = np.diff(values["cu_seqlens_q"]).tolist()
        """[M]: tokens of each slot fed to the model."""
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
        start, end = self._values["cu_seqlens_q"][slot : slot + 2].tolist()
        return tuple(self._inputs[start + 1 : end])

    def tokens(self, slot: int) -> list[int]:
        """The slot's emitted tokens."""
        return self.accepted[slot][: self.accepted_counts[slot]]

    def from_draft(self, slot: int, tokens: list[int]) -> list[bool]:
        """Which of a decoding slot's tokens are accepted drafts."""
        return self.as_drafted[slot][: len(tokens)]

    def logprobs(self, slot: int, count: int, top: int) -> list[TokenLogprobs]:
        """Of the slot's first `count` tokens, with `top` alternatives each."""
        start = self._first_row[slot]
        end = start + count
        if self._entries is not None:
            return self._entries[start:end]
        ids, values, ranks = self._columns
        return TokenLogprobs.rows(ids[start:end], values[start:end], ranks[start:end], top)

    def goes_on(self, slots: int, end_tokens: Array, vocab_size: int) -> bool:
        """Whether all emitted tokens of the first `slots` slots are in the vocabulary and not in `end_tokens` [E]."""
        emitted = self.emitted[:slots]
        ends = emitted.view(np.uint64) >= vocab_size  # negative ids become large
        for token in end_tokens:
            ends |= emitted == token
        return not (ends & self._counted[:slots]).any()

    # ---- made when first asked for, once a step

    @cached_property
    def largest(self) -> int:
        """Of all token ids in `emitted`."""
        return int(self.emitted.max(initial=-1))

    @cached_property
    def matched(self) -> list[int]:
        """[M]: how many tokens of each slot are accepted drafts."""
        counts: list[int] = (self._matches & self._counted).sum(1).tolist()
        return counts

    @cached_property
    def _counted(self) -> NDArray[np.bool_]:
        """[M, S]: which tokens were emitted."""
        counted: NDArray[np.bool_] = np.arange(self.emitted.shape[1]) < self.counts[:, None]
        return counted

    @cached_property
    def scores(self) -> Arrays | None:
        """ids [A_cap, N], logprobs [A_cap, N], ranks [A_cap] and cu_batch_token_offset [B + 1], as long; or None."""
        if "row_logprobs" in self._values:
            return _by_token(self._values)
        return self._values if "ids" in self._values else None

    @cached_property
    def as_drafted(self) -> list[list[bool]]:
        """[M, S]: which tokens are accepted drafts."""
        flags: list[list[bool]] = self._matches.tolist()
        return flags

    @cached_property
    def _matches(self) -> NDArray[np.bool_]:
        """[M, S]: which tokens equal the drafts at their places, if there were any."""
        if self.emitted.shape[1] == 1:
            return np.zeros(self.emitted.shape, np.bool_)
        offsets, ids = self._values["cu_seqlens_q"], self._values["ids_remove_padding"][:, 0]
        at = offsets[:-1, None] + np.arange(1, self.emitted.shape[1] + 1)
        drafts = ids[np.minimum(at, len(ids) - 1)]
        matches: NDArray[np.bool_] = (self.emitted == drafts) & (at < offsets[1:, None])
        return matches

    @cached_property
    def _inputs(self) -> list[int]:
        """The tokens that the model was given."""
        given: list[int] = self._values["ids_remove_padding"][: self._values["cu_seqlens_q"].max(), 0].tolist()
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


class StepSink(Protocol):
    """Receives steps' results, for detokenization elsewhere (:mod:`specdec_hal.serve.stream`)."""

    def gained(self, sequence: Sequence, slot: int, from_draft: list[bool], drafted: int | None) -> None:
        """A step emitted ``len(from_draft)`` tokens after ``sequence.token_ids``.

        `drafted`: how many drafts it had; None after a chunk of its prompt.
        """

    def scored(self, sequence: Sequence, entries: list[TokenLogprobs]) -> None:
        """The next of the request's prompt tokens got these log-probabilities, after `sequence.prompt_logprobs`."""

    def resumes(self, sequence: Sequence, *, failed: bool) -> None:
        """A request lost its slot, to an older one or by a failed step, and resumes later."""

    def ended(self, sequence: Sequence) -> None:
        """A request has ended, after its tokens from :meth:`gained`, if any."""

    def stepped(self, report: StepReport) -> None:
        """End of the step; its tokens and log-probabilities are in `report`."""
