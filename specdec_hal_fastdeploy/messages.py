"""Messages from FastDeploy's runner to its token processor: layout, writing, reading.

Two layouts of 32-bit words after the queue's 64-bit type. Plain: stop flag, slots B, a count for each of 256 slots,
then 6 tokens of each. With scores: stop flag, meta, B, a count for each of 512 slots, then for each slot 6 rows of 21
tokens (the emitted one, then the most likely), 6 of 21 scores, 6 ranks. The int meta holds the kind of tokens
in its low 8 bits and N, the columns that are filled, above them (PR #7883). Before that PR it is the kind alone, and
all 21 columns are read; those that are not filled hold -1 and 0. A count is that of a slot's tokens, 0 for none, or -9
where its request was preempted. The stop flag is a number of the queue's users, negative once nothing runs any more.

FastDeploy sends 530,448 bytes each time. Slots after the first B are not read, so a message here ends after slot B - 1:
readers accept shorter messages, and the queue holds more of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import FrameError
from specdec_hal.serve.frame_codes import PREEMPTED, FrameKind

Array = NDArray[Any]

WIDTH = 6
"""Most tokens of a slot."""
COLUMNS = 21
"""At most the emitted token and the 20 most likely."""
PLAIN_SLOTS, SCORED_SLOTS = 256, 512
NOTHING_RECEIVED = -2

_TOKENS_AT, _ROWS_AT = 16 + 4 * PLAIN_SLOTS, 20 + 4 * SCORED_SLOTS
"""Where what belongs to the slots begins."""

PLAIN = np.dtype(
    {
        "names": ["type", "stop", "slots", "counts", "tokens"],
        "formats": ["<i8", "<i4", "<i4", f"({PLAIN_SLOTS},)<i4", f"({PLAIN_SLOTS},{WIDTH})<i4"],
        "offsets": [0, 8, 12, 16, _TOKENS_AT],
        "itemsize": 8 + 4 * (2 + PLAIN_SLOTS * (1 + WIDTH)),
    }
)
SLOT = np.dtype(
    [("tokens", f"({WIDTH},{COLUMNS})<i4"), ("scores", f"({WIDTH},{COLUMNS})<f4"), ("ranks", f"({WIDTH},)<i4")]
)
SCORED = np.dtype(
    {
        "names": ["type", "stop", "meta", "slots", "counts", "rows"],
        "formats": ["<i8", "<i4", "<i4", "<i4", f"({SCORED_SLOTS},)<i4", (SLOT, (SCORED_SLOTS,))],
        "offsets": [0, 8, 12, 16, 20, _ROWS_AT],
        "itemsize": 24 + SCORED_SLOTS * (4 + SLOT.itemsize),  # as C's: a multiple of 8
    }
)


def pack_meta(kind: int, columns: int) -> int:
    """meta of `kind` and N = `columns`; FrameError if they do not fit its bits or a row."""
    if kind not in tuple(FrameKind):
        raise FrameError(f"message_flag: expected 3 (target tokens) or 4 (draft tokens), got {kind}")
    if not 1 <= columns <= COLUMNS:
        hint = f"ask for at most {COLUMNS - 1} log-probabilities"
        raise FrameError(f"N: expected 1..{COLUMNS} columns, got {columns}; {hint}")
    return kind | columns << 8


def unpack_meta(meta: int) -> tuple[FrameKind, int]:
    """Kind and N, which is 21 for a bare kind; FrameError for an invalid meta."""
    if meta in tuple(FrameKind):
        return FrameKind(meta), COLUMNS
    kind, columns = meta & 0xFF, meta >> 8
    if pack_meta(kind, columns) != meta:
        raise FrameError(f"meta: expected kind and N, got {meta:#x}")
    return FrameKind(kind), columns


def sent_counts(given: Array, decoder: Array, prompts: Array, preempted: Array, most: int, drafts: int = 0) -> Array:
    """Counts per slot: its tokens, none inside the prompt, or the mark of a preemption.

    `drafts` more where there are any.
    """
    slots = len(given)
    if slots > most:
        raise FrameError(f"slots: expected at most {most}, got {slots}; lower max_num_seqs")
    counts = np.where(decoder[:slots] < prompts[:slots], 0, np.maximum(given, 0))
    counts = np.where(counts > 0, counts + drafts, 0)
    counts = np.where(preempted[:slots] == 1, PREEMPTED, counts)
    if slots and counts.max() > WIDTH:
        raise FrameError(f"count: expected at most {WIDTH} tokens a slot, got {counts.max()}; draft fewer")
    return counts


class PlainMessage:
    """Reused memory of a message of emitted tokens."""

    def __init__(self) -> None:
        self._memory = np.zeros(1, PLAIN)
        self._memory["type"] = 1

    def write(self, stop: int, counts: Array, tokens: Array) -> Array:
        """The message's bytes: `counts` [B] of :func:`sent_counts`, `tokens` [B, S]."""
        slots, width = len(counts), min(tokens.shape[1], WIDTH)
        _check_width(counts, tokens.shape[1])
        message = self._memory[0]
        message["stop"], message["slots"] = stop, slots
        message["counts"][:slots] = counts
        message["tokens"][:slots, :width] = tokens[:slots, :width]
        return self._memory.view(np.uint8)[: _TOKENS_AT + slots * WIDTH * 4]


class ScoredMessage:
    """Reused memory of a message of tokens with N scores each; `packed`: N is in meta."""

    def __init__(self, packed: bool = True) -> None:
        self._memory = np.zeros(1, SCORED)
        self._memory["type"] = 1
        self._packed = packed

    @property
    def whole(self) -> Array:
        """The bytes of all slots, as FastDeploy sends them."""
        return self._memory.view(np.uint8)

    def write(
        self, stop: int, kind: int, counts: Array, tokens: Array, ids: Array, scores: Array, ranks: Array,
        starts: Array, unscored: int = 0,
    ) -> Array:  # fmt: skip
        """The message's bytes. `counts` [B] of :func:`sent_counts`, `tokens` [B, S], or [A] in the order of the rows;
        slot b has the rows from starts[b] on of `ids` [A, N], `scores` [A, N] and `ranks` [A], but for its last
        `unscored` tokens.

        FrameError, without writing, if they do not fit.
        """
        slots, columns = len(counts), ids.shape[1]
        meta = pack_meta(kind, columns) if self._packed else pack_meta(kind, columns) & 0xFF
        slot, column = np.nonzero(np.arange(WIDTH) < counts[:, None])
        row = starts[:slots][slot] + column
        there = column < counts[slot] - unscored
        chosen = _chosen(tokens, counts, slot, column, row)
        _check_rows(row[there], min(len(ids), len(scores), len(ranks)))
        message = self._memory[0]
        message["stop"], message["meta"], message["slots"] = stop, meta, slots
        message["counts"][:slots] = counts
        rows = message["rows"]
        if unscored or not self._packed:
            rows["tokens"][slot, column, 1:], rows["scores"][slot, column], rows["ranks"][slot, column] = -1, 0, 0
        rows["tokens"][slot, column, 0] = chosen
        slot, column, row = slot[there], column[there], row[there]
        rows["tokens"][slot, column, 1:columns] = ids[row, 1:]
        rows["scores"][slot, column, :columns] = scores[row]
        rows["ranks"][slot, column] = ranks[row]
        return self._memory.view(np.uint8)[: _ROWS_AT + slots * SLOT.itemsize]


def _chosen(tokens: Array, counts: Array, slot: Array, column: Array, row: Array) -> Array:
    if tokens.ndim == 1:
        _check_rows(row, len(tokens))
        return tokens[row]
    _check_width(counts, tokens.shape[1])
    return tokens[slot, column]


def _check_rows(row: Array, count: int) -> None:
    if row.size and not 0 <= row.min() <= row.max() < count:
        raise FrameError(f"rows: expected 0..{count - 1}, got {row.min()}..{row.max()}; pass their offsets")


def _check_width(counts: Array, width: int) -> None:
    if counts.size and counts.max() > width:
        raise FrameError(f"count: expected at most {width}, the width of the tokens, got {counts.max()}")


@dataclass(frozen=True)
class Scored:
    """The reader's view of a message with scores, limited to its slots and columns.

    Of both kinds: one whose meta is the kind alone has all 21 columns.

    counts int32 [B], tokens int32 and scores float32 [B, 6, N], ranks int32 [B, 6]; only the first counts[b] tokens of
    slot b are defined.
    """

    stop: int
    kind: FrameKind
    counts: Array
    tokens: Array
    scores: Array
    ranks: Array


def read_scored(memory: Array, size: int) -> Scored:
    """The message in `memory` (SCORED [1]), of which `size` bytes were received after the type.

    FrameError for an invalid or truncated message.
    """
    message = memory[0]
    kind, columns = unpack_meta(int(message["meta"]))
    slots = int(message["slots"])
    whole = _ROWS_AT + slots * SLOT.itemsize
    if not 0 <= slots <= SCORED_SLOTS or size + 8 < whole:
        raise FrameError(f"slots: expected those of {size} bytes, got {slots}")
    counts, rows = message["counts"][:slots], message["rows"][:slots]
    wrong = counts[(counts > WIDTH) | ((counts < 0) & (counts != PREEMPTED))]
    if wrong.size:
        raise FrameError(f"count: expected 0..{WIDTH} or {PREEMPTED}, got {wrong[0]}")
    cut = {name: rows[name][:, :, :columns] for name in ("tokens", "scores")}
    return Scored(int(message["stop"]), kind, counts, **cut, ranks=rows["ranks"])
