"""A request's output: tokens, text, and the host's stop rules.

Only the host knows stop strings: they take effect when a step is read, and later tokens are dropped. So the kept tokens
do not depend on tokens per step or on how far the device is ahead. A runner with a tokenizer and a separate token
processor produce the same streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Protocol

from specdec_hal.runner.request import (
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


class Detokenizer(Protocol):
    """Turns token ids into text one by one, never yielding half a character."""

    def push(self, token_id: int) -> str:
        """The text that one more token completes."""

    def finish(self) -> str:
        """The rest."""


def detokenizer_for(make: Callable[..., Detokenizer], params: SamplingParams, prompt: Sequence[int]) -> Detokenizer:
    """A request's detokenizer. `make`: ``Tokenizer.detokenizer``; `prompt`: the prompt's last :data:`PROMPT_TAIL`
    tokens.
    """
    return make(
        prompt,
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
    )


class _NoText:
    """For a runner without a tokenizer."""

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


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

    `include_stop`: the text ends with the stop string rather than before it.
    """

    def __init__(self, detokenizer: Detokenizer | None, stop: Collection[str], include_stop: bool = False) -> None:
        self._silent = detokenizer is None
        self._decode = (detokenizer or _NoText()).push
        self._finish = (detokenizer or _NoText()).finish
        self.stop = tuple(map(_StopString, stop))
        self._include_stop = include_stop
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

    def extend(self, token_ids: Sequence[int], from_draft: Sequence[bool]) -> None:
        """Add tokens where there are no stop strings."""
        if self._silent:
            return
        held, pieces, decode = self._held, self._pieces, self._decode
        for token, flag in zip(token_ids, from_draft, strict=True):
            if piece := decode(token):
                pieces.append(piece)
                held.append((piece, flag))
                self._held_chars += len(piece)

    def take(self, token_ids: Sequence[int], from_draft: Sequence[bool]) -> tuple[Span, ...]:
        """Add tokens where there are no stop strings, and release all text."""
        if self._held:
            self.extend(token_ids, from_draft)
            return self.release(False)
        if self._silent:
            return ()
        texts = zip(map(self._decode, token_ids), from_draft, strict=True)
        spans = tuple([span for span in texts if span[0]])
        self._pieces += [piece for piece, _ in spans]
        return spans

    def _add(self, piece: str, from_draft: bool, may_stop: bool = True) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._held.append((piece, from_draft))
        self._held_chars += len(piece)
        found = []
        for stop in self.stop:
            end = stop.feed(piece)
            while end and not may_stop:
                end = stop.feed(piece, end)
            if end:
                found.append((end - len(stop.text), end))
        if found:
            self._stopped = True
            start, end = min(found)
            self._drop(len(piece) - (end if self._include_stop else start))

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


class OutputStream:
    """One request's output, as steps add to it."""

    def __init__(
        self, request: Request, prompt_len: int, max_new_tokens: int, detokenizer: Detokenizer | None = None
    ) -> None:
        self.request = request
        self.prompt_len = prompt_len
        self.max_new_tokens = max_new_tokens
        self.stop_sequences = request.params.stop_token_sequences
        self.queue_s: float | None = None
        """Seconds until its first slot, or None."""
        self.num_cached_tokens = 0
        """Prompt tokens found in the KV cache at its first slot."""
        self.token_ids: list[int] = []
        self.accepted_draft: list[bool] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs | None] = [] if request.params.prompt_logprobs is None else [None]
        """Of the prompt's tokens so far, None for the first; empty unless requested."""
        self.drafts: list[Drafts] = []
        """Verified drafts, if requested."""
        self.finish_reason: FinishReason | None = None
        self.error = ""
        self.steps = self.drafted = self.accepted = self.num_drafts = 0
        self.reported = 0
        """Number of tokens sent in deltas."""
        self._text = TextStream(detokenizer, request.params.stop, request.params.include_stop_str_in_output)

    def count(self, before: int, drafted: int) -> int:
        """Count a decode step with `drafted` drafts and tokens after the first `before`.

        Returns the number of accepted and kept drafts, excluding those after the request's end.
        """
        accepted = sum(self.accepted_draft[before:])
        self.steps += 1
        self.num_drafts += drafted > 0
        self.drafted += drafted
        self.accepted += accepted
        return accepted

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Decode steps, drafted and accepted tokens, and the steps that had drafts."""
        return self.steps, self.drafted, self.accepted, self.num_drafts

    @counts.setter
    def counts(self, counts: tuple[int, int, int, int]) -> None:
        self.steps, self.drafted, self.accepted, self.num_drafts = counts

    def _at_stop_sequence(self) -> bool:
        if len(self.token_ids) < self.request.params.min_new_tokens:
            return False
        return any(self.token_ids[-len(tokens) :] == tokens for tokens in self.stop_sequences)

    def extend(
        self,
        token_ids: list[int],
        from_draft: list[bool],
        logprobs: list[TokenLogprobs],
        end_tokens: AbstractSet[int],
    ) -> None:
        """Append a step's tokens up to the request's end."""
        if (
            len(self.token_ids) + len(token_ids) < self.max_new_tokens
            and not self._text.stop
            and not self.stop_sequences
            and (not token_ids or min(token_ids) >= 0)
            and end_tokens.isdisjoint(token_ids)
        ):  # the usual case: none does
            self.token_ids += token_ids
            self.accepted_draft += from_draft
            self.logprobs += logprobs
            self._text.extend(token_ids, from_draft)
            return
        for at, token in enumerate(token_ids):
            if token < 0:
                self.finish("error", "the model gave no distribution for the next token (NaN, or all logits -inf)")
                return
            self.token_ids.append(token)
            self.accepted_draft.append(from_draft[at])
            if logprobs:
                self.logprobs.append(logprobs[at])
            # End tokens are no text.
            params, stopped = self.request.params, token in end_tokens
            if not stopped or params.include_stop_str_in_output:
                stopped |= self._text.push(token, from_draft[at], len(self.token_ids) >= params.min_new_tokens)
            if stopped or (self.stop_sequences and self._at_stop_sequence()):
                self.finish("stop")
                return
            if len(self.token_ids) >= self.max_new_tokens:
                self.finish("length")
                return

    def advance(self, token_ids: list[int], from_draft: list[bool], drafted: int, accepted: int) -> None:
        """Append and count a decode step without log-probabilities or an end."""
        self.token_ids += token_ids
        self.accepted_draft += from_draft
        self._text.extend(token_ids, from_draft)
        self.steps += 1
        self.num_drafts += drafted > 0
        self.drafted += drafted
        self.accepted += accepted

    def stream(self, token_ids: list[int], from_draft: list[bool], drafted: int, accepted: int) -> StreamDelta | None:
        """As :meth:`advance` and :meth:`delta`."""
        start = len(self.token_ids)
        if self.reported != start or not (start and token_ids):
            self.advance(token_ids, from_draft, drafted, accepted)
            return self.delta()
        self.token_ids += token_ids
        self.accepted_draft += from_draft
        self.reported = start + len(token_ids)
        self.steps += 1
        if drafted:
            self.num_drafts += 1
            self.drafted += drafted
            self.accepted += accepted
        spans = self._text.take(token_ids, from_draft)
        return _delta((self.request.request_id, tuple(token_ids), tuple(from_draft), spans, None, (), (), ()))

    def finish(self, reason: FinishReason, error: str = "") -> None:
        """End the request."""
        self.finish_reason, self.error = reason, error
        self._text.finish()

    def _scored_prompt(self) -> tuple[TokenLogprobs | None, ...]:
        """After the whole prompt was processed."""
        return tuple(self.prompt_logprobs) if len(self.prompt_logprobs) == self.prompt_len else ()

    def delta(self) -> StreamDelta | None:
        """The delta since the last call, or None."""
        start, end = self.reported, len(self.token_ids)
        self.reported = end
        name, reason = self.request.request_id, self.finish_reason
        spans = self._text.release(reason is not None)
        scored = () if start else self._scored_prompt()
        drafts = tuple(one for one in self.drafts if one.start >= start) if self.drafts else ()
        if end == start + 1:  # the usual case without drafts
            entry = (self.logprobs[-1],) if self.logprobs else ()
            flag = (self.accepted_draft[-1],)
            return _delta((name, (self.token_ids[-1],), flag, spans, reason, entry, scored, drafts))
        if start == end and not spans and reason is None:
            return None
        flags, entries = tuple(self.accepted_draft[start:]), tuple(self.logprobs[start:])
        return StreamDelta(name, tuple(self.token_ids[start:]), flags, spans, reason, entries, scored, drafts)

    @property
    def text(self) -> str:
        """All of its text so far."""
        return self._text.text

    def output(self) -> RequestOutput:
        """The finished request."""
        assert self.finish_reason is not None
        return RequestOutput(
            self.request.request_id,
            self.prompt_len,
            tuple(self.token_ids),
            tuple(self.accepted_draft),
            self.text,
            self.finish_reason,
            self.error,
            tuple(self.logprobs),
            self.steps,
            self.drafted,
            self.accepted,
            self.queue_s,
            self._scored_prompt(),
            tuple(self.drafts),
            self.request.params.seed,
            self.num_drafts,
            self.num_cached_tokens,
        )
