"""The garbage collector. Free memory: tests/runner/test_footprint.py."""

from __future__ import annotations

import gc
import weakref

from specdec_hal.tensors.memory import age_heap, collector_paused, freeze_heap


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


def test_a_pause_within_a_pause_does_not_end_it() -> None:
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_aged_heap_is_left_to_full_collections_and_frozen_objects_stay() -> None:
    cycle = Cycle()
    alive = weakref.ref(cycle)
    with collector_paused():
        age_heap()
        del cycle
        gc.collect(1)
        assert alive() is not None
        gc.collect()
        assert alive() is None
    try:
        gc.freeze()
        frozen = gc.get_freeze_count()
        age_heap()
        assert gc.get_freeze_count() > 0.9 * frozen  # a thread of another test may have freed some
    finally:
        gc.unfreeze()
