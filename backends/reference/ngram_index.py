"""An n-gram index of one slot: finds the continuation of a query without reading the history.

A row of the index is int32: the number of tokens seen, then an open-addressing hash table. An entry is (n, first
continuation inside the prompt, first one inside the generated part, latest one); a continuation is the column of the
token after the n-gram, and 0 stands for none (no n-gram ends before column 0). The tokens themselves are the keys: an
entry is compared with the history at its latest continuation, so a hash collision costs a probe and nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops.enums import MatchPolicy

I64 = NDArray[np.int64]

_HEADER, _ENTRY = 4, 4  # int32 words


def index_bytes(row_width: int, min_ngram_size: int, max_ngram_size: int) -> int:
    """Bytes of an index row for histories of up to `row_width` tokens: 32 to 64 per token and n-gram size."""
    return 4 * (_HEADER + _ENTRY * _capacity(row_width * (max_ngram_size - min_ngram_size + 1)))


def _capacity(entries: int) -> int:
    return 1 << (2 * max(entries, 1) - 1).bit_length()


def _hash(gram: I64) -> int:
    """FNV-1a over the tokens and their number."""
    value = 0xCBF29CE484222325 ^ len(gram)
    for token in gram.tolist():
        value = ((value ^ (token & 0xFFFFFFFFFFFFFFFF)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 29)


class NgramIndex:
    """One row of the index tensor, over one slot's history of `length` tokens."""

    def __init__(self, row: NDArray[np.uint8], min_size: int, max_size: int, length: int) -> None:
        words = row[: row.size - row.size % 4].view(np.int32)
        self.header = words[:_HEADER]
        capacity = 1 << (((len(words) - _HEADER) // _ENTRY).bit_length() - 1)
        self.table = words[_HEADER : _HEADER + capacity * _ENTRY].reshape(capacity, _ENTRY)
        self.sizes = range(min_size, max_size + 1)
        self.length = length

    def _entry(self, text: I64, gram: I64) -> NDArray[np.int32]:
        """The gram's entry, or the empty one where it belongs."""
        n, mask = len(gram), len(self.table) - 1
        at = _hash(gram) & mask
        for _ in range(len(self.table)):
            entry = self.table[at]
            after = int(entry[3])
            if entry[0] == 0 or (entry[0] == n and np.array_equal(text[max(after - n, 0) : after], gram)):
                break
            at = (at + 1) & mask
        found: NDArray[np.int32] = self.table[at]
        return found

    def extend(self, text: I64, prompt_len: int) -> None:
        """Enter every n-gram whose following token arrived since the last call."""
        seen = min(max(int(self.header[0]), 0), len(text))
        for after in range(max(seen, 1), len(text)):
            for n in self.sizes:
                start = after - n
                if start < 0:
                    break
                entry = self._entry(text, text[start:after])
                entry[0], entry[3] = n, after
                if after < prompt_len and entry[1] == 0:
                    entry[1] = after
                if start >= prompt_len and entry[2] == 0:
                    entry[2] = after
        self.header[0] = len(text)

    def continuation(self, text: I64, prompt_len: int, query: I64, policy: MatchPolicy) -> tuple[int, int] | None:
        """As `ngram.continuation`; `text` may extend beyond the indexed history (MTP drafts)."""
        n = len(query)
        beyond = [
            after for after in range(max(self.length, n), len(text)) if np.array_equal(text[after - n : after], query)
        ]
        entry = self._entry(text[: self.length], query)
        in_prompt, in_generated, latest = (int(after) if entry[0] == n else 0 for after in entry[1:])
        # An index that was not kept up to date may point anywhere: only what lies inside the haystack counts.
        if policy is MatchPolicy.LATEST:
            after = beyond[-1] if beyond else latest
            return (after, len(text)) if 0 < after < len(text) else None
        if 0 < in_prompt < prompt_len:
            return in_prompt, prompt_len
        if not prompt_len < in_generated < len(text):
            in_generated = next((after for after in beyond if after - n >= prompt_len), 0)
        return (in_generated, len(text)) if in_generated else None
