"""KV blocks: which of the pool's belong to which request, and which hold a known text (automatic prefix caching).

A full block is found again by a digest of all tokens up to its end (:func:`block_keys`), whether a request uses it or
it is free. Free blocks keep their contents until they are taken, the least recently used first. Requests share found
blocks; nobody writes to them, since a request computes from the first block on that it has not found.

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
    """`num_blocks` blocks of `block_size` positions each. Taking and giving back are O(blocks moved)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        """In the order in which they are taken."""
        self._users = [0] * num_blocks
        self._key = [NO_KEY] * num_blocks
        self._drafted = [False] * num_blocks
        self._cached: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody uses, those that hold a known text among them."""
        return len(self._free)

    def needed(self, positions: int) -> int:
        """Blocks that hold so many positions."""
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
        """Take all of `blocks` back; those that others use stay theirs. The last of a text is taken again first."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
                if not self._key[block]:
                    self._free.move_to_end(block, last=False)
        blocks.clear()

    # ---- known texts

    def find(self, keys: Iterable[bytes], drafted: bool) -> list[int]:
        """The blocks of a text's first keys, as far as they are known. `drafted`: with the drafter's rows alone."""
        found = []
        for key in keys:
            block = self._cached.get(key)
            if block is None or (drafted and not self._drafted[block]):
                break
            found.append(block)
        return found

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these nobody uses."""
        return sum(not self._users[block] for block in blocks)

    def share(self, found: Iterable[int]) -> None:
        """Use blocks that :meth:`find` has found, beside whoever else does."""
        for block in found:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1

    def register(self, block: int, key: bytes, drafted: bool) -> None:
        """A block in use is full, and holds the text of `key`. `drafted`: the drafter's rows are there too.

        The first block of a text counts, unless only a later one has the drafter's rows.
        """
        known = self._cached.get(key)
        if known is not None:
            if known == block or self._drafted[known] or not drafted:
                return
            self._forget(known)
        self._cached[key], self._key[block], self._drafted[block] = block, key, drafted

    def forget(self, blocks: Iterable[int]) -> None:
        """The texts of these blocks are found no more; blocks in use stay in use."""
        for block in blocks:
            self._forget(block)

    def reset(self) -> None:
        """No text is found any more."""
        self.forget(list(self._cached.values()))

    def _forget(self, block: int) -> None:
        if key := self._key[block]:
            del self._cached[key]
            self._key[block] = NO_KEY


def block_keys(
    keys: list[bytes],
    length: int,
    tokens: Callable[[int, int], NDArray[np.int64]],
    block_size: int,
    lookahead: int,
    salt: str | None,
) -> list[bytes]:
    """`keys`, the first blocks' of a text, continued in place to the last block that its `length` tokens fill.

    A key is a digest of `salt` and all tokens up to `lookahead` after the block's end, which its rows depend on: equal
    keys mean equal rows. `tokens(start, end)` reads the text.
    """
    last = keys[-1] if keys else sha256(b"" if salt is None else b"salt" + salt.encode()).digest()
    for at in range(len(keys), max(length - lookahead, 0) // block_size):
        start, end = at * block_size + (lookahead if at else 0), (at + 1) * block_size + lookahead
        last = sha256(last + tokens(start, end).tobytes()).digest()
        keys.append(last)
    return keys
