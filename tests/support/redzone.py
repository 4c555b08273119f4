"""Arrays inside larger ones: what an op writes outside its tensors is seen."""

from __future__ import annotations

from typing import Any

import numpy as np

MARGIN = 64
BYTE = 0x5C


class RedZones:
    """Copies of a call's arrays, each with marked memory on both sides; `check` finds writes into it."""

    def __init__(self, call: dict[str, Any]) -> None:
        self.buffers: dict[str, np.ndarray] = {}
        self.call = {n: self._guard(n, v) if isinstance(v, np.ndarray) else v for n, v in call.items()}

    def _guard(self, name: str, array: np.ndarray) -> np.ndarray:
        buffer = self.buffers[name] = np.full(array.nbytes + 2 * MARGIN, BYTE, np.uint8)
        inside = buffer[MARGIN : MARGIN + array.nbytes].view(array.dtype).reshape(array.shape)
        inside[...] = array
        return inside

    def check(self) -> None:
        for name, buffer in self.buffers.items():
            assert (buffer[:MARGIN] == BYTE).all(), f"'{name}' was written before its start"
            assert (buffer[len(buffer) - MARGIN :] == BYTE).all(), f"'{name}' was written behind its end"
