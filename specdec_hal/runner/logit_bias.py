"""Biases on logits before penalties and sampling (OpenAI's `logit_bias`), by slot.

The contract has no op for it: the framework gathers, adds and scatters, equally for every row of a slot, so drafts are
verified with the logits of plain decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_hal.tensors.device import Device
from specdec_hal.tensors.transfer import Field


class LogitBias:
    """Up to `width` biased tokens in each of `slots` slots.

    `ids` int64 and `values` float32 are [slots, width]. A row that is not full repeats its first entry, which writes
    equal values.
    """

    def __init__(self, device: Device, slots: int, width: int) -> None:
        self.width = width
        self._device = device
        fields = {"ids": Field((slots, width), "int64"), "values": Field((slots, width), "float32")}
        self._group = device.inputs(fields)
        self._biased: set[int] = set()
        self._changed = False

    def fill(self, slot: int, bias: Mapping[int, float]) -> None:
        """Set the bias of a slot's new request, by token id, on the host."""
        if not bias and slot not in self._biased:
            return
        ids, values, (first, added) = *self._group.host.values(), next(iter(bias.items()), (0, 0.0))
        ids[slot], values[slot] = first, added
        ids[slot, : len(bias)], values[slot, : len(bias)] = list(bias), list(bias.values())
        self._biased.add(slot) if bias else self._biased.discard(slot)
        self._changed = True

    def upload(self) -> None:
        """Send changes of :meth:`fill`, in the order of the current stream."""
        if self._changed:
            self._group.upload()
            self._changed = False

    def add(self, logits: Any, slot_of_row: Any, width: int) -> None:
        """Add the slots' biases to logits [R, V], in float32.

        `slot_of_row` int32 [R], -1 in the tail; no slot in use has more than `width` entries. Enqueues, and reads
        nothing on the host.
        """
        self._device.add_entries(logits, slot_of_row, *(tensor[:, :width] for tensor in self._group.tensors.values()))
