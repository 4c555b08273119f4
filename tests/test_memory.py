"""Objects excluded from garbage collection. Free memory: tests/runner/test_footprint.py."""

from __future__ import annotations

import gc
import weakref

from specdec_hal.tensors.memory import freeze_heap


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_a_frozen_heap_is_not_visited_and_freezing_again_collects_it() -> None:
    cycle = Cycle()
    alive = weakref.ref(cycle)
    try:
        freeze_heap()
        assert gc.get_freeze_count() > 1000
        del cycle
        gc.collect()
        assert alive() is not None
        freeze_heap()
        assert alive() is None
    finally:
        gc.unfreeze()
