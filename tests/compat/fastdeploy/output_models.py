"""FastDeploy's ops on emitted tokens in NumPy, one slot after the other. See `models`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def stop_sequences(
    tokens: Array, counts: Array, text: Array, prompts: Array, step: Array, seqs: Array, lens: Array, end: int,
    least: Array,
) -> None:  # fmt: skip
    """An end token takes the place of the first emitted token that a sequence stands before."""
    for b in range(len(counts)):
        older = text[b, prompts[b] : prompts[b] + step[b]].tolist()
        wanted = [seqs[b, q, : lens[b, q]].tolist() for q in range(lens.shape[1]) if lens[b, q] > 0]
        for i in range(counts[b]):
            before = older + tokens[b, :i].tolist()
            if len(before) >= least[b] and any(before[-len(s) :] == s for s in wanted):
                counts[b], tokens[b, i] = i + 1, end
                break


def set_value(
    text: Array, prompts: Array, tokens: Array, counts: Array, stop: Array, slots: int, enc: Array, dec: Array,
    step: Array,
) -> None:  # fmt: skip
    for b in range(slots):
        if stop[b] or (enc[b] == 0 and dec[b] == 0) or step[b] < 0:
            continue
        for i in range(counts[b]):
            column = prompts[b] + step[b] - i
            if prompts[b] <= column < text.shape[1]:
                text[b, column] = tokens[b, counts[b] - 1 - i]


def get_logits(out: Array, logits: Array, first: Array, slt: Array, enc: Array) -> tuple[Array, Array]:
    """The number of the slots' rows of `logits`, and of `out`, which gets them."""
    source = target = 0
    counts = []
    for b in range(len(slt)):
        rows = 1 if enc[b] != 0 else int(slt[b])
        if enc[b] != 0:
            out[target] = first[b]
            target += 1
        out[target : target + rows] = logits[source : source + rows]
        source, target = source + rows, target + rows
        counts.append((rows, rows + int(enc[b] != 0)))
    own, both = np.array(counts, np.int32).reshape(-1, 2).T
    return own, both


def reasoning(
    logits: Array, text: Array, prompts: Array, stop: Array, slt: Array, enc: Array, step: Array, allowed: Array,
    status: Array, cu_out: Array, enable: Array, end: int, newline: int,
) -> None:  # fmt: skip
    for b in range(len(slt)):
        if stop[b] or status[b] == 3 or cu_out[b] == cu_out[b + 1]:
            continue
        t = [int(text[b, prompts[b] + step[b] - 1 - k]) if step[b] > k else -1 for k in range(4)]
        if status[b] == 2:
            status[b] = 3
        elif status[b] == 0 and not enable[b] and enc[b] > 0 and step[b] == 0:
            status[b] = 2
        elif status[b] == 0 and end in t:
            status[b] = 1
        if status[b] == 1 and step[b] >= 4:
            if (t[3], t[2], t[1], t[0]) == (newline, end, newline, newline):
                status[b] = 2
            elif end not in t:
                status[b] = 3
        if status[b] == 2 and len(allowed):
            row = logits[cu_out[b]]
            kept = row[allowed].copy()
            row[:] = -1e10 if row.dtype == np.float32 else -1e4
            row[allowed] = kept
