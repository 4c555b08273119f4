"""What every launch shares."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def begin(PDL: tl.constexpr):
    """The first statement of a short kernel: `wait`, and `release` at once."""
    wait(PDL)
    release(PDL)


@triton.jit
def wait(PDL: tl.constexpr):
    """Waits until the writes of the kernel before this one are visible.

    With programmatic dependent launch (CUDA C++ Programming Guide) the programs of a kernel start while the kernel
    before it ends. Every program must wait, also one that has nothing to do: the next kernel relies on what came before
    this one, too.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release(PDL: tl.constexpr):
    """Lets the next kernel's programs start. A product does so when it has read its operands: programs that only wait
    would take multiprocessors from tiles that have not started, and leave them unevenly filled."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def row_count(count, capacity, COUNTED: tl.constexpr):
    """Rows that hold something: `capacity`, or what the device says in int32 `count` [1]."""
    rows = capacity
    if COUNTED:
        rows = min(capacity, tl.load(count))
    return rows
