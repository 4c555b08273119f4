"""One request in its grammar: answer tokens, drafts of the next step, and a mask per row.

Row i of a step decides the token after i drafts, so it needs the grammar's mask after these drafts. A refused draft has
probability 0 in its row, and later rows are unused. The state follows from the emitted tokens alone, so a request can
resume from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.structured.backend import GrammarFailedError, Matcher, TokenRefusedError

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


class MarkedThought:
    """A thought between texts, whatever tokens spell them, as parsers of answers find it.

    `start`: the text with which an output that has a thought begins; empty: every output begins with a thought. `end`:
    the text that ends it. `tokens`: the bytes of each token. `size`: V. `ends`: the model's end tokens.

    A status is the number of bytes of `end` at the end of the thought, or, before it, -1 minus that of `start`.
    :attr:`answering` follows the thought; :attr:`output`: there is no thought, all of the output is the answer.
    """

    def __init__(self, start: bytes, end: bytes, tokens: Sequence[bytes], size: int, ends: frozenset[int]) -> None:
        self._start, self._end, self._tokens, self._ends = start, end, tokens, ends
        self.answering, self.output = len(end), len(end) + 1
        self.first = -1 if start else 0
        inside = [token for token, data in enumerate(tokens) if end[-1:] in data[:-1]]
        beyond = [self._mask(size, inside, at, lambda status: status is None) for at in range(len(end))]
        self._whole = [~mask if mask.any() else None for mask in beyond]
        """Per status of a thought, the tokens of which no part belongs to the answer; None: all."""
        opening = [token for token, data in enumerate(tokens) if data and data[0] in start]
        self._opening = [self._mask(size, opening, -1 - at, self._opens) for at in range(len(start))]
        """Per part of `start`, the tokens that continue it."""

    def _mask(self, size: int, tokens: Sequence[int], status: int, holds: Callable[[int | None], bool]) -> Row:
        row = np.zeros(-(-size // 32), np.uint32)
        for token in tokens:
            if token not in self._ends and holds(self.after(status, 0, token)):
                row[token // 32] |= np.uint32(1 << token % 32)
        return row.view(np.int32)

    def _opens(self, status: int | None) -> bool:
        return status is not None and status != self.output

    def after(self, status: int, position: int, token: int) -> int | None:
        """The status after a token. None if the request ends, or if the token is part of thought and answer."""
        if token in self._ends:
            return None
        data = self._tokens[token] if token < len(self._tokens) else b""
        if status < 0:
            if status == -1:
                data = data.lstrip()
            rest = self._start[-1 - status :]
            if not data.startswith(rest):
                return status - len(data) if rest.startswith(data) else self.output
            status, data = 0, data[len(rest) :]
        text = self._end[:status] + data
        found = text.find(self._end)
        if found < 0:
            return next(size for size in range(len(self._end) - 1, -1, -1) if text.endswith(self._end[:size]))
        return self.answering if found + len(self._end) == len(text) else None

    def mask(self, status: int, direct: Row | None) -> Row | None:
        """The tokens allowed before the answer; None: all. `direct`: those of an output without a thought, if it may
        be one.
        """
        if status >= 0:
            return self._whole[status]
        opening = self._opening[-1 - status]
        return opening if direct is None else opening | direct


class GrammarState:
    """A request's matcher, and the number of tokens that it has consumed.

    `ends`: the model's end tokens. `end_allowed(position, text)`: whether one may follow `position` tokens, the last
    `span` of which are the end of `text`. `words`: of a mask. `direct`: another matcher, for an output without a
    thought, where the output decides. `backend`: the name of the grammar's backend.
    """

    def __init__(
        self,
        matcher: Matcher,
        thought: Thought | MarkedThought | None,
        words: int,
        ends: frozenset[int],
        end_allowed: Callable[[int, list[int]], bool],
        direct: Matcher | None = None,
        backend: str = "",
        span: int = 0,
    ) -> None:
        self.backend = backend
        self._matcher, self._thought, self._ends, self._end_allowed = matcher, thought, ends, end_allowed
        self._direct = direct
        self._scratch = np.empty(words, np.int32)
        self._span, self._text = span, list[int]()
        self._start: int | None = 0 if thought is None else None
        """The index of the answer's first token; None before it."""
        self._seen = 0
        self._status = thought.first if isinstance(thought, MarkedThought) else 0

    def commit(self, tokens: Sequence[int], limit_status: int = 0) -> bool:
        """Consume new tokens; False if nothing may follow, neither text nor an end token.

        `tokens`: all generated ones. `limit_status`: after them, if thinking has a limit. TokenRefusedError if the
        grammar refuses one despite its mask.
        """
        self._find_start(tokens, limit_status)
        self._text = list(tokens[max(0, len(tokens) - self._span) :])
        if self._start is None:
            self._seen = len(tokens)
            return True
        for at in range(max(self._seen, self._start), len(tokens)):
            if not self._matcher.advance(tokens[at]):
                raise TokenRefusedError(f"its grammar refuses token {tokens[at]} after {at} others")
        self._seen = len(tokens)
        return not self._stuck(len(tokens), self._text, self._matcher)

    def _find_start(self, tokens: Sequence[int], limit_status: int) -> None:
        thought = self._thought
        if thought is None or self._start is not None:
            return
        if isinstance(thought, MarkedThought):
            self._find_end(thought, tokens)
            return
        self._status = limit_status
        if thought.limited:
            if limit_status >= thought.answering:
                self._start = len(tokens) - (limit_status - thought.answering)
        elif thought.end in tokens[self._seen :]:
            self._start = tokens.index(thought.end, self._seen) + 1

    def _find_end(self, thought: MarkedThought, tokens: Sequence[int]) -> None:
        for at in range(self._seen, len(tokens)):
            status = thought.after(self._status, at, tokens[at])
            if status is None:
                if tokens[at] in self._ends:
                    return
                raise GrammarFailedError(f"token {tokens[at]} after {at} others is part of thought and answer")
            self._status = status
            if status == thought.output:
                if self._direct is None:
                    raise GrammarFailedError(f"its grammar refuses the {at} first tokens, which begin no thought")
                self._matcher, self._direct, self._start = self._direct, None, at
                return
            if self._direct is not None and (status >= 0 or not self._direct.advance(tokens[at])):
                self._direct = None
            if status == thought.answering:
                self._start = at + 1
                return

    def _stuck(self, position: int, text: list[int], matcher: Matcher) -> bool:
        """Whether the text is complete but an end token, its only continuation, is not allowed."""
        if matcher.finished or not matcher.complete or self._end_allowed(position, text):
            return False
        return not self._mask(position, text, matcher).any()

    def _mask(self, position: int, text: list[int], matcher: Matcher) -> Row:
        """The matcher's mask, without end tokens where none is allowed."""
        matcher.mask(self._scratch)
        if not self._end_allowed(position, text):
            words = self._scratch.view(np.uint32)
            for token in self._ends:
                words[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
        return self._scratch

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
                while len(taken) < room and steps.answers and (more := steps.matcher.forced(room - len(taken))):
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
        return not self._span and self._end_allowed(position, self._text)

    def fill(self, drafts: Sequence[int], row: Callable[[int], Row]) -> None:
        """Restrict the masks of a step's rows; `row(i)`, called only if restricted, is that of the row after i drafts.
        GrammarFailedError if the matcher fails.
        """
        with _Steps(self, self._seen) as steps:
            for at in range(len(drafts) + 1):
                steps.restrict(partial(row, at))
                if at == len(drafts) or not steps.take(drafts[at]):
                    return


class _Steps:
    """Advance by drafts, and undo them at the end."""

    def __init__(self, state: GrammarState, position: int) -> None:
        self._state, self._position, self._text = state, position, state._text.copy()
        self._status: int | None = state._status
        self._answers, self._taken = state._start is not None, 0
        self.matcher, self._direct, self._taken_direct = state._matcher, state._direct, 0

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *error: object) -> None:
        self.matcher.rollback(self._taken)
        if self._taken_direct and self._state._direct is not None:
            self._state._direct.rollback(self._taken_direct)

    @property
    def answers(self) -> bool:
        """Whether the next token belongs to the answer and is allowed."""
        return self._answers and not self.matcher.finished

    def restrict(self, row: Callable[[], Row]) -> None:
        """Restrict the mask of the next token; `row` is called only if it is restricted."""
        thought = self._state._thought
        if self.answers:
            mask = row()
            mask &= self._state._mask(self._position, self._text, self.matcher)
        elif not self._answers and isinstance(thought, MarkedThought):
            assert self._status is not None
            answer = None if self._direct is None else self._state._mask(self._position, self._text, self._direct)
            allowed = thought.mask(self._status, answer)
            if allowed is not None:
                mask = row()
                mask &= allowed

    def take(self, token: int) -> bool:
        """False if this draft ends the step."""
        state, thought = self._state, self._state._thought
        self._text.append(token)
        if not self._answers:
            assert thought is not None and self._status is not None
            self._status = thought.after(self._status, self._position, token)
            if self._status is None or not self._take_direct(token, self._status):
                return False
            self._answers = self._status >= thought.answering
        elif not self.matcher.advance(token):
            return False
        else:
            self._taken += 1
            if state._stuck(self._position + 1, self._text, self.matcher):
                return False
        self._position += 1
        return True

    def _take_direct(self, token: int, status: int) -> bool:
        """Advance the output without a thought, if it may still be one; False if it must be one, but refuses this."""
        thought = self._state._thought
        if not isinstance(thought, MarkedThought):
            return True
        output = status == thought.output
        if self._direct is not None and (status < 0 or output) and self._direct.advance(token):
            self._taken_direct += 1
            if output:
                self.matcher, self._taken = self._direct, 0
            return True
        self._direct = None
        return not output
