"""What every launch shares."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def begin(PDL: tl.constexpr):
    """The first statement of every kernel.

    With programmatic dependent launch (CUDA C++ Programming Guide) the programs of a kernel start while the kernel
    before it ends. They wait here until its writes are visible, and let the next kernel's programs start. Every program
    must wait, also one that has nothing to do: the next kernel relies on what came before this one, too.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def row_count(count, capacity, COUNTED: tl.constexpr):
    """Rows that hold something: `capacity`, or what the device says in int32 `count` [1]."""
    rows = capacity
    if COUNTED:
        rows = min(capacity, tl.load(count))
    return rows
