"""KV blocks: which of the pool's belong to which request (Kwon et al. 2023, PagedAttention)."""

from __future__ import annotations


class BlockPool:
    """`num_blocks` blocks of `block_size` positions each. Taking and giving back are O(blocks moved)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks that nobody has."""
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
            blocks.append(self._free.pop())
        return True

    def release(self, blocks: list[int]) -> None:
        """Take all of `blocks` back."""
        self._free += reversed(blocks)
        blocks.clear()
