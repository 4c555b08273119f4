"""One request in its grammar: answer tokens, drafts of the next step, and a mask per row.

Row i of a step decides the token after i drafts, so it needs the grammar's mask after these drafts. A refused draft has
probability 0 in its row, and later rows are unused. The state follows from the emitted tokens alone, so a request can
resume from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.structured.backend import GrammarFailedError, Matcher

Row = NDArray[Any]
"""The words of a mask, int32 [ceil(V / 32)]."""


@dataclass(frozen=True)
class Thought:
    """A request's thinking before its answer, with the limits of op `limit_thinking`.

    `end`: the token that ends it; `text`: tokens inserted at the limit; `most`: the limit, or -1; `ends`: the model's
    end tokens.
    """

    end: int
    text: tuple[int, ...]
    most: int
    limited: bool
    ends: frozenset[int]

    @property
    def answering(self) -> int:
        """The status of the first token after it."""
        return len(self.text) + 1

    def after(self, status: int, position: int, draft: int) -> int | None:
        """The status after accepting a draft with `position` generated tokens before it.

        None if it ends the step: the request ends, or another token replaces it.
        """
        if status <= 0:
            if draft == self.end:
                return self.answering
            if not self.limited:
                return None if draft in self.ends else 0
            if not (0 <= self.most <= position or (self.most >= 0 and draft in self.ends)):
                return 0
            status = 1
        return status + 1 if draft == self.text[status - 1] else None


class GrammarState:
    """A request's matcher, and the number of tokens that it has consumed.

    `ends`: the model's end tokens. `end_allowed(position)`: whether one may follow `position` tokens. `words`: of a
    mask.
    """

    def __init__(
        self,
        matcher: Matcher,
        thought: Thought | None,
        words: int,
        ends: frozenset[int],
        end_allowed: Callable[[int], bool],
    ) -> None:
        self._matcher, self._thought, self._ends, self._end_allowed = matcher, thought, ends, end_allowed
        self._scratch = np.empty(words, np.int32)
        self._start: int | None = 0 if thought is None else None
        """The index of the answer's first token; None before it."""
        self._seen = 0
        self._status = 0

    def commit(self, tokens: Sequence[int], limit_status: int = 0) -> bool:
        """Consume new tokens; False if nothing may follow, neither text nor an end token.

        `tokens`: all generated ones. `limit_status`: after them, if thinking has a limit. GrammarFailedError if the
        grammar refuses one despite its mask.
        """
        self._find_start(tokens, limit_status)
        if self._start is None:
            self._seen = len(tokens)
            return True
        for at in range(max(self._seen, self._start), len(tokens)):
            if not self._matcher.advance(tokens[at]):
                raise GrammarFailedError(f"its grammar refuses token {tokens[at]} after {at} others")
        self._seen = len(tokens)
        return not self._stuck(len(tokens))

    def _find_start(self, tokens: Sequence[int], limit_status: int) -> None:
        thought, self._status = self._thought, limit_status
        if thought is None or self._start is not None:
            return
        if thought.limited:
            if limit_status >= thought.answering:
                self._start = len(tokens) - (limit_status - thought.answering)
        elif thought.end in tokens[self._seen :]:
            self._start = tokens.index(thought.end, self._seen) + 1

    def _stuck(self, position: int) -> bool:
        """Whether the text is complete but an end token, its only continuation, is not allowed."""
        matcher = self._matcher
        if matcher.finished or not matcher.complete or self._end_allowed(position):
            return False
        matcher.mask(self._scratch)
        words = self._scratch.view(np.uint32)
        for token in self._ends:
            words[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
        return not words.any()

    def plan(self, drafts: Sequence[int], room: int, *, forced: bool) -> list[int]:
        """The drafts to verify, at most `room`, up to the first refused one.

        `forced`: replace and extend drafts by tokens that the grammar forces.
        """
        if not room:
            return []
        wanted, position = list(drafts[:room]), self._seen
        if forced and self._start is not None:
            certain = self._matcher.forced(room)
            if wanted[: len(certain)] != certain:
                wanted = certain
        taken = list[int]()
        with _Steps(self, position) as steps:
            for token in wanted:
                if not steps.take(token):
                    break
                taken.append(token)
            if forced:
                while len(taken) < room and steps.answers and (more := self._matcher.forced(room - len(taken))):
                    before = len(taken)
                    for token in more:
                        if not steps.take(token):
                            break
                        taken.append(token)
                    if len(taken) == before:
                        break
        return taken

    def end_always_allowed(self, position: int) -> bool:
        """Whether an end token may be generated from `position` on, so that drafts cannot block the text."""
        return self._end_allowed(position)

    def fill(self, drafts: Sequence[int], row: Callable[[int], Row]) -> None:
        """Restrict the masks of a step's rows; `row(i)`, called only if restricted, is that of the row after i drafts.
        GrammarFailedError if the matcher fails.
        """
        with _Steps(self, self._seen) as steps:
            for at in range(len(drafts) + 1):
                if steps.answers:
                    self._matcher.mask(self._scratch)
                    mask = row(at)
                    mask &= self._scratch
                if at == len(drafts) or not steps.take(drafts[at]):
                    return


class _Steps:
    """Advance by drafts, and undo them at the end."""

    def __init__(self, state: GrammarState, position: int) -> None:
        self._state, self._position = state, position
        self._status: int | None = state._status
        self._answers, self._taken = state._start is not None, 0

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *error: object) -> None:
        self._state._matcher.rollback(self._taken)

    @property
    def answers(self) -> bool:
        """Whether the next token belongs to the answer and is allowed."""
        return self._answers and not self._state._matcher.finished

    def take(self, token: int) -> bool:
        """False if this draft ends the step."""
        state, thought = self._state, self._state._thought
        if not self._answers:
            assert thought is not None and self._status is not None
            self._status = thought.after(self._status, self._position, token)
            if self._status is None:
                return False
            self._answers = self._status >= thought.answering
        elif not state._matcher.advance(token):
            return False
        else:
            self._taken += 1
            if state._stuck(self._position + 1):
                return False
        self._position += 1
        return True
