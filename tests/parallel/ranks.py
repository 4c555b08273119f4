"""Ranks as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from specdec_hal.errors import RankMismatchError


class Threads:
    """A group of threads: each puts its value down, all meet, all read."""

    def __init__(self, size: int) -> None:
        self.size, self._values = size, [None] * size
        self._barrier = threading.Barrier(size, timeout=60)

    def rank(self, rank: int) -> Any:
        return ThreadRank(self, rank)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        """work(group) on every rank at once; what each gave, or raised."""

        def guarded(rank: int) -> Any:
            try:
                return work(self.rank(rank))
            except RankMismatchError as error:  # every rank finds it
                return error
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(guarded, range(self.size)))


class ThreadRank:
    capturable = False

    def __init__(self, threads: Threads, rank: int) -> None:
        self.rank, self.size, self._threads = rank, threads.size, threads

    def gather(self, tensor: Any) -> Any:
        import torch

        return torch.stack(self.gather_objects(tensor))

    def gather_objects(self, value: Any) -> list[Any]:
        return self._threads.exchange(self.rank, value)
