"""Tensors between protected pages: any access outside them, even a read, ends the process.

`parallel` then reports the case that the child process was running.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal_conformance.guarded import MARGIN, SENTINEL, GuardedHost, Placed

Array = NDArray[Any]

PAGE = mmap.PAGESIZE
_NO_ACCESS = 0  # PROT_NONE


class FencedDevice(GuardedHost):
    """Host memory with protected pages around each tensor, which ends (with `at_start`: begins) at one."""

    def __init__(self, *, at_start: bool = False) -> None:
        self.at_start = at_start
        self._libc = ctypes.CDLL(None, use_errno=True)

    def place(self, array: Array) -> Placed:
        """A view into pages of its own."""
        pages = max(-(-array.nbytes // PAGE), 1)
        memory = mmap.mmap(-1, (pages + 2) * PAGE)
        whole = np.frombuffer(memory, np.uint8)
        whole[:] = SENTINEL
        for fence in (0, (pages + 1) * PAGE):
            address = ctypes.c_void_p(whole.ctypes.data + fence)
            if self._libc.mprotect(address, ctypes.c_size_t(PAGE), _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect: the memory around a tensor could not be fenced")
        start = PAGE if self.at_start else (pages + 1) * PAGE - array.nbytes
        inside = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        inside[...] = array
        before, after = whole[PAGE:start], whole[start + array.nbytes : (pages + 1) * PAGE]
        return Placed(inside, array, lambda: _with_margins(before, inside, after))


def _with_margins(before: Array, inside: Array, after: Array) -> NDArray[np.uint8]:
    """The buffer for `Placed`: the bytes between tensor and fences are the margins."""

    def margin(near: Array) -> Array:
        filled = np.full(MARGIN, SENTINEL, np.uint8)
        kept = near[-MARGIN:] if near is before else near[:MARGIN]
        filled[len(filled) - len(kept) if near is before else 0 :][: len(kept)] = kept
        return filled

    return np.concatenate([margin(before), np.ascontiguousarray(inside).reshape(-1).view(np.uint8), margin(after)])
