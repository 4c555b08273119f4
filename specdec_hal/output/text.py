"""One request's text: made of its tokens when it is read, or at once if it has stop strings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property, partial
from itertools import repeat
from typing import Any

from specdec_hal.output.detokenizing import Detokenizer, Span, detokenizer_for, push_all
from specdec_hal.output.parsers import ContentFinder, make_parser
from specdec_hal.output.stop_strings import TextStream
from specdec_hal.request import NO_COUNTS, Drafts, FinishReason, RequestOutput, SamplingParams, StreamDelta

READING = threading.RLock()
"""Held while tokens or text of a request are read that no one has read before: any thread may."""

_delta = partial(tuple.__new__, StreamDelta)
"""A fast constructor of StreamDelta."""


class RequestText:
    """Adds text to a request's deltas of tokens, which come in order, and cuts them at a stop string.

    `make` None: no text, and no stop strings. `tokens`: all tokens so far, for deltas that are made without
    :meth:`take`. `end_tokens`: have no text.
    """

    def __init__(
        self,
        make: Callable[..., Detokenizer] | None,
        params: SamplingParams,
        prompt: Sequence[int],
        end_tokens: AbstractSet[int],
        tokens: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self._make = None if make is None else detokenizer_for(make, params, prompt)
        self.joint = make is not None and params.skip_special_tokens
        """Whether its text is as :class:`~specdec_hal.models.detokenizer.KnownTexts` has it."""
        self._tokens, self._least = tokens, params.min_new_tokens
        keeps_ends = params.ignore_eos or params.include_stop_str_in_output
        self._without_text = frozenset[int]() if keeps_ends else end_tokens
        self._pieces: list[str] = []
        """Of each token, as far as they have been read."""
        self.count = 0
        """Tokens so far, up to the stop string."""
        self.finish_reason: FinishReason | None = None
        self.stopped = False
        """Whether a stop string has ended the request."""
        self.counts = NO_COUNTS
        """See :class:`StreamDelta`; those of the last delta, up to the stop string."""
        self.stream: TextStream | None = None
        """Finds stop strings, if there are any."""
        if self._make is not None and params.stop:
            parser = params.answer_parser
            content = None if parser is None else ContentFinder(make_parser(**dict(parser)))
            self.stream = TextStream(self._make(), params.stop, params.include_stop_str_in_output, content)

    def take(self, delta: StreamDelta, start: int | None = None) -> StreamDelta | None:
        """The delta, whose tokens come after the first `start`, with its text; None if it has nothing to show."""
        if self.finish_reason is not None:  # after a stop string, which its runner did not know yet
            return None
        start = self.count if start is None else start
        name, tokens, flags, _, reason, logprobs, prompt_logprobs, drafts, counts = delta
        kept = spoken = len(tokens)
        if tokens and tokens[-1] in self._without_text:
            spoken -= 1
        if self.stream is not None:
            held_for = self._least - start - 1
            if stopped := self.stream.extend(tokens[:spoken], flags, held_for):
                self.stopped, kept, reason = True, stopped, "stop"
                steps, drafted, accepted, num_drafts = counts
                counts = steps, drafted, accepted - sum(flags[kept:]), num_drafts
                tokens, flags, logprobs = tokens[:kept], flags[:kept], logprobs[:kept]
                drafts = _until(drafts, start + kept, accepted=sum(flags))
            if reason is not None:
                self.stream.finish()
            spans = self.stream.release(reason is not None)
        else:
            spans = self.spans(start, tokens[:spoken], flags)
            if reason is not None and self._make is not None and (rest := self._rest):
                spans = (*spans, (rest, False))
        self.count, self.finish_reason, self.counts = start + kept, reason, counts
        if not (tokens or spans or reason is not None):
            return None
        return _delta((name, tokens, flags, spans, reason, logprobs, prompt_logprobs, drafts, counts))

    def spans(self, start: int, token_ids: Sequence[int], from_draft: Sequence[bool]) -> tuple[Span, ...]:
        """Of the tokens from `start` on, which are these."""
        if self._make is None:
            return ()
        with READING:
            pieces, end = self._pieces, start + len(token_ids)
            if len(pieces) < start:
                pieces += push_all(self._detokenizer, self._tokens()[len(pieces) : start])
            if len(pieces) < end:
                pieces += push_all(self._detokenizer, token_ids[len(pieces) - start :])
            return tuple([span for span in zip(pieces[start:end], from_draft, strict=False) if span[0]])

    def output(self, output: RequestOutput) -> RequestOutput:
        """The finished request with its text, without what came after a stop string."""
        if self._make is None:
            return output
        if self.stream is None:
            tokens = output.token_ids
            with READING:
                end = len(tokens) - (tokens[-1:] != () and tokens[-1] in self._without_text)
                self._pieces += push_all(self._detokenizer, tokens[len(self._pieces) : end])
                return replace(output, text="".join(self._pieces) + self._rest)
        if not self.stopped:
            return replace(output, text=self.stream.text)
        kept, (steps, drafted, accepted, num_drafts) = slice(self.count), self.counts
        flags = output.accepted_draft[kept]
        return replace(
            output, token_ids=output.token_ids[kept], accepted_draft=flags, logprobs=output.logprobs[kept],
            drafts=_until(output.drafts, self.count, sum(flags)), text=self.stream.text, finish_reason="stop",
            error="", steps=steps, drafted=drafted, accepted=accepted, num_drafts=num_drafts,
        )  # fmt: skip

    @cached_property
    def _detokenizer(self) -> Detokenizer:
        assert self._make is not None
        return self._make()

    @cached_property
    def _rest(self) -> str:
        """The text that completes no token, after the last."""
        return self._detokenizer.finish()


def _until(drafts: Sequence[Drafts], end: int, accepted: int) -> tuple[Drafts, ...]:
    """The drafts of the first `end` tokens. `accepted`: in all of these."""
    kept = [one for one in drafts if one.start < end]
    if kept:
        before = sum(one.accepted for one in kept[:-1])
        kept[-1] = kept[-1]._replace(accepted=min(kept[-1].accepted, max(accepted - before, 0)))
    return tuple(kept)


class StepTexts:
    """A step's tokens by slot and which are accepted drafts; the texts of `slots`, made together if one is read.

    `make`: returns these; None for one that must be decoded token by token.
    """

    slots: Sequence[int] = ()
    make: Callable[[], list[list[str] | None]]

    def __init__(self, tokens: Callable[[int], list[int]], flags: Callable[[int], list[bool]]) -> None:
        self.tokens, self.flags = tokens, flags

    @cached_property
    def pieces(self) -> dict[int, list[str] | None]:
        """By slot: the text of each token, and more empty ones."""
        return dict(zip(self.slots, self.make(), strict=True)) if self.slots else {}


_item: Any = tuple.__getitem__


class LazyDelta(StreamDelta):
    """A delta whose tokens and text are made when they are read.

    The underlying tuple has a step and a slot in place of `token_ids` and `accepted_draft`, and in place of `spans` the
    request's text and how many tokens it had before.
    """

    __slots__ = ()

    @staticmethod
    def of_step(
        step: StepTexts,
        slots: Iterable[int],
        names: Iterable[str],
        texts: Iterable[RequestText],
        starts: Iterable[int],
    ) -> Iterator[StreamDelta]:
        """Of requests that gain nothing but tokens."""
        before, nothing, counts = zip(texts, starts, strict=True), repeat(()), repeat(NO_COUNTS)
        return map(_lazy, zip(names, repeat(step), slots, before, repeat(None), nothing, nothing, nothing, counts))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The new tokens."""
        return tuple(_item(self, 1).tokens(_item(self, 2)))

    @property
    def accepted_draft(self) -> tuple[bool, ...]:
        """Whether each came from a draft."""
        return tuple(_item(self, 1).flags(_item(self, 2)))

    @property
    def spans(self) -> tuple[Span, ...]:
        """The new text."""
        step, slot, (text, start) = _item(self, slice(1, 4))
        if (pieces := step.pieces.get(slot)) is not None:
            return tuple([span for span in zip(pieces, step.flags(slot), strict=False) if span[0]])
        spans: tuple[Span, ...] = text.spans(start, step.tokens(slot), step.flags(slot))
        return spans

    @property
    def text(self) -> str:
        """The new text."""
        pieces = _item(self, 1).pieces.get(_item(self, 2))
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
