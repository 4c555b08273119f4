"""What backends whose tensors live in host memory share: NumPy views of a call's tensors, and the n-gram index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from numpy.typing import NDArray

from specdec_hal.backend import Backend, Layout
from specdec_hal.errors import ArgumentError
from specdec_hal.ops import OPS
from specdec_hal.ops.validate import Call
from specdec_hal.tensors import as_numpy


class HostBackend(Backend, ABC):
    """A backend on the CPU; subclasses say how large an n-gram index row is, and plan calls."""

    @abstractmethod
    def index_bytes(self, row_width: int, min_ngram_size: int, max_ngram_size: int) -> int:
        """Bytes of one slot's n-gram index, for histories of up to `row_width` tokens."""

    def arrays(self, call: Call) -> dict[str, NDArray[Any] | None]:
        """The call's tensors as NumPy views of their declared rank; ArgumentError for an index of the wrong size."""
        if "X" in call.symbols and "max_ngram_size" in call.attrs:
            self._check_index(call)
        return {name: _declared_rank(call, name, tensor) for name, tensor in call.tensors.items()}

    def workspace(self, op: str, **sizes: int) -> dict[str, Layout]:
        """The n-gram ops take an `index` [M, X]; needs M, L, max_ngram_size and min_ngram_size."""
        super().workspace(op)
        if "index" not in OPS[op].by_name:
            return {}
        for name in ("M", "L", "max_ngram_size"):
            if name not in sizes:
                raise ArgumentError(
                    op=op,
                    backend=self.name,
                    argument=name,
                    expected="the sizes M, L and max_ngram_size (and min_ngram_size, if it is not 1)",
                    got=", ".join(sizes) or "none",
                    cure="pass it to workspace()",
                )
        width = self.index_bytes(sizes["L"], sizes.get("min_ngram_size", 1), sizes["max_ngram_size"])
        return {"index": Layout((sizes["M"], width), "uint8")}

    def _check_index(self, call: Call) -> None:
        sizes = {name: call.attrs[name] for name in ("min_ngram_size", "max_ngram_size")}
        wanted = self.workspace(call.op.name, M=call.symbols["M"], L=call.symbols["L"], **sizes)["index"].shape
        if call.symbols["X"] != wanted[1]:
            raise ArgumentError(
                op=call.op.name,
                backend=self.name,
                argument="index",
                expected=f"shape {list(wanted)} for L = {call.symbols['L']}, n-gram sizes {tuple(sizes.values())}",
                got=f"[{call.symbols['M']}, {call.symbols['X']}]",
                cure=f"allocate what backend.workspace('{call.op.name}', ...) says",
            )


def _declared_rank(call: Call, name: str, tensor: Any) -> NDArray[Any] | None:
    """A NumPy view; [N, 1] where [N] is declared becomes [N]."""
    if tensor is None:
        return None
    array = as_numpy(tensor)
    rank = len(call.op.by_name[name].dims(call.attrs))
    return array if array.ndim == rank else array.reshape(array.shape[:rank])
