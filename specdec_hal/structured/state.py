"""One request in its grammar: the tokens that count, the drafts of its next step, and a mask for each of their rows.

Row i of a step decides the token after i drafts, so its mask is that of the grammar after these i drafts. A draft that
the grammar refuses has no probability in its row, and the rows after it are looked at by nobody. What an answer's
tokens are can be read off the tokens that were emitted, so nothing but those is needed to go on with a request.
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
    """How a request thinks before its answer, as op `limit_thinking` ends it where it has a limit.

    `end`: the token that ends it; `text`: tokens that are put in where it is cut; `most`: tokens of thought, -1 without
    a limit; `ends`: the model's end tokens.
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
        """The status after a draft that is accepted where `position` tokens were generated before it.

        None if nothing of the step comes after it: the request ends there, or another token takes its place.
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
    """A request's matcher, and how many of its tokens that has taken.

    `ends`: the model's end tokens. `end_allowed(position)`: whether one may be generated where `position` tokens stand
    before it. `words`: of a mask.
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
        """Where the answer begins among the generated tokens; None before it has begun."""
        self._seen = 0
        self._status = 0

    def commit(self, tokens: Sequence[int], limit_status: int = 0) -> bool:
        """Take what was generated since the last call; False if nothing may follow: neither text nor an end token.

        `tokens`: all generated ones. `limit_status`: after them, where thinking has a limit. GrammarFailedError if the
        grammar refuses one, which its mask has forbidden.
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
        """Whether the text is complete, nothing can follow it but an end token, and that may not."""
        matcher = self._matcher
        if matcher.finished or not matcher.complete or self._end_allowed(position):
            return False
        matcher.mask(self._scratch)
        words = self._scratch.view(np.uint32)
        for token in self._ends:
            words[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
        return not words.any()

    def plan(self, drafts: Sequence[int], room: int, *, forced: bool) -> list[int]:
        """The drafts to verify, at most `room`: those before the first that is refused.

        `forced`: with the tokens that the grammar leaves no choice but, in the place of drafts that differ from them,
        and after the last draft.
        """
        if not room:
            return []
        wanted, position = list(drafts[:room]), self._seen
        if forced and self._start is not None:
            certain = self._matcher.forced()[:room]
            if wanted[: len(certain)] != certain:
                wanted = certain
        taken = list[int]()
        with _Steps(self, position) as steps:
            for token in wanted:
                if not steps.take(token):
                    break
                taken.append(token)
            if forced:
                while len(taken) < room and steps.answers and (more := self._matcher.forced()):
                    before = len(taken)
                    for token in more[: room - len(taken)]:
                        if not steps.take(token):
                            break
                        taken.append(token)
                    if len(taken) == before:
                        break
        return taken

    def end_always_allowed(self, position: int) -> bool:
        """Whether an end token may be generated from `position` on, so that no draft can leave the text stuck."""
        return self._end_allowed(position)

    def fill(self, drafts: Sequence[int], row: Callable[[int], Row]) -> None:
        """Leave what is allowed in the masks of a step's rows; `row(i)` is that of the row after i drafts, and asked
        for where the grammar restricts it. GrammarFailedError if the matcher cannot go on."""
        with _Steps(self, self._seen) as steps:
            for at in range(len(drafts) + 1):
                if steps.answers:
                    self._matcher.mask(self._scratch)
                    mask = row(at)
                    mask &= self._scratch
                if at == len(drafts) or not steps.take(drafts[at]):
                    return


class _Steps:
    """Drafts taken one after the other, and forgotten at the end."""

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
        """Whether the next token is one of the answer, and there may be one."""
        return self._answers and not self._state._matcher.finished

    def take(self, token: int) -> bool:
        """False if nothing of the step is looked at after this draft."""
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
