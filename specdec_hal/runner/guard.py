"""Exclusive use of a runner (one thread, outside callbacks), and ownership of a model's KV cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from specdec_hal.errors import EngineDeadError, RunnerBusyError


class Guard:
    """Held during :meth:`ModelRunner.step`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self.closed = False

    def close(self) -> bool:
        """Refuse further calls; returns whether no call is running."""
        self.closed = True
        return self._owner is None

    @contextmanager
    def driving(self, what: str) -> Iterator[None]:
        """Hold the runner; RunnerBusyError if it is held already, EngineDeadError once it was closed."""
        while not self._lock.acquire(blocking=False):
            self.outside(what)
        self._owner = threading.get_ident()
        try:
            if self.closed:
                raise EngineDeadError(f"{what}(): expected a runner that works, got one that was closed; make another")
            yield
        finally:
            self._owner = None
            self._lock.release()

    def outside(self, what: str) -> None:
        """RunnerBusyError if the runner is held."""
        self.check(what)
        if self._owner is not None:
            raise RunnerBusyError(
                f"{what}(): expected a call from outside a step, got one from a callback of this runner's step; return "
                "from the callback first, or give the other requests a runner of their own"
            )

    def check(self, what: str) -> None:
        """RunnerBusyError if another thread holds the runner; callbacks are allowed."""
        owner = self._owner
        if owner is not None and owner != threading.get_ident():
            raise RunnerBusyError(
                f"{what}(): expected one thread at a time, got a call while another thread is inside step(); drive a "
                "runner from one thread, or use AsyncEngine"
            )


_cache_owners: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Which runner each model's KV cache belongs to, by the id of its state."""


def claim_cache(model: Any, state: object) -> None:
    """The model's KV cache belongs to the runner with this state from now on."""
    _cache_owners[model] = id(state)


def owns_cache(model: Any, state: object) -> bool:
    """Whether this runner still owns the model's KV cache."""
    return _cache_owners.get(model) == id(state)


def check_cache(model: Any, state: object) -> None:
    """EngineDeadError if another runner has claimed the model's KV cache since."""
    if not owns_cache(model, state):
        raise EngineDeadError(
            "expected a model whose KV cache is this runner's, got one that a later runner took over; give each "
            "runner a model of its own, or finish with one before you make the next"
        )
