"""A few rounds of the soak."""

from __future__ import annotations

import random

import pytest

from tests.support.scripts import script

soak = script("tools/soak.py")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("seed", [*range(6), 1060733798, None])  # the latter two: a finding of old, a fresh one
def test_rounds(backend: str, seed: int | None) -> None:
    fresh = random.randrange(1 << 32) if seed is None else seed
    print(f"python tools/soak.py --backend {backend} --seed {fresh}")
    soak.Round(backend, fresh).run()
