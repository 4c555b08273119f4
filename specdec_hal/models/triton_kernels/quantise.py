"""Rows in FP8 (e4m3) for products with weights in FP8.

Either the largest number of a row becomes the largest of the format. Or a row of bfloat16 becomes two of FP8: scaled by
a power of 2, a number of 8 significant bits is exactly the nearest one of 4 bits plus a sixteenth of another. This is
so for all numbers from 2^-13 of the row's largest on; others differ by less than 2^-21 of that.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import begin


@triton.jit(do_not_specialize=["capacity"], do_not_specialize_on_alignment=["count"])
def quantise_rows(
    x,
    out,
    low,
    scales,
    count,
    capacity,
    LARGEST: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    """`out` [capacity, D] in FP8 and `scales` float32 [capacity] of `x` [capacity, D], a program a row.

    `low` [capacity, D] in FP8, or None: sixteen times what the nearest numbers leave.
    Rows from int32 `count` [1], if any, on are left alone.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    if count is not None:
        capacity = min(capacity, tl.load(count))
    if row >= capacity:
        return
    column = tl.arange(0, BLOCK_D)
    values = tl.load(x + row * D + column, mask=column < D, other=0.0).to(tl.float32)
    store_rows(values, row, out, low, scales, LARGEST, D, BLOCK_D)


@triton.jit
def store_rows(values, row, out, low, scales, LARGEST: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """A row of :func:`quantise_rows`, of float32 `values` [BLOCK_D]."""
    column = tl.arange(0, BLOCK_D)
    at = row * D + column
    largest = tl.max(tl.abs(values), 0)
    if low is None:
        scale = largest / LARGEST
        scale = tl.where(scale > 0, scale, 1.0)
        values = values / scale
    else:
        # The least power of 2 that is not below largest / 448, where 448 is 1.75 * 2^8; then its reciprocal.
        exponent = ((largest.to(tl.int32, bitcast=True) + 0x1FFFFF) >> 23) - 8
        exponent = tl.maximum(exponent, 1)
        scale = (exponent << 23).to(tl.float32, bitcast=True)
        values *= ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    nearest = values.to(out.dtype.element_ty)
    tl.store(out + at, nearest, mask=column < D)
    if low is not None:
        rest = (values - nearest.to(tl.float32)) * 16
        tl.store(low + at, rest.to(low.dtype.element_ty), mask=column < D)
    tl.store(scales + row, scale)
