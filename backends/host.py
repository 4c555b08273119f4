"""What backends whose tensors live in host memory share: NumPy views of a call's tensors."""

from __future__ import annotations

from abc import ABC
from typing import Any

from numpy.typing import NDArray

from specdec_hal.backends.index import IndexBackend
from specdec_hal.ops.validate import Call
from specdec_hal.tensors import as_numpy


class HostBackend(IndexBackend, ABC):
    """A backend on the CPU; subclasses say how large an n-gram index row is, and plan calls."""

    def arrays(self, call: Call) -> dict[str, NDArray[Any] | None]:
        """The call's tensors as NumPy views of their declared rank; ArgumentError for an index of the wrong size."""
        self.check_index(call)
        return {name: _declared_rank(call, name, tensor) for name, tensor in call.tensors.items()}


def _declared_rank(call: Call, name: str, tensor: Any) -> NDArray[Any] | None:
    """A NumPy view; [N, 1] where [N] is declared becomes [N]."""
    if tensor is None:
        return None
    array = as_numpy(tensor)
    rank = len(call.op.by_name[name].dims(call.attrs))
    return array if array.ndim == rank else array.reshape(array.shape[:rank])
