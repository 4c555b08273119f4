"""What a step did, as the host reads it."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from specdec_hal.runner.request import TokenLogprobs
from specdec_hal.staging import Arrays


class StepReport:
    """The values of :data:`specdec_hal.state.REPORT` behind one step, and its log-probabilities if it made any."""

    def __init__(self, values: Arrays, scores: Arrays | None) -> None:
        self._accepted: NDArray[Any] = values["accept_tokens"]
        self._counts: list[int] = values["accept_num"].tolist()
        self._stopped: list[bool] = values["stop_flags"].tolist()
        self._offsets: list[int] = values["cu_seqlens_q"].tolist()
        self._fed: NDArray[Any] = values["ids_remove_padding"][:, 0]
        self._scores = scores
        self._ends: list[int] = [] if scores is None else scores["cu_batch_token_offset"].tolist()

    def fed(self, slot: int) -> int:
        """Tokens that the slot gave the model."""
        return self._offsets[slot + 1] - self._offsets[slot]

    def stopped(self, slot: int) -> bool:
        """Whether the device has stopped the slot."""
        return self._stopped[slot]

    def tokens(self, slot: int) -> list[int]:
        """What the slot emitted."""
        tokens: list[int] = self._accepted[slot, : self._counts[slot]].tolist()
        return tokens

    def from_draft(self, slot: int, tokens: list[int]) -> list[bool]:
        """Which of a decoding slot's tokens are accepted drafts."""
        start, end = self._offsets[slot] + 1, self._offsets[slot + 1]
        drafts = self._fed[start:end].tolist()
        flags = [token == draft for token, draft in zip(tokens, drafts, strict=False)]
        return flags + [False] * (len(tokens) - len(flags))

    def logprobs(self, slot: int, count: int, top: int) -> list[TokenLogprobs]:
        """Of the slot's first `count` tokens, with `top` alternatives each."""
        if self._scores is None:
            return []
        start = self._ends[slot]
        rows = slice(start, start + count)
        ids, values, ranks = (self._scores[name][rows].tolist() for name in ("ids", "logprobs", "ranks"))
        return [
            TokenLogprobs(value[0], rank, tuple(zip(others[1 : top + 1], value[1 : top + 1], strict=True)))
            for others, value, rank in zip(ids, values, ranks, strict=True)
        ]
