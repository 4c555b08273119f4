"""Where the ranks of one group meet to share GPU memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch.distributed import Store


class MemoryStore(Store):  # type: ignore[misc]
    """A group's store for PyTorch's symmetric memory, with exchanges numbered from 0.

    PyTorch numbers them (`CUDASymmetricMemory/NUMBER/RANK`) per process. A process that has shared memory in an earlier
    group would wait for ever, since its new ranks begin at 0. Methods are those of torch.distributed.Store.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store, self._first = store, -1

    def _key(self, key: str) -> str:
        name, number, rest = re.split(r"(\d+)", key, maxsplit=1)
        self._first = int(number) if self._first < 0 else self._first
        return f"{name}{int(number) - self._first}{rest}"

    def set(self, key: str, value: Any) -> None:  # noqa: D102
        self._store.set(self._key(key), value)

    def get(self, key: str) -> Any:  # noqa: D102
        return self._store.get(self._key(key))

    def multi_get(self, keys: Sequence[str]) -> list[Any]:  # noqa: D102
        return [self.get(key) for key in keys]

    def add(self, key: str, value: int) -> Any:  # noqa: D102
        return self._store.add(self._key(key), value)

    def wait(self, keys: Sequence[str], *timeout: Any) -> None:  # noqa: D102
        self._store.wait([self._key(key) for key in keys], *timeout)
