"""A few rounds of the soak, and proof that it finds what it looks for."""

from __future__ import annotations

import random
from typing import Any

import pytest

from specdec_hal.runner.blocks import BlockPool
from specdec_hal.runner.delivery import Delivery
from specdec_hal.runner.scheduler import Scheduler
from tests.support.scripts import script

soak = script("tools/soak.py")


@pytest.mark.parametrize("backend", ["reference", "xpu_sim"])
@pytest.mark.parametrize("seed", [*range(6), 1060733798, None])  # the latter two: a finding of old, a fresh one
def test_rounds(backend: str, seed: int | None) -> None:
    fresh = random.randrange(1 << 32) if seed is None else seed
    print(f"python tools/soak.py --backend {backend} --seed {fresh}")
    soak.Round(backend, fresh).run()


def lose_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    release = BlockPool.release

    def leaky(self: Any, blocks: list[int]) -> None:
        del blocks[3:4]
        release(self, blocks)

    monkeypatch.setattr(BlockPool, "release", leaky)


def lose_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    vacate = Scheduler._vacate

    def leaky(self: Any, sequence: Any) -> None:
        vacate(self, sequence)
        if sequence.finish_reason == "cancelled":
            self._free_slots.pop()

    monkeypatch.setattr(Scheduler, "_vacate", leaky)


def end_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Delivery.add
    monkeypatch.setattr(Delivery, "add", lambda self, seq: seq.finish_reason == "cancelled" or add(self, seq))


@pytest.mark.parametrize(
    ("breakage", "message"),
    [(lose_a_block, "a block is lost"), (lose_a_slot, "slots "), (end_silently, "its stream ended with")],
)
def test_what_it_finds(breakage: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breakage(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        for seed in range(40):
            soak.Round("reference", seed).run()
