"""Which tokens the rows of a step may emit: one buffer of masks, and a map from rows to them.

Whoever restricts tokens (a grammar, a list of words) writes into the mask of a row between the model and the sampler. A
row that nobody writes to has no mask, and costs its entry of the map.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.tensors.device import Device
from specdec_hal.tensors.transfer import Field


class RowMasks:
    """Masks of up to `rows` output rows over `vocab_size` tokens: operands of op `apply_token_bitmask`."""

    def __init__(self, device: Device, rows: int, vocab_size: int) -> None:
        self.words = -(-vocab_size // 32)
        fields = {"bitmask": Field((rows, self.words), "int32"), "bitmask_rows": Field((rows,), "int32")}
        self._group = device.inputs(fields)
        self.tensors = self._group.tensors
        self.forget()

    def forget(self) -> None:
        """No row has a mask."""
        self._group.host["bitmask_rows"][:] = -1

    def row(self, at: int) -> NDArray[Any]:
        """The mask of output row `at`, int32 [ceil(V / 32)]; all ones where nobody has asked for it since
        :meth:`forget`."""
        mask: NDArray[np.int32] = self._group.host["bitmask"][at]
        if self._group.host["bitmask_rows"][at] < 0:
            self._group.host["bitmask_rows"][at] = at
            mask[:] = -1
        return mask

    def upload(self) -> None:
        """Send them, in the order of the current stream."""
        self._group.upload()
