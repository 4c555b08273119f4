"""TokenProcessor: frames to one text stream per request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from specdec_hal.errors import FrameError
from specdec_hal.output.text import Detokenizer, OutputStream, detokenizer_for
from specdec_hal.request import Drafts, Request, SamplingParams, StreamDelta
from specdec_hal.runner.metrics import TimedStep
from specdec_hal.serve.frame_codes import PREEMPTED, FrameKind
from specdec_hal.serve.stream.frame import OutputFrame, PromptScores, StreamStart


class RequestSummary(NamedTuple):
    """Final statistics of a request: the fields of :class:`~specdec_hal.runner.RequestOutput` that no delta carries."""

    prompt_tokens: int
    error: str
    counts: tuple[int, int, int, int]
    """See :attr:`~specdec_hal.output.text.OutputStream.counts`."""
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
    output: OutputStream
    shown: int = 0
    """Characters already sent in deltas."""
    closed: bool = False


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
        self._end_tokens: frozenset[int] = frozenset()
        self._touched: dict[int, _Stream] = {}
        """Requests with output since the last :meth:`deltas`."""
        self._unpaired: dict[tuple[int, int], tuple[int, ...]] = {}
        """Drafts for the tokens of the next frame, by number and start."""
        self.totals = TimedStep()
        """`drafted` and `accepted` by position, and `emitted` tokens, over all requests."""
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
            self._end_tokens = frozenset(frame.end_tokens)
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
            output = stream.output
            if output.finish_reason is None:
                output.finish(end.reason, end.error)
            self._touched[end.number] = stream
        for number in frame.released:
            if number in self._others:
                self._others.remove(number)
                continue
            self._stream(number)
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
        request = Request(start.request_id, (), SamplingParams(**start.params))
        detokenizer = detokenizer_for(self._detokenizer, request.params, start.prompt_tail)
        output = OutputStream(request, start.prompt_tokens, start.max_new_tokens, detokenizer)
        output.queue_s, output.num_cached_tokens = start.queue_s, start.num_cached_tokens
        output.extend(start.token_ids, start.accepted_draft, list(start.logprobs), self._end_tokens)
        output.counts = start.counts
        output.prompt_logprobs = list(start.prompt_logprobs)
        output.drafts = list(start.drafts)
        self._touched[start.number] = self._streams[start.number] = _Stream(output)

    def _score(self, scores: PromptScores) -> None:
        output = self._stream(scores.number).output
        if scores.first != len(output.prompt_logprobs):
            had = f"expected {len(output.prompt_logprobs)} tokens before, got {scores.first}"
            raise FrameError(f"prompts: request '{output.request.request_id}': {had}; some are missing")
        output.prompt_logprobs += scores.entries

    def _extend(self, frame: OutputFrame) -> None:
        """Add the tokens of all entries."""
        tokens, accepted_draft = frame.emitted, list(map(bool, frame.accepted_draft))
        drafted_counts, accepted_drafts, end = list[int](), list[int](), 0
        for number, start, count, drafted in zip(frame.numbers, frame.starts, frame.counts, frame.drafted, strict=True):
            if number in self._others:
                end += max(count, 0)
                continue
            stream = self._stream(number)
            output = stream.output
            if count < 0:
                self.preempted += count == PREEMPTED
                self.recovered += count != PREEMPTED
                continue
            rows = slice(end, end + count)
            end += count
            gained, flags = tokens[rows], accepted_draft[rows]
            wants = output.request.params
            verified = self._pair(output, number, start, drafted, gained, flags) if wants.return_drafts else ()
            if output.finish_reason is not None:
                continue  # by a stop string, which the engine does not know
            if start != len(output.token_ids):
                had = f"expected {len(output.token_ids)} tokens before, got {start}"
                raise FrameError(f"starts: request '{output.request.request_id}': {had}; some are missing")
            logprobs = [] if wants.logprobs is None else frame.logprobs(rows, wants.logprobs)
            output.extend(gained, flags, logprobs, self._end_tokens)
            self.totals.emitted += len(output.token_ids) - start
            if drafted >= 0:
                accepted = output.count(start, drafted)
                if verified:
                    output.drafts.append(Drafts(start, verified, accepted))
                drafted_counts.append(drafted)
                accepted_drafts.append(accepted)
            self._touched[number] = stream
        self.totals.count_drafts(drafted_counts, accepted_drafts)
        # The reader was too slow for the tokens of those that end in an error.
        given_up = {end.number for end in frame.ended if end.reason == "error"}
        for number, start in self._unpaired:
            if number not in given_up:
                raise FrameError(f"drafts: request {number}: expected tokens after {start} for its drafts, got none")
        self._unpaired = {}

    def _pair(
        self, output: OutputStream, number: int, start: int, drafted: int, tokens: list[int], from_draft: list[bool]
    ) -> tuple[int, ...]:
        """The verified drafts of these tokens, for a request with return_drafts."""
        if drafted < 1:
            return ()
        verified = self._unpaired.pop((number, start), ())
        found = [token == draft for token, draft in zip(tokens, verified, strict=False)]
        if len(verified) != drafted or found != from_draft[: len(found)]:
            name = f"drafts: request '{output.request.request_id}'"
            raise FrameError(f"{name}: expected {drafted} that give {tokens} after {start}, got {list(verified)}")
        return verified

    def _deltas_of(self, stream: _Stream) -> list[OutputDelta]:
        output = stream.output
        if stream.closed:
            return []
        tokens, chars = output.reported, stream.shown
        delta = output.delta()
        if delta is None:
            return []
        for text, _ in delta.spans:
            stream.shown += len(text)
        ended = None
        if output.finish_reason is not None:
            stream.closed = True
            cached = output.num_cached_tokens
            ended = RequestSummary(output.prompt_len, output.error, output.counts, output.queue_s, cached)
        return [OutputDelta(delta, tokens, chars, ended)]


def _drafts_of(frame: OutputFrame) -> Iterator[tuple[tuple[int, int], tuple[int, ...]]]:
    """Drafts by number and start."""
    ids, at = frame.emitted, 0
    for number, start, count in zip(frame.numbers, frame.starts, frame.counts, strict=True):
        rows = slice(at, at + max(count, 0))
        at = rows.stop
        yield (number, start), tuple(ids[rows])
