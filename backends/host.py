"""Base of the built-in backends on host memory."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from specdec_hal.backends.index import IndexBackend
from specdec_hal.ops.validate import Call


class HostBackend(IndexBackend):
    """A backend on the CPU. Subclasses plan calls."""

    def arrays(self, call: Call) -> dict[str, NDArray[Any] | None]:
        """As Backend.arrays; ArgumentError for an index of the wrong size."""
        self.check_index(call)
        return super().arrays(call)
