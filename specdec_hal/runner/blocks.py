"""KV blocks: their owners, and their known texts (automatic prefix caching).

A full block, in use or free, is found by a digest of all tokens up to its end (:func:`block_keys`). Free blocks keep
their contents until reuse, least recently used first. Requests share found blocks read-only, since they compute from
the first missing block on.

Sources: Kwon et al. 2023, PagedAttention; Zheng et al. 2024, SGLang; vllm/v1/core/block_pool.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

NO_KEY = b""


class BlockPool:
    """`num_blocks` blocks of `block_size` positions each. Allocation and release are O(blocks moved)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        """In the order of reuse."""
        self._users = [0] * num_blocks
        self._key = [NO_KEY] * num_blocks
        self._drafted = [False] * num_blocks
        self._cached: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Free blocks, including those with a known text."""
        return len(self._free)

    def needed(self, positions: int) -> int:
        """Blocks needed for this many positions."""
        return -(-positions // self.block_size)

    def extend(self, blocks: list[int], positions: int) -> bool:
        """Let `blocks` reach `positions`; False, with nothing taken, if the pool has too few."""
        missing = self.needed(positions) - len(blocks)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._users[block] = 1
            blocks.append(block)
        return True

    def release(self, blocks: list[int]) -> None:
        """Release `blocks`, except those still shared. The end of a text is reused first."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
                if not self._key[block]:
                    self._free.move_to_end(block, last=False)
        blocks.clear()

    # ---- known texts

    def find(self, keys: Iterable[bytes], drafted: bool) -> list[int]:
        """The known blocks of a text's first keys. `drafted`: only those with the drafter's rows."""
        found = []
        for key in keys:
            block = self._cached.get(key)
            if block is None or (drafted and not self._drafted[block]):
                break
            found.append(block)
        return found

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these are free."""
        return sum(not self._users[block] for block in blocks)

    def share(self, found: Iterable[int]) -> None:
        """Share blocks found by :meth:`find`."""
        for block in found:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1

    def register(self, block: int, key: bytes, drafted: bool) -> None:
        """Register a full block in use for `key`. `drafted`: with the drafter's rows.

        The first registered block counts, unless only a later one has the drafter's rows.
        """
        known = self._cached.get(key)
        if known is not None:
            if known == block or self._drafted[known] or not drafted:
                return
            self._forget(known)
        self._cached[key], self._key[block], self._drafted[block] = block, key, drafted

    def forget(self, blocks: Iterable[int]) -> None:
        """Forget the texts of these blocks, which may remain in use."""
        for block in blocks:
            self._forget(block)

    def reset(self) -> None:
        """Forget all texts."""
        self.forget(list(self._cached.values()))

    def _forget(self, block: int) -> None:
        if key := self._key[block]:
            del self._cached[key]
            self._key[block] = NO_KEY


class PrefixStates:
    """Which of `entries` copies of recurrent states belong to which text, found by the key of its last block.

    `keeps(rows)`: whether a model has the state after a chunk of so many rows. The least recently used one is replaced.
    """

    def __init__(self, entries: int, keeps: Callable[[int], bool]) -> None:
        self.entries, self.keeps = entries, keeps
        self._known: OrderedDict[bytes, int] = OrderedDict()

    def longest(self, keys: list[bytes]) -> int:
        """How many of a text's first blocks end where a state is known."""
        return next((blocks for blocks in range(len(keys), 0, -1) if keys[blocks - 1] in self._known), 0)

    def find(self, key: bytes) -> int:
        """The entry of a known state, which is used now."""
        self._known.move_to_end(key)
        return self._known[key]

    def add(self, key: bytes) -> int | None:
        """The entry for a new state; None if it is known."""
        if key in self._known or not self.entries:
            return None
        entry = len(self._known)
        if entry == self.entries:
            _, entry = self._known.popitem(last=False)
        self._known[key] = entry
        return entry

    def reset(self) -> None:
        """Forget all states."""
        self._known.clear()


def block_keys(
    keys: list[bytes], tokens: NDArray[np.int64], length: int, block_size: int, lookahead: int, salt: str | None
) -> None:
    """Extend `keys` of a text's first blocks in place to the last block that the first `length` of `tokens` fill.

    A key is a digest of `salt` and all tokens up to `lookahead` after the block's end, so equal keys mean equal rows.
    """
    known, last = len(keys), max(length - lookahead, 0) // block_size
    if last <= known:
        return
    start = known * block_size + (lookahead if known else 0)
    data = tokens[start : last * block_size + lookahead].astype(np.int32).tobytes()
    key = keys[-1] if keys else sha256(b"" if salt is None else b"salt" + salt.encode()).digest()
    at = 0
    for block in range(known + 1, last + 1):
        end = 4 * (block * block_size + lookahead - start)
        key = sha256(key + data[at:end]).digest()
        keys.append(key)
        at = end
