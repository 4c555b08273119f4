"""What a step did, as the host reads it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from specdec_hal.runner.request import TokenLogprobs
from specdec_hal.runner.sequence import Sequence
from specdec_hal.staging import Arrays


class StepReport:
    """The values of :data:`specdec_hal.state.REPORT` behind one step, and its log-probabilities if it made any.

    Those are what `token_logprobs` and `gather_accepted` wrote, or, by output row, `sample_target`.
    """

    def __init__(self, values: Arrays, scores: Arrays | None) -> None:
        self.emitted, self.counts = values["accept_tokens"], values["accept_num"]
        """int64 [M, S] and int32 [M], as they came: valid until the next step is read."""
        self.scores = scores if scores is None or "ids" in scores else by_token(values, scores)
        """ids [A_cap, N], logprobs [A_cap, N], ranks [A_cap] and cu_batch_token_offset [B + 1], as long; or None."""
        self._accepted: list[list[int]] = values["accept_tokens"].tolist()
        self.largest = int(values["accept_tokens"].max(initial=-1))
        """Of all token ids in it."""
        self._counts: list[int] = values["accept_num"].tolist()
        self._stopped: list[bool] = values["stop_flags"].tolist()
        self._limit_status: list[int] = values["limit_status"].tolist()
        self._offsets: list[int] = values["cu_seqlens_q"].tolist()
        self._fed: list[int] = values["ids_remove_padding"][: self._offsets[-1], 0].tolist()
        self._scores: dict[str, Any] = {}
        if self.scores is not None:
            self._ends: list[int] = self.scores["cu_batch_token_offset"].tolist()
            self._scores = {name: self.scores[name][: self._ends[-1]].tolist() for name in ("ids", "logprobs", "ranks")}

    def fed(self, slot: int) -> int:
        """Tokens that the slot gave the model."""
        return self._offsets[slot + 1] - self._offsets[slot]

    def stopped(self, slot: int) -> bool:
        """Whether the device has stopped the slot."""
        return self._stopped[slot]

    def limit_status(self, slot: int) -> int:
        """Where the slot's request is, if its thinking has a limit (`limit_thinking`)."""
        return self._limit_status[slot]

    def tokens(self, slot: int) -> list[int]:
        """What the slot emitted."""
        return self._accepted[slot][: self._counts[slot]]

    def from_draft(self, slot: int, tokens: list[int]) -> list[bool]:
        """Which of a decoding slot's tokens are accepted drafts."""
        start, end = self._offsets[slot] + 1, self._offsets[slot + 1]
        if start >= end:
            return [False] * len(tokens)
        flags = [token == draft for token, draft in zip(tokens, self._fed[start:end], strict=False)]
        return flags + [False] * (len(tokens) - len(flags))

    def logprobs(self, slot: int, count: int, top: int) -> list[TokenLogprobs]:
        """Of the slot's first `count` tokens, with `top` alternatives each."""
        if not self._scores:
            return []
        start = self._ends[slot]
        ids, values, ranks = (entries[start : start + count] for entries in self._scores.values())
        return TokenLogprobs.rows(ids, values, ranks, top)


def by_token(values: Arrays, scores: Arrays) -> Arrays:
    """`sample_target`'s log-probabilities of output rows as `token_logprobs` gives those of the accepted tokens."""
    counts = values["accept_num"].astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    slot = np.repeat(np.arange(len(counts)), counts)
    column = np.arange(offsets[-1]) - offsets[slot]
    rows = values["cu_seqlens_q_output"][slot] + column
    return {
        "ids": values["accept_tokens"][slot, column][:, None],
        "logprobs": scores["logprobs"][rows][:, None],
        "ranks": scores["ranks"][rows],
        "cu_batch_token_offset": offsets,
    }


class StepSink(Protocol):
    """Takes what steps do to a place where text is made of it (:mod:`specdec_hal.output`)."""

    def gained(self, sequence: Sequence, slot: int, from_draft: list[bool], drafted: int | None) -> None:
        """A step emitted ``len(from_draft)`` tokens for a request that had ``sequence.token_ids`` before.

        `drafted`: how many drafts it had; None behind a chunk of its prompt.
        """

    def resumes(self, sequence: Sequence, *, failed: bool) -> None:
        """A request lost its slot, to an older one or because its step failed, and goes on later where it was."""

    def ended(self, sequence: Sequence) -> None:
        """A request has ended. With what :meth:`gained` told before, if anything."""

    def stepped(self, report: StepReport) -> None:
        """All of the step has been told; its tokens and log-probabilities stand in `report`."""
