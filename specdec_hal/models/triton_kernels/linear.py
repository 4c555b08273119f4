"""A projection: out = x weight^T + bias + residual, or the product convolved."""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import release, row_count, wait
from specdec_hal.models.triton_kernels.product import join, product, scaled
from specdec_hal.models.triton_kernels.second import convolved


@triton.jit(do_not_specialize=["capacity"], do_not_specialize_on_alignment=["count"])
def linear(
    x, x_low, weight, scales, x_scales, bias, residual, out, count, partials, counters, kernels,
    capacity, N: tl.constexpr, K: tl.constexpr, PART: tl.constexpr, COUNTED: tl.constexpr, SPLIT: tl.constexpr,
    GROUP: tl.constexpr, STAGES: tl.constexpr, DESCRIBED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, SWAP: tl.constexpr, TAPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """`x` [capacity, K], `weight` [N, K], `bias` [N] or None, `out` [capacity, N]; rows from `count` on are left alone.

    `residual` [capacity, N], or None, may be `out`; the sum is rounded once. `x_low`, and float32 `scales` and
    `x_scales`: of numbers in FP8, see :mod:`.product`, or None. `kernels` and `TAPS`: of
    :func:`.second.convolved`, which the product then goes through, or None and 0. Grid: as in
    :func:`.product.product`.
    """
    rows = row_count(count, capacity, COUNTED)
    wait(PDL)
    OVERLAP: tl.constexpr = TAPS - 1 if TAPS > 1 else 0
    first = tl.program_id(0) * (BLOCK_M - OVERLAP)
    if first >= rows:
        return
    total = product(
        x, x_low, weight, scales, rows, N, K, PART, SPLIT, GROUP, STAGES, DESCRIBED, BLOCK_M, BLOCK_N,
        BLOCK_K, PRECISION, SWAP, OVERLAP,
    )  # fmt: skip
    release(PDL)
    row = first + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = row.to(tl.int64)[:, None] * N + column[None, :]
    inside = ((row < rows) & ((row >= first + OVERLAP) | (first == 0)))[:, None] & (column < N)[None, :]
    # Loaded before the parts are added up, which takes as long as a load.
    if bias is not None:
        added = tl.load(bias + column, mask=column < N, other=0.0)
    if residual is not None:
        old = tl.load(residual + at, mask=inside, other=0.0)
    if SPLIT:
        total, complete = join(total, partials, counters, K, PART)
        if not complete:
            return
    total = scaled(total, scales, x_scales, rows, N, GROUP)
    if TAPS:
        total = convolved(total, kernels, row, column, inside, TAPS, N)
    if bias is not None:
        total += added.to(tl.float32)[None, :]
    if residual is not None:
        total += old.to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)
