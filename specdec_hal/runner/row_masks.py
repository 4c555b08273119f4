"""Allowed tokens of a step's rows: one buffer of masks, and a map from rows to masks.

Restrictions (a grammar, a list of words) are written to a row's mask between the model and the sampler. Other rows have
no mask and only cost their entry of the map.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.tensors.device import Device
from specdec_hal.tensors.transfer import Field, Inputs


class RowMasks:
    """Masks of up to `rows` output rows over `vocab_size` tokens: operands of op `apply_token_bitmask`.

    The buffer is made for the first step that needs it.
    """

    def __init__(self, device: Device, rows: int, vocab_size: int) -> None:
        self.words = -(-vocab_size // 32)
        self._device, self._rows, self._used = device, rows, 0

    @cached_property
    def _group(self) -> Inputs:
        words = Field((self._rows, self.words), "int32")
        group = self._device.inputs({"bitmask_rows": Field((self._rows,), "int32"), "bitmask": words})
        group.host["bitmask_rows"][:] = -1
        return group

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The map and the masks, by operand."""
        return self._group.tensors

    def forget(self) -> None:
        """No row has a mask."""
        self._group.host["bitmask_rows"][:] = -1
        self._used = 0

    def row(self, at: int) -> NDArray[Any]:
        """The mask of output row `at`, int32 [ceil(V / 32)], initially all ones after :meth:`forget`."""
        numbers, masks = self._group.host["bitmask_rows"], self._group.host["bitmask"]
        if numbers[at] < 0:
            masks[self._used] = -1
            numbers[at] = self._used
            self._used += 1
        mask: NDArray[np.int32] = masks[numbers[at]]
        return mask

    def allow_only(self, at: int, token: int) -> None:
        """Let output row `at` have no token but one."""
        row = self.row(at)
        row[:] = 0
        row.view(np.uint32)[token // 32] = 1 << token % 32

    def upload(self) -> None:
        """Send those that rows have, in the order of the current stream."""
        self._group.upload(self._used)
