"""Allowed tokens of each slot (vLLM's `allowed_token_ids`, and `bad_words` of one token): a mask per slot.

A slot's rows share its mask, so `apply_token_bitmask` uses a row's slot as its mask number, and the host does nothing
while a request runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specdec_hal.tensors.device import Device


class SlotMasks:
    """Masks of `slots` slots over `vocab_size` tokens; the memory is taken when the first request needs one."""

    def __init__(self, device: Device, slots: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._device, self._shape = device, (slots, -(-vocab_size // 32))
        self._masked: set[int] = set()
        self._tensor: Any = None

    @property
    def tensor(self) -> Any:
        """`bitmask` [slots, ceil(vocab_size / 32)]."""
        if self._tensor is None:
            self._tensor = self._device.zeros(self._shape, "int32")
            self._device.write(self._tensor, slice(None), np.full(self._shape, -1, np.int32))
        return self._tensor

    def fill(self, slot: int, allowed: Sequence[int] | None, forbidden: Sequence[int] = ()) -> None:
        """Set a slot's mask to `allowed` (None: all) without `forbidden`, in the order of the current stream."""
        masked = allowed is not None or bool(forbidden)
        if not masked and slot not in self._masked:
            return
        bits = np.full(32 * self._shape[1], allowed is None, np.uint8)
        if allowed is not None:
            bits[list(allowed)] = 1
        bits[list(forbidden)] = 0
        self._device.write(self.tensor, slot, np.packbits(bits, bitorder="little").view("<i4").astype(np.int32))
        (self._masked.add if masked else self._masked.discard)(slot)
