"""OutputFrame: one step's output as a message of a numbered session (contract, section 7).

MessagePack by msgspec, twice as fast as hand-packed structs: small values as lists, per-token data as little-endian
bytes copied from the step's buffers. Absent data is not sent: without log-probabilities a token has one id and no
score. A frame is accepted whole or not at all.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np

from specdec_hal.errors import FrameError
from specdec_hal.request import Drafts, FinishReason, TokenLogprobs
from specdec_hal.serve.frame_codes import PREEMPTED, RECOVERY

VERSION = 4
NOTHING = memoryview(b"")
MAX_FRAME_BYTES = 1 << 28
"""Most bytes of a frame: 8,192 slots of 32 tokens with 20 alternatives each take a quarter of it."""


class StreamStart(msgspec.Struct, array_like=True, frozen=True):
    """A request with its number for later entries and its output so far."""

    number: int
    request_id: str
    prompt_tokens: int
    max_new_tokens: int
    params: dict[str, Any]
    """Those that are not defaults of :class:`~specdec_hal.request.SamplingParams`."""
    queue_s: float | None
    token_ids: list[int] = []
    accepted_draft: list[bool] = []
    logprobs: list[TokenLogprobs] = []
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)
    """See :class:`specdec_hal.request.StreamDelta`."""
    prompt_logprobs: list[TokenLogprobs | None] = []
    drafts: list[Drafts] = []
    prompt_tail: list[int] = []
    """The prompt's last tokens, which may affect the following text."""
    num_cached_tokens: int = 0


class PromptScores(msgspec.Struct, array_like=True, frozen=True):
    """Log-probabilities of a prompt's tokens from position `first` on."""

    number: int
    first: int
    entries: list[TokenLogprobs]


class StreamEnd(msgspec.Struct, array_like=True, frozen=True):
    """The end of a request in the engine, after its tokens in the same frame."""

    number: int
    reason: FinishReason
    error: str


class OutputFrame(msgspec.Struct, array_like=True, frozen=True, tag=f"specdec_hal output {VERSION}"):
    """One step's output.

    Entry i is for request `numbers[i]`: `counts[i]` tokens, at most S = `max_tokens`, after its first `starts[i]`, or
    RECOVERY or PREEMPTED; `drafted[i]` drafts were verified, -1 in prefill. `accepted_draft` has a byte for each of the
    A tokens of all entries, `ids` int64 [A, N]. With log-probabilities there are also `scores` float32 [A, N] and
    `ranks` int64 [A], and N = 1 + alternatives; else N = 1. Column 0 is the emitted token.

    A DRAFT frame carries, for requests with return_drafts, the drafts that the next TARGET frame verified; entries
    match by (number, start). It only has entries and tokens, and is never frame 0.

    `prompts` come before the first tokens of their requests, or with them.

    Frame 0 starts a session: its `streams` are complete, and `end_tokens` are the model's.
    """

    session: int
    sequence: int
    flags: int
    n: int
    max_tokens: int
    numbers: list[int] = []
    starts: list[int] = []
    counts: list[int] = []
    drafted: list[int] = []
    accepted_draft: bytes = b""
    ids: memoryview = NOTHING
    scores: memoryview = NOTHING
    ranks: memoryview = NOTHING
    streams: list[StreamStart] = []
    ended: list[StreamEnd] = []
    released: list[int] = []
    end_tokens: list[int] = []
    prompts: list[PromptScores] = []

    def encode(self) -> bytes:
        """The frame as bytes; FrameError for inconsistent fields or too many bytes."""
        self._check()
        data = _encoder.encode(self)
        _check_length(len(data))
        return data

    @classmethod
    def decode(cls, data: bytes) -> OutputFrame:
        """Decode exactly one frame; FrameError for anything else."""
        _check_length(len(data))
        frame = decode(_decoder, data, f"an output frame of version {VERSION}")
        frame._check()
        return frame

    @property
    def emitted(self) -> list[int]:
        """The tokens of all entries."""
        ids: list[int] = np.frombuffer(self.ids, "<i8")[:: self.n].tolist()
        return ids

    def logprobs(self, rows: slice, top: int) -> list[TokenLogprobs]:
        """Log-probabilities of these tokens, with `top` alternatives each; empty if there are none."""
        if not self.ranks.nbytes:
            return []
        ids = np.frombuffer(self.ids, "<i8").reshape(-1, self.n)[rows, : top + 1]
        scores = np.frombuffer(self.scores, "<f4").reshape(-1, self.n)[rows, : top + 1]
        return TokenLogprobs.rows(ids.tolist(), scores.tolist(), np.frombuffer(self.ranks, "<i8")[rows].tolist(), top)

    def _check(self) -> None:
        if not 0 <= self.flags < 256:
            raise FrameError(f"flags: expected 8 bits, got {self.flags}")
        if self.n < 1:
            raise FrameError(f"N: expected at least 1 (the emitted token itself), got {self.n}")
        if self.max_tokens < 1:
            raise FrameError(f"S: expected at least 1, got {self.max_tokens}")
        entries = len(self.numbers)
        for name in ("starts", "counts", "drafted"):
            if len(got := getattr(self, name)) != entries:
                raise FrameError(f"{name}: expected one for each of {entries} entries, got {len(got)}")
        counts, total = self.counts, sum(self.counts)
        if entries and (min(counts) < 0 or max(counts) > self.max_tokens):
            wrong = [c for c in counts if not 0 <= c <= self.max_tokens and c not in (RECOVERY, PREEMPTED)]
            if wrong:
                raise FrameError(f"count: expected 0..{self.max_tokens}, {RECOVERY} or {PREEMPTED}, got {wrong[0]}")
            total = sum(c for c in counts if c > 0)
        scored = total if self.ranks.nbytes else 0
        for name, size in (
            ("accepted_draft", total),
            ("ids", 8 * total * self.n),
            ("scores", 4 * scored * self.n),
            ("ranks", 8 * scored),
        ):
            if (bytes_ := memoryview(getattr(self, name)).nbytes) != size:
                raise FrameError(f"{name}: expected {size} bytes for {total} tokens and N = {self.n}, got {bytes_}")


class FrameReader:
    """Decodes frames and checks their order.

    Frame 0 of a session is always accepted, as it is complete. Each later frame must follow the previous one.
    """

    def __init__(self) -> None:
        self._session: int | None = None
        self._expected = 0
        self.stale = 0
        """Skipped frames of sessions without a received frame 0; the next frame 0 repeats their content."""

    def feed(self, data: bytes) -> OutputFrame | None:
        """The frame; None if it is stale.

        FrameError for a gap, a reordering, another session or an invalid frame; then all frames are stale until the
        next frame 0.
        """
        try:
            frame = OutputFrame.decode(data)
            if frame.sequence == 0:
                self._session = frame.session
            elif self._session is None:
                self.stale += 1
                return None
            elif frame.session != self._session:
                raise FrameError(
                    f"session: expected {self._session}, got {frame.session}; it did not begin with frame 0"
                )
            elif frame.sequence != self._expected:
                kind = "frames are missing" if frame.sequence > self._expected else "a frame came late or twice"
                raise FrameError(f"sequence: expected frame {self._expected}, got {frame.sequence}: {kind}")
        except FrameError:
            self._session = None
            raise
        self._expected = frame.sequence + 1
        return frame


Message = TypeVar("Message")


def decode(decoder: msgspec.msgpack.Decoder[Message], data: bytes, what: str) -> Message:
    """Decode `data`; FrameError if it is not `what`."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"expected {what}, got {len(data)} bytes that are not: {error}") from error


def _check_length(length: int) -> None:
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"length: expected at most {MAX_FRAME_BYTES} bytes, got {length}")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(OutputFrame)
