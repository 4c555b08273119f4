"""TokenProcessor: frames to one text stream per request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from specdec_hal.errors import FrameError
from specdec_hal.output.detokenizing import Detokenizer
from specdec_hal.output.processor import TextProcessor
from specdec_hal.output.text import RequestText
from specdec_hal.request import Drafts, FinishReason, SamplingParams, StreamDelta, TokenLogprobs
from specdec_hal.serve.frame_codes import PREEMPTED, FrameKind
from specdec_hal.serve.stream.frame import OutputFrame, PromptScores, StreamStart

_delta = partial(tuple.__new__, StreamDelta)
"""A fast constructor of StreamDelta."""


class RequestSummary(NamedTuple):
    """Final statistics of a request: the fields of :class:`~specdec_hal.runner.RequestOutput` that no delta carries."""

    prompt_tokens: int
    error: str
    counts: tuple[int, int, int, int]
    """See :class:`~specdec_hal.request.StreamDelta`."""
    queue_s: float | None
    num_cached_tokens: int = 0


class OutputDelta(NamedTuple):
    """A request's new output, after its first tokens and characters; `ended` with the last one."""

    delta: StreamDelta
    token_start: int
    char_start: int
    ended: RequestSummary | None


@dataclass
class _Stream:
    start: StreamStart
    params: SamplingParams
    text: RequestText
    prompt_logprobs: list[TokenLogprobs | None]
    """So far."""
    error: str = ""
    pending: list[StreamDelta] = field(default_factory=list)
    """With text, not yet sent."""
    tokens: int = 0
    chars: int = 0
    """Both as far as they are sent."""
    closed: bool = False

    def add(
        self,
        tokens: tuple[int, ...] = (),
        flags: tuple[bool, ...] = (),
        reason: FinishReason | None = None,
        logprobs: tuple[TokenLogprobs, ...] = (),
        drafts: tuple[Drafts, ...] = (),
        counts: tuple[int, int, int, int] | None = None,
    ) -> None:
        """Make the text of what the request gained."""
        text, scores = self.text, self.prompt_logprobs
        scored = tuple(scores) if scores and not text.count and len(scores) == self.start.prompt_tokens else ()
        given = self.start.request_id, tokens, flags, (), reason, logprobs, scored, drafts, counts or text.counts
        made = text.take(_delta(given))
        if made is not None:
            self.pending.append(made)


class TokenProcessor:
    """Rebuilds, from a runner's frames, the streams that it would produce with the tokenizer.

    Every stream ends exactly once. After a frame 0 each stream starts over with its whole output. FrameError for a
    frame out of order; the reader must then request a new session.

    `mine`: which ids' streams to make; others are skipped.
    """

    def __init__(
        self, detokenizer: Callable[..., Detokenizer], mine: Callable[[str], bool] = lambda request_id: True
    ) -> None:
        self._detokenizer, self._mine = detokenizer, mine
        self._streams: dict[int, _Stream] = {}
        self._others: set[int] = set()
        """Numbers of skipped requests."""
        self._texts = TextProcessor(detokenizer, frozenset())
        self._touched: dict[int, _Stream] = {}
        """Requests with output since the last :meth:`deltas`."""
        self._unpaired: dict[tuple[int, int], tuple[int, ...]] = {}
        """Drafts for the tokens of the next frame, by number and start."""
        self.preempted = self.recovered = 0
        """Counts of lost slots and repeated steps."""

    def take(self, frame: OutputFrame) -> list[OutputDelta]:
        """Deltas of a frame, in its order. Drafts produce none until the next frame's tokens arrive."""
        self.add(frame)
        return self.deltas()

    def add(self, frame: OutputFrame) -> None:
        """Process a frame; :meth:`deltas` returns the deltas of all frames since its last call."""
        if frame.flags == FrameKind.DRAFT and frame.sequence:
            self._unpaired.update(one for one in _drafts_of(frame) if one[0][0] not in self._others)
            return
        if frame.flags != FrameKind.TARGET:
            raise FrameError(
                f"flags: expected {FrameKind.TARGET.value}, tokens of the target model, or after frame 0 "
                f"{FrameKind.DRAFT.value}, drafts; got {frame.flags}"
            )
        if frame.sequence == 0:
            self._streams, self._others, self._unpaired, self._touched = {}, set(), {}, {}
            self._texts = TextProcessor(self._detokenizer, frozenset(frame.end_tokens))
        for start in frame.streams:
            self._begin(start)
        for scores in frame.prompts:
            if scores.number not in self._others:
                self._score(scores)
        self._extend(frame)
        for end in frame.ended:
            if end.number in self._others:
                continue
            stream = self._stream(end.number)
            if stream.text.finish_reason is None:
                stream.error = end.error
                stream.add(reason=end.reason)
            self._touched[end.number] = stream
        for number in frame.released:
            if number in self._others:
                self._others.remove(number)
                continue
            self._texts.forget(self._stream(number).start.request_id)
            del self._streams[number]

    def deltas(self) -> list[OutputDelta]:
        """Merged deltas of the frames since the last call, one per request, in order."""
        touched, self._touched = self._touched, {}
        return [found for stream in touched.values() for found in self._deltas_of(stream)]

    def _stream(self, number: int) -> _Stream:
        stream = self._streams.get(number)
        if stream is None:
            raise FrameError(f"number: expected a request of this session, got {number}")
        return stream

    def _begin(self, start: StreamStart) -> None:
        if start.number in self._streams or start.number in self._others:
            raise FrameError(f"streams: expected a new number, got {start.number} again")
        if not self._mine(start.request_id):
            self._others.add(start.number)
            return
        params = SamplingParams(**start.params)
        text = self._texts.begin(start.request_id, params, start.prompt_tail)
        stream = _Stream(start, params, text, list(start.prompt_logprobs))
        tokens, flags = tuple(start.token_ids), tuple(start.accepted_draft)
        stream.add(tokens, flags, None, tuple(start.logprobs), tuple(start.drafts), start.counts)
        self._touched[start.number] = self._streams[start.number] = stream

    def _score(self, scores: PromptScores) -> None:
        stream = self._stream(scores.number)
        if scores.first != len(stream.prompt_logprobs):
            had = f"expected {len(stream.prompt_logprobs)} tokens before, got {scores.first}"
            raise FrameError(f"prompts: request '{stream.start.request_id}': {had}; some are missing")
        stream.prompt_logprobs += scores.entries

    def _extend(self, frame: OutputFrame) -> None:
        """Add the tokens of all entries."""
        tokens, accepted_draft = tuple(frame.emitted), tuple(map(bool, frame.accepted_draft))
        end = 0
        for number, start, count, drafted in zip(frame.numbers, frame.starts, frame.counts, frame.drafted, strict=True):
            if number in self._others:
                end += max(count, 0)
                continue
            stream = self._stream(number)
            if count < 0:
                self.preempted += count == PREEMPTED
                self.recovered += count != PREEMPTED
                continue
            rows = slice(end, end + count)
            end += count
            gained, flags, wants, text = tokens[rows], accepted_draft[rows], stream.params, stream.text
            verified = self._pair(stream, number, start, drafted, gained, flags) if wants.return_drafts else ()
            if text.finish_reason is not None:
                continue  # by a stop string, which the engine does not know
            if start != text.count:
                had = f"expected {text.count} tokens before, got {start}"
                raise FrameError(f"starts: request '{stream.start.request_id}': {had}; some are missing")
            logprobs = () if wants.logprobs is None else tuple(frame.logprobs(rows, wants.logprobs))
            drafts = (Drafts(start, verified, sum(flags)),) if verified else ()
            steps, *others = counts = text.counts
            if drafted >= 0:
                counts = steps + 1, others[0] + drafted, others[1] + sum(flags), others[2] + (drafted > 0)
            stream.add(gained, flags, None, logprobs, drafts, counts)
            self._touched[number] = stream
        # The reader was too slow for the tokens of those that end in an error.
        given_up = {end.number for end in frame.ended if end.reason == "error"}
        for number, start in self._unpaired:
            if number not in given_up:
                raise FrameError(f"drafts: request {number}: expected tokens after {start} for its drafts, got none")
        self._unpaired = {}

    def _pair(
        self, stream: _Stream, number: int, start: int, drafted: int, tokens: Sequence[int], from_draft: Sequence[bool]
    ) -> tuple[int, ...]:
        """The verified drafts of these tokens, for a request with return_drafts."""
        if drafted < 1:
            return ()
        verified = self._unpaired.pop((number, start), ())
        found = [token == draft for token, draft in zip(tokens, verified, strict=False)]
        if len(verified) != drafted or found != list(from_draft[: len(found)]):
            name = f"drafts: request '{stream.start.request_id}'"
            raise FrameError(f"{name}: expected {drafted} that give {list(tokens)} after {start}, got {list(verified)}")
        return verified

    def _deltas_of(self, stream: _Stream) -> list[OutputDelta]:
        pending, stream.pending = stream.pending, []
        if stream.closed or not pending:
            return []
        delta = pending[0] if len(pending) == 1 else StreamDelta.joined(pending)
        start, tokens, chars, ended = stream.start, stream.tokens, stream.chars, None
        stream.tokens += len(delta.token_ids)
        for text, _ in delta.spans:
            stream.chars += len(text)
        if delta.finish_reason is not None:
            stream.closed = True
            ended = RequestSummary(
                start.prompt_tokens, stream.error, stream.text.counts, start.queue_s, start.num_cached_tokens
            )
        return [OutputDelta(delta, tokens, chars, ended)]


def _drafts_of(frame: OutputFrame) -> Iterator[tuple[tuple[int, int], tuple[int, ...]]]:
    """Drafts by number and start."""
    ids, at = frame.emitted, 0
    for number, start, count in zip(frame.numbers, frame.starts, frame.counts, strict=True):
        rows = slice(at, at + max(count, 0))
        at = rows.stop
        yield (number, start), tuple(ids[rows])
