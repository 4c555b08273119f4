"""A request's output: tokens, text, and the host's stop rules.

Only the host knows stop strings: they take effect when a step is read, and later tokens are dropped. So the kept tokens
do not depend on tokens per step or on how far the device is ahead. A runner with a tokenizer and a separate token
processor produce the same streams. Text without stop strings is made when it is read, on the reader's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, partial
from itertools import repeat
from typing import Any, Protocol

from specdec_hal.output.parsers import ContentFinder, make_parser
from specdec_hal.request import (
    Drafts,
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
    StreamDelta,
    TokenLogprobs,
)

Span = tuple[str, bool]

PROMPT_TAIL = 32
"""Prompt tokens that may affect the following text: a space, or the rest of a character."""

_delta = partial(tuple.__new__, StreamDelta)
"""A fast constructor of StreamDelta."""
READING = threading.RLock()
"""Held while tokens or text of a stream are read that no one has read before: any thread may."""


class Detokenizer(Protocol):
    """Turns token ids into text one by one, never yielding half a character."""

    def push(self, token_id: int) -> str:
        """The text that one more token completes."""

    def finish(self) -> str:
        """The rest."""


MakeDetokenizer = Callable[[], Detokenizer]


def _push_all(detokenizer: Detokenizer, token_ids: Sequence[int]) -> list[str]:
    every: Callable[[Sequence[int]], list[str]] | None = getattr(detokenizer, "push_all", None)
    return list(map(detokenizer.push, token_ids)) if every is None else every(token_ids)


def detokenizer_for(make: Callable[..., Detokenizer], params: SamplingParams, prompt: Sequence[int]) -> MakeDetokenizer:
    """Makes a request's detokenizer. `make`: ``Tokenizer.detokenizer``; `prompt`: the prompt's last
    :data:`PROMPT_TAIL` tokens.
    """
    return partial(
        make,
        prompt,
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
    )


class TokenText:
    """Text without stop strings, decoded when it is read, of the first of `token_ids`, a list that grows.

    `make` None: no text.
    """

    def __init__(self, make: MakeDetokenizer | None, token_ids: list[int]) -> None:
        self._make, self._token_ids = make, token_ids
        self._pieces: list[str] = []
        """Of each token, as far as they have been read."""
        self._count, self._finished = 0, False
        self._rest: str | None = None

    @property
    def text(self) -> str:
        """All of it."""
        with READING:
            self._decode(self._count)
            return "".join(self._pieces) + (self._ending() if self._finished else "")

    def extend(self, count: int) -> None:
        """The next `count` tokens have text."""
        self._count += count

    def push(self, token_id: int, from_draft: bool, may_stop: bool = True) -> bool:
        """As :meth:`TextStream.push`, of the next token."""
        self._count += 1
        return False

    def spans(self, start: int, token_ids: Sequence[int], from_draft: Sequence[bool], final: bool) -> tuple[Span, ...]:
        """Of the tokens from `start` on, which are these; `final`: and the rest of the text."""
        if self._make is None:
            return ()
        with READING:
            pieces = self._pieces
            if final:
                token_ids = token_ids[: self._count - start]
            if len(pieces) < start:
                self._decode(start)
            end = start + len(token_ids)
            if len(pieces) < end:
                pieces += map(self._detokenizer.push, token_ids[len(pieces) - start :])
            spans = tuple([span for span in zip(pieces[start:end], from_draft, strict=False) if span[0]])
            return (*spans, (rest, False)) if final and (rest := self._ending()) else spans

    def reaches(self, start: int) -> bool:
        """Whether the text of the first `start` tokens has been decoded."""
        return len(self._pieces) >= start

    def finish(self) -> None:
        """No more tokens come."""
        self._finished = True

    @cached_property
    def _detokenizer(self) -> Detokenizer:
        assert self._make is not None
        return self._make()

    def _decode(self, end: int) -> None:
        pieces = self._pieces
        if self._make is not None and len(pieces) < end:
            pieces += _push_all(self._detokenizer, self._token_ids[len(pieces) : end])

    def _ending(self) -> str:
        """The rest, which completes no token."""
        self._decode(self._count)
        if self._rest is None:
            self._rest = "" if self._make is None else self._detokenizer.finish()
        return self._rest


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
        self._decode, self._finish = detokenizer.push, detokenizer.finish
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
        self._add(self._decode(token_id), from_draft, may_stop)
        return self._stopped

    def passes(self, step: Step, slot: int) -> bool:
        """Take over the text of a step, with the spans to show; False, with nothing changed, if it is not known or a
        stop string ends in it.
        """
        pieces = None if self._content is not None else step.pieces(slot)
        if pieces is None:
            return False
        text = "".join(pieces)
        for stop in self.stop:
            if stop.matched or stop.text[0] in text:
                matched = [stop.matched for stop in self.stop]
                if any([stop.feed(text) for stop in self.stop]):
                    for stop, before in zip(self.stop, matched, strict=True):
                        stop.matched = before
                    return False
                if self._held or any([stop.matched for stop in self.stop]):
                    self._held += [span for span in zip(pieces, step.flags(slot), strict=False) if span[0]]
                    self._held_chars += len(text)
                    step.show(slot, self.release(False))
                break
        self._pieces.append(text)
        return True

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
            shown = tuple(self._held)
            self._held.clear()
            self._held_chars = 0
            return shown
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
            self._add(self._finish(), False)


class Step(Protocol):
    """A step's tokens by slot."""

    def tokens(self, slot: int) -> list[int]:
        """The slot's new tokens."""

    def flags(self, slot: int) -> list[bool]:
        """Which of them are accepted drafts."""

    def pieces(self, slot: int) -> list[str] | None:
        """The text of each, and more empty ones; None if it must be decoded token by token."""

    def show(self, slot: int, spans: tuple[Span, ...]) -> None:
        """Have these spans shown instead."""

    def spans(self, slot: int) -> tuple[Span, ...] | None:
        """The text to show; None if it must be decoded token by token."""


_item: Any = tuple.__getitem__
_iterate: Any = tuple.__iter__


class LazyDelta(StreamDelta):
    """A delta whose tokens and text are made when they are read.

    The underlying tuple has a step and a slot in place of `token_ids` and `accepted_draft`, or these themselves, and in
    place of `spans` the stream and how many tokens its context had before.
    """

    __slots__ = ()

    @staticmethod
    def of_step(
        step: Step, slots: Sequence[int], streams: Sequence[OutputStream], lengths: Sequence[int]
    ) -> Iterator[StreamDelta]:
        """Of requests that gain nothing but tokens."""
        names, nothing = [stream.request.request_id for stream in streams], repeat(())
        before = zip(streams, lengths, strict=True)
        return map(_lazy, zip(names, repeat(step), slots, before, repeat(None), nothing, nothing, nothing))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The new tokens."""
        step: Any = _item(self, 1)
        return step if type(step) is tuple else tuple(step.tokens(_item(self, 2)))

    @property
    def accepted_draft(self) -> tuple[bool, ...]:
        """Whether each came from a draft."""
        step, slot = _item(self, slice(1, 3))
        return slot if type(step) is tuple else tuple(step.flags(slot))

    @property
    def spans(self) -> tuple[Span, ...]:
        """The new text."""
        _, step, slot, (stream, length), reason, _, _, _ = _iterate(self)
        found: tuple[Span, ...] | None = None if type(step) is tuple else step.spans(slot)
        if found is not None:
            return found
        tokens, flags = (step, slot) if type(step) is tuple else (step.tokens(slot), step.flags(slot))
        text, start = stream.written, length - stream.prompt_len
        if not text.reaches(start):
            _ = stream.token_ids  # so that the text has them all
        spans: tuple[Span, ...] = text.spans(start, tokens, flags, reason is not None)
        return spans

    @property
    def text(self) -> str:
        """The new text."""
        step, slot = _item(self, 1), _item(self, 2)
        pieces = None if type(step) is tuple else step.pieces(slot)
        return super().text if pieces is None else "".join(pieces)

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> StreamDelta:  # type: ignore[override]
        return StreamDelta._make(iterable)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.request_id, self.token_ids, self.accepted_draft, self.spans, *_item(self, slice(4, None))))

    def __getitem__(self, at: Any) -> Any:
        return tuple(self)[at]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, tuple) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(StreamDelta._make(self))

    def __reduce__(self) -> Any:
        return StreamDelta, tuple(self)


_lazy = partial(tuple.__new__, LazyDelta)
"""A fast constructor of LazyDelta."""


class OutputStream:
    """One request's output, as steps add to it."""

    lazy = False
    """Whether deltas make their text when it is read."""

    def __init__(
        self, request: Request, prompt_len: int, max_new_tokens: int, detokenizer: MakeDetokenizer | None = None
    ) -> None:
        params = request.params
        self.request = request
        self.prompt_len = prompt_len
        self.max_new_tokens = max_new_tokens
        self.stop_sequences = params.stop_token_sequences
        self.queue_s: float | None = None
        """Seconds until its first slot, or None."""
        self.num_cached_tokens = 0
        """Prompt tokens found in the KV cache at its first slot."""
        self._token_ids: list[int] = []
        self._accepted_draft: list[bool] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs | None] = [] if params.prompt_logprobs is None else [None]
        """Of the prompt's tokens so far, None for the first; empty unless requested."""
        self.drafts: list[Drafts] = []
        """Verified drafts, if requested."""
        self.finish_reason: FinishReason | None = None
        self.error = ""
        self._counts = [0, 0, 0, 0]
        self.reported = 0
        """Number of tokens sent in deltas."""
        self.written: TokenText | TextStream = TokenText(detokenizer, self._token_ids)
        """Its text."""
        if detokenizer is not None and params.stop:
            content = None if params.answer_parser is None else ContentFinder(make_parser(**dict(params.answer_parser)))
            self.written = TextStream(detokenizer(), params.stop, params.include_stop_str_in_output, content)

    @property
    def token_ids(self) -> list[int]:
        """All tokens so far."""
        return self._token_ids

    @property
    def accepted_draft(self) -> list[bool]:
        """Whether each came from a draft."""
        return self._accepted_draft

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Decode steps, drafted and accepted tokens, and the steps that had drafts."""
        steps, drafted, accepted, num_drafts = self._counts
        return steps, drafted, accepted, num_drafts

    @counts.setter
    def counts(self, counts: tuple[int, int, int, int]) -> None:
        self._counts = list(counts)

    def count(self, before: int, drafted: int) -> int:
        """Count a decode step with `drafted` drafts and tokens after the first `before`.

        Returns the number of accepted and kept drafts, excluding those after the request's end.
        """
        accepted, counts = sum(self._accepted_draft[before:]), self._counts
        counts[0] += 1
        if drafted:
            counts[1] += drafted
            counts[2] += accepted
            counts[3] += 1
        return accepted

    def _at_stop_sequence(self) -> bool:
        if len(self._token_ids) < self.request.params.min_new_tokens:
            return False
        return any(self._token_ids[-len(tokens) :] == tokens for tokens in self.stop_sequences)

    def extend(
        self,
        token_ids: list[int],
        from_draft: list[bool],
        logprobs: list[TokenLogprobs],
        end_tokens: AbstractSet[int],
    ) -> None:
        """Append a step's tokens up to the request's end. No token of `end_tokens` ends one with `ignore_eos`."""
        known = self.token_ids
        end_tokens = frozenset[int]() if self.request.params.ignore_eos else end_tokens
        if (
            len(known) + len(token_ids) < self.max_new_tokens
            and isinstance(self.written, TokenText)
            and not self.stop_sequences
            and (not token_ids or min(token_ids) >= 0)
            and end_tokens.isdisjoint(token_ids)
        ):  # the usual case: none does
            known += token_ids
            self._accepted_draft += from_draft
            self.logprobs += logprobs
            self.written.extend(len(token_ids))
            return
        for at, token in enumerate(token_ids):
            if token < 0:
                self.finish("error", "the model gave no distribution for the next token (NaN, or all logits -inf)")
                return
            known.append(token)
            self._accepted_draft.append(from_draft[at])
            if logprobs:
                self.logprobs.append(logprobs[at])
            # End tokens are no text.
            params, stopped = self.request.params, token in end_tokens
            if not stopped or params.include_stop_str_in_output:
                stopped |= self.written.push(token, from_draft[at], len(known) >= params.min_new_tokens)
            if stopped or (self.stop_sequences and self._at_stop_sequence()):
                self.finish("stop")
                return
            if len(known) >= self.max_new_tokens:
                self.finish("length")
                return

    def finish(self, reason: FinishReason, error: str = "") -> None:
        """End the request."""
        self.finish_reason, self.error = reason, error
        self.written.finish()

    def _scored_prompt(self) -> tuple[TokenLogprobs | None, ...]:
        """After the whole prompt was processed."""
        return tuple(self.prompt_logprobs) if len(self.prompt_logprobs) == self.prompt_len else ()

    def delta(self) -> StreamDelta | None:
        """The delta since the last call, or None."""
        token_ids, text, reason = self.token_ids, self.written, self.finish_reason
        start, final, self.reported = self.reported, reason is not None, len(token_ids)
        tokens, flags = tuple(token_ids[start:]), tuple(self._accepted_draft[start:])
        make: Callable[[Any], StreamDelta] = _delta
        spans: tuple[Any, ...] = ()
        if isinstance(text, TextStream):
            spans = text.release(final)
        elif self.lazy:
            make, spans = _lazy, (self, self.prompt_len + start)
        else:
            spans = text.spans(start, tokens, flags, final)
        if not (tokens or final or (spans and make is _delta)):
            return None
        entries = tuple(self.logprobs[start:]) if self.logprobs else ()
        scored = () if start else self._scored_prompt()
        drafts = tuple([one for one in self.drafts if one.start >= start]) if self.drafts else ()
        return make((self.request.request_id, tokens, flags, spans, reason, entries, scored, drafts))

    @property
    def text(self) -> str:
        """All of its text so far."""
        _ = self.token_ids  # which brings the text up to date
        return self.written.text

    def output(self) -> RequestOutput:
        """The finished request."""
        assert self.finish_reason is not None
        steps, drafted, accepted, num_drafts = self.counts
        return RequestOutput(
            self.request.request_id,
            self.prompt_len,
            tuple(self.token_ids),
            tuple(self.accepted_draft),
            self.text,
            self.finish_reason,
            self.error,
            tuple(self.logprobs),
            steps,
            drafted,
            accepted,
            self.queue_s,
            self._scored_prompt(),
            tuple(self.drafts),
            self.request.params.seed,
            num_drafts,
            self.num_cached_tokens,
        )
