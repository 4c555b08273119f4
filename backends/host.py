"""Bases of the built-in backends on host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from specdec_hal.backends import native_ops
from specdec_hal.backends.index import IndexBackend
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Launch
from specdec_hal.tensors.native import load_library
from specdec_hal.tensors.views import shareable


class HostBackend(IndexBackend):
    """A backend on the CPU. Subclasses plan calls."""

    def arrays(self, call: Call) -> dict[str, NDArray[Any] | None]:
        """As Backend.arrays; ArgumentError for an index of the wrong size."""
        self.check_index(call)
        return super().arrays(call)


class NativeHostBackend(HostBackend):
    """A backend on the CPU whose kernels are in a native library. Launches are synchronous; there is one stream.

    `options`: what an exported op takes after its attributes.
    """

    def __init__(self, library: str, options: Sequence[int | str]) -> None:
        super().__init__()
        self.exports = load_library(library)
        self.capabilities = native_ops.capabilities(self.exports)
        self._options = tuple(options)

    def plan(self, call: Call) -> Launch:
        """A plan of the native library over the tensors' memory."""
        attrs = native_ops.attributes(call)
        arrays = [None if array is None else shareable(array) for array in self.arrays(call).values()]
        launch: Launch = self.exports[call.op.name](*arrays, *attrs, *self._options)
        return launch

    def index_bytes(self, rows: int, row_width: int, min_ngram_size: int, max_ngram_size: int) -> int:
        """Next to nothing: kernels search histories instead."""
        return 16
