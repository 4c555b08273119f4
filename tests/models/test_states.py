"""States of recurrent layers that are copied for other texts."""

from __future__ import annotations

from typing import Any

import pytest

import specdec_hal as sd
from specdec_hal.ops import Storage
from specdec_hal.plugin.model import Segment

pytestmark = pytest.mark.torch
TOKENS = 12


@pytest.mark.parametrize("storage", Storage)
@pytest.mark.parametrize("before", [0, 4, 8])
def test_a_text_continues_in_another_slot(storage: Storage, before: int) -> None:
    """After a text of `before` tokens there: with REPLAY, the checkpoint of 8 is behind 4 others."""
    torch = pytest.importorskip("torch")
    from specdec_hal.models.states import DELTA_RULE, Recurrence, StateStore

    layer = Recurrence(0, 8, 3, (2, 4, 4), DELTA_RULE, 2)
    store = StateStore(
        [layer], 2, 1, sd.get_backend("reference"), dtype=torch.float32, device="cpu", storage=storage, prefixes=2
    )
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (8,), "q": (2, 4), "k": (2, 4), "v": (2, 4), "decay": (2,), "beta": (2,)}
    text, other = (
        {name: torch.randn((TOKENS, *shape), generator=generator) for name, shape in shapes.items()} for _ in range(2)
    )
    weight = torch.randn((8, 3), generator=generator)

    def step(slot: int, inputs: dict[str, Any], start: int, end: int) -> list[Any]:
        rows = {name: x[start:end] for name, x in inputs.items()}
        rows |= {name: rows[name].sigmoid() for name in ("decay", "beta")}
        store.begin_segments([Segment(slot, 0, end - start, start)], 0, end - start)
        convolved = store.convolve(layer, rows["x"], weight, None, True).clone()
        out = store.delta_rule(layer, rows["q"], rows["k"], rows["v"], rows["decay"], rows["beta"]).clone()
        store.end(end - start)
        return [convolved, out]

    step(0, text, 0, 8)
    assert store.keeps(8) and store.keeps(6) == (storage is Storage.STATES)
    store.keep(0, 8, 1)
    for start in range(0, before, 4):
        step(1, other, start, start + 4)
    store.resume(1, 1, 8)
    for start in (8, 10):
        expected, got = (step(slot, text, start, start + 2) for slot in (0, 1))
        assert all(torch.equal(one, two) for one, two in zip(expected, got, strict=True))
