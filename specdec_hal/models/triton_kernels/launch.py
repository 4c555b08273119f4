"""Common parts of launches."""

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
    before it ends. Every program must wait, even without work: the next kernel relies on all earlier writes too.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release(PDL: tl.constexpr):
    """Lets the next kernel's programs start. A product calls it after reading its operands: earlier, waiting programs
    would occupy multiprocessors that unstarted tiles need.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def row_count(count, capacity, COUNTED: tl.constexpr):
    """Valid rows: `capacity`, or int32 `count` [1] on the device, which the kernel before this one must not write:
    products read it before they :func:`wait`.
    """
    rows = capacity
    if COUNTED:
        rows = min(capacity, tl.load(count))
    return rows
