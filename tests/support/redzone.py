"""Arrays inside larger ones: what an op writes outside its tensors is seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_hal_conformance.guarded import GuardedHost


class RedZones:
    """Copies of a call's arrays, each with marked memory on both sides; `check` finds writes into it."""

    def __init__(self, call: dict[str, Any]) -> None:
        device = GuardedHost()
        self.placed = {n: device.place(v) for n, v in call.items() if isinstance(v, np.ndarray)}
        self.call = {n: self.placed[n].tensor if n in self.placed else v for n, v in call.items()}

    def check(self) -> None:
        for name, placed in self.placed.items():
            damage = placed.damage()
            assert damage is None, f"'{name}': {damage}"
