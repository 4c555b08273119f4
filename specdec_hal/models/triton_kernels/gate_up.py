"""The gate and up projections with SwiGLU: out = silu(x gate^T) * (x up^T) (Shazeer, arXiv:2002.05202)."""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import begin, row_count
from specdec_hal.models.triton_kernels.product import join_parts, product


@triton.jit(do_not_specialize=["capacity"], do_not_specialize_on_alignment=["count"])
def gate_up(
    x,
    weight,
    out,
    count,
    partials,
    counters,
    capacity,
    N: tl.constexpr,
    K: tl.constexpr,
    PART: tl.constexpr,
    COUNTED: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """`x` [capacity, K], `weight` [2N, K] (gate, then up), `out` [capacity, N]; rows from `count` on are left alone.

    Neighbouring columns of a tile are a gate and its up, so that one thread holds both. Grid: as in
    :func:`.linear.linear`, with BLOCK_N / 2 columns of `out` a tile.
    """
    begin(PDL)
    rows = row_count(count, capacity, COUNTED)
    row_tile = tl.program_id(0)
    if row_tile * BLOCK_M >= rows:
        return
    row = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    HALF: tl.constexpr = BLOCK_N // 2
    both = tl.arange(0, BLOCK_N)
    column = tl.minimum(tl.program_id(1) * HALF + both // 2, N - 1) + both % 2 * N
    PARTS: tl.constexpr = (K + PART - 1) // PART
    part = tl.program_id(2)
    first = part if SPLIT else 0
    last = part + 1 if SPLIT else PARTS
    total = product(
        x, weight, tl.minimum(row, rows - 1), column, first, last, K, PART, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION
    )
    if SPLIT:
        tile = row_tile * tl.num_programs(1) + tl.program_id(1)
        total, done = join_parts(total, partials, counters, tile, part, PARTS, BLOCK_M, BLOCK_N)
        if not done:
            return
    gate, up = tl.split(tl.reshape(total, [BLOCK_M, HALF, 2]))
    gated = gate / (1 + tl.exp(-gate)) * up
    n = tl.program_id(1) * HALF + tl.arange(0, HALF)
    at = out + row.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(at, gated.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (n < N)[None, :])
