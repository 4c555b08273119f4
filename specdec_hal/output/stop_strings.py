"""Stop strings: found wherever tokens end, and cut off the text before any part of them is shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from specdec_hal.output.detokenizing import Detokenizer, Span
from specdec_hal.output.parsers import ContentFinder


class _StopString:
    """A stop string and its matched length at the end of the text (Knuth, Morris, Pratt: linear in the text)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = [0, 0]
        """Of the first n characters: how many of them they both begin and end with, as far as it was needed."""

    def feed(self, piece: str, at: int = 0) -> int:
        """The end of the stop string in the next piece of text, from `at` on; 0 if incomplete."""
        text, matched = self.text, self.matched
        while at < len(piece):
            if not matched and (at := piece.find(text[0], at)) < 0:
                break
            char = piece[at]
            while matched and text[matched] != char:
                matched = self._border(matched)
            matched += text[matched] == char
            at += 1
            if matched == len(text):
                self.matched = self._border(matched)
                return at
        self.matched = matched
        return 0

    def _border(self, length: int) -> int:
        text, borders = self.text, self._borders
        while len(borders) <= length:
            border, char = borders[-1], text[len(borders) - 1]
            while border and text[border] != char:
                border = borders[border]
            borders.append(border + (text[border] == char))
        return borders[length]


class TextStream:
    """Text of a request without stop strings; possible starts of them are held back.

    `include_stop`: the text ends with the stop string rather than before it. `content`: finds the content of the text,
    if only a stop string inside it counts.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Collection[str],
        include_stop: bool = False,
        content: ContentFinder | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self.stop = tuple(map(_StopString, stop))
        self._include_stop, self._content = include_stop, content
        self._content_end = 0
        """Relative to the end of the text."""
        self._stopped = False
        self._pieces: list[str] = []
        self._held: deque[Span] = deque()
        self._held_chars = 0

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)

    def push(self, token_id: int, from_draft: bool, may_stop: bool = True) -> bool:
        """Add a token; True if a stop string is complete, which ends the text unless `may_stop` is False."""
        self._add(self._detokenizer.push(token_id), from_draft, may_stop)
        return self._stopped

    def passes(self, pieces: Sequence[str]) -> bool:
        """Take over tokens' texts that can be shown at once; False, with nothing changed, if a stop string may end in
        them or begin.
        """
        text = "".join(pieces)
        if self._content is not None or self._held:
            return False
        for each in self.stop:
            if each.matched or each.text[0] in text:
                before = [stop.matched for stop in self.stop]
                if any([stop.feed(text) or stop.matched for stop in self.stop]):
                    for stop, matched in zip(self.stop, before, strict=True):
                        stop.matched = matched
                    return False
                break
        self._pieces.append(text)
        return True

    def extend(self, token_ids: Sequence[int], from_draft: Sequence[bool], held_for: int) -> int:
        """Add tokens; the number of them with which a stop string is complete, or 0.

        The first `held_for` may not stop.
        """
        for at, (token, flag) in enumerate(zip(token_ids, from_draft, strict=False), 1):
            if self.push(token, flag, at > held_for):
                return at
        return 0

    def _add(self, piece: str, from_draft: bool, may_stop: bool = True) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._held.append((piece, from_draft))
        self._held_chars += len(piece)
        found = self._found(piece, may_stop) if self._content is None else self._found_in_content(piece, may_stop)
        if found is not None:
            self._stopped = True
            start, end = found
            self._drop(len(piece) - (end if self._include_stop else start))

    def _found(self, text: str, may_stop: bool) -> tuple[int, int] | None:
        """The first stop string that ends in a text: its start and end there."""
        found = []
        for stop in self.stop:
            end = stop.feed(text)
            while end and not may_stop:
                end = stop.feed(text, end)
            if end:
                found.append((end - len(stop.text), end))
        return min(found, default=None)

    def _found_in_content(self, piece: str, may_stop: bool) -> tuple[int, int] | None:
        assert self._content is not None
        for start, text in self._content.push(piece):
            if start != self._content_end:
                for stop in self.stop:
                    stop.matched = 0
            self._content_end = start + len(text)
            found = self._found(text, may_stop)
            if found is not None:
                return start + found[0], start + found[1]
        self._content_end -= len(piece)
        return None

    def _drop(self, count: int) -> None:
        text = self.text
        self._pieces = [text[: len(text) - count]]
        self._held_chars -= count
        while count:
            piece, flag = self._held.pop()
            if len(piece) > count:
                self._held.append((piece[:-count], flag))
            count -= min(len(piece), count)

    def release(self, final: bool) -> tuple[Span, ...]:
        """The spans to show now: all after the end, else without a possible start of a stop string."""
        begun = max([stop.matched for stop in self.stop]) if self.stop else 0
        if self._content is not None:
            begun = min(begun + self._content.held, self._held_chars)
        if final or not begun:
            if not self._held:
                return ()
            released = tuple(self._held)
            self._held.clear()
            self._held_chars = 0
            return released
        excess = self._held_chars - begun
        self._held_chars = begun
        out: list[Span] = []
        while excess:
            piece, flag = self._held.popleft()
            if len(piece) > excess:
                self._held.appendleft((piece[excess:], flag))
                piece = piece[:excess]
            excess -= len(piece)
            out.append((piece, flag))
        return tuple(out)

    def finish(self) -> None:
        """Decode the rest, unless a stop string has ended the text."""
        if not self._stopped:
            self._add(self._detokenizer.finish(), False)
