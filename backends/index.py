"""Base of backends that run the n-gram ops: the size of an index, and a check of it."""

from __future__ import annotations

from specdec_hal.errors import ArgumentError
from specdec_hal.ops import OPS
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Backend, Layout


class IndexBackend(Backend):
    """Searches histories; a subclass that keeps an n-gram index gives the size of a row."""

    def index_bytes(self, rows: int, row_width: int, min_ngram_size: int, max_ngram_size: int) -> int:
        """Bytes of one slot's n-gram index, of `rows` slots with histories of up to `row_width` tokens."""
        return 16

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
                    hint="pass it to workspace()",
                )
        width = self.index_bytes(sizes["M"], sizes["L"], sizes.get("min_ngram_size", 1), sizes["max_ngram_size"])
        return {"index": Layout((sizes["M"], width), "uint8")}

    def check_index(self, call: Call) -> None:
        """ArgumentError if the call's index has the wrong size for its n-gram sizes."""
        if "X" not in call.symbols or "max_ngram_size" not in call.attrs:
            return
        sizes = {name: call.attrs[name] for name in ("min_ngram_size", "max_ngram_size")}
        wanted = self.workspace(call.op.name, M=call.symbols["M"], L=call.symbols["L"], **sizes)["index"].shape
        if call.symbols["X"] != wanted[1]:
            raise ArgumentError(
                op=call.op.name,
                backend=self.name,
                argument="index",
                expected=f"shape {list(wanted)} for L = {call.symbols['L']}, n-gram sizes {tuple(sizes.values())}",
                got=f"[{call.symbols['M']}, {call.symbols['X']}]",
                hint=f"allocate what backend.workspace('{call.op.name}', ...) says",
            )
