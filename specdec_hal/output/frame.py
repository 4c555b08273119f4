"""OutputFrame: one step's tokens as one length-prefixed, versioned binary frame (contract, section 7).

Little-endian: u32 length of everything behind it; magic; u16 version; u8 flags; u8 zero; u32 slots B, u32 N, u32 S;
int32 count per slot; then, for the A = sum of positive counts tokens in slot order, int64 ids [A, N], float32 scores
[A, N] and int64 ranks [A]. Only what exists is sent. A frame is accepted whole or not at all.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import FrameError

MAGIC = b"SDOF"
VERSION = 1
NOTHING, RECOVERY, PREEMPTED = 0, -3, -9
"""Counts that are no number of tokens: the slot gave nothing, its request recovers, or it was preempted."""

_PREFIX = struct.Struct("<I")
_HEADER = struct.Struct("<4sHBBIII")


class FrameKind(IntEnum):
    """The `flags` of a frame: tokens of the target model, or drafts."""

    TARGET = 3
    DRAFT = 4


@dataclass(frozen=True, eq=False)
class OutputFrame:
    """One step's output.

    counts int32 [B]: tokens per slot, at most S, or NOTHING, RECOVERY, PREEMPTED; ids int64 [A, N] with column 0 the
    emitted token; scores float32 [A, N]; ranks int64 [A]. N = 1 + top log-probabilities. Errors are FrameError.
    """

    flags: int
    max_tokens: int
    counts: NDArray[np.int32]
    ids: NDArray[np.int64]
    scores: NDArray[np.float32]
    ranks: NDArray[np.int64]

    def encode(self) -> bytes:
        """The frame as bytes, length prefix included."""
        n = self.ids.shape[1] if self.ids.ndim == 2 else 0
        total = _check_header(self.flags, n, self.max_tokens, np.asarray(self.counts))
        parts: list[bytes] = [np.ascontiguousarray(self.counts, "<i4").tobytes()]
        for name, dtype, shape in (
            ("ids", "<i8", (total, n)),
            ("scores", "<f4", (total, n)),
            ("ranks", "<i8", (total,)),
        ):
            array: NDArray[Any] = getattr(self, name)
            if array.shape != shape or array.dtype != np.dtype(dtype):
                raise FrameError(
                    f"{name}: expected {np.dtype(dtype)} {list(shape)}, got {array.dtype} {list(array.shape)}"
                )
            parts.append(np.ascontiguousarray(array, dtype).tobytes())
        body = _HEADER.pack(MAGIC, VERSION, self.flags, 0, len(self.counts), n, self.max_tokens) + b"".join(parts)
        return _PREFIX.pack(len(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> OutputFrame:
        """The frame that `data` is, no more and no less."""
        reader = FrameReader()
        frames = reader.feed(data)
        if len(frames) != 1 or reader.pending:
            raise FrameError(f"expected exactly one frame, got {len(frames)} and {reader.pending} bytes of another")
        return frames[0]


def _check_header(flags: int, n: int, max_tokens: int, counts: NDArray[Any]) -> int:
    """The number of tokens, if the header makes sense."""
    if not 0 <= flags < 256:
        raise FrameError(f"flags: expected 8 bits, got {flags}")
    if n < 1:
        raise FrameError(f"N: expected at least 1 (the emitted token itself), got {n}")
    if max_tokens < 1:
        raise FrameError(f"S: expected at least 1, got {max_tokens}")
    wrong = [c for c in counts.tolist() if c > max_tokens or (c < 0 and c not in (RECOVERY, PREEMPTED))]
    if wrong:
        raise FrameError(f"count: expected 0..{max_tokens}, {RECOVERY} or {PREEMPTED}, got {wrong[0]}")
    return int(counts[counts > 0].sum())


class FrameReader:
    """Cuts a stream of bytes into frames, in order. A stream that is wrong once stays wrong: nothing is skipped."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._error: str = ""

    @property
    def pending(self) -> int:
        """Bytes of a frame that has not arrived completely."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[OutputFrame]:
        """Take more bytes; the frames that are now complete. FrameError for anything that cannot be a frame."""
        if self._error:
            raise FrameError(f"the stream has failed before ({self._error}); open a new one")
        self._buffer += data
        frames = []
        try:
            while (frame := self._next()) is not None:
                frames.append(frame)
        except FrameError as error:
            self._error = str(error)
            # Frames before the bad one are good: hand them out now, and fail at the next call.
            if not frames:
                raise
        return frames

    def _next(self) -> OutputFrame | None:
        head = _PREFIX.size + _HEADER.size
        if len(self._buffer) < head:
            return None
        (length,) = _PREFIX.unpack_from(self._buffer)
        magic, version, flags, zero, slots, n, max_tokens = _HEADER.unpack_from(self._buffer, _PREFIX.size)
        if magic != MAGIC or zero:
            raise FrameError(f"magic: expected {MAGIC!r}, got {bytes(magic)!r}; this is no output frame")
        if version != VERSION:
            raise FrameError(f"version: expected {VERSION}, got {version}; use the same specdec_hal on both ends")
        least = _HEADER.size + 4 * slots
        most = least + slots * max_tokens * (12 * n + 8)
        if not least <= length <= most:
            raise FrameError(f"length: expected {least}..{most} for {slots} slots, got {length}")
        if len(self._buffer) < _PREFIX.size + length:
            return None
        counts = np.frombuffer(self._buffer, "<i4", slots, head).copy()
        total = _check_header(flags, n, max_tokens, counts)
        expected = least + total * (12 * n + 8)
        if length != expected:
            raise FrameError(f"length: expected {expected} for {total} tokens, got {length}")
        at = head + 4 * slots
        arrays = []
        for dtype, count in (("<i8", total * n), ("<f4", total * n), ("<i8", total)):
            arrays.append(np.frombuffer(self._buffer, dtype, count, at).copy())
            at += arrays[-1].nbytes
        del self._buffer[:at]
        ids, scores, ranks = arrays
        return OutputFrame(flags, max_tokens, counts, ids.reshape(total, n), scores.reshape(total, n), ranks)
