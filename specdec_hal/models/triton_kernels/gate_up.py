"""The gate and up projections of a gated MLP: out = act(x gate^T) * (x up^T) (Shazeer, arXiv:2002.05202)."""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import release, row_count, wait
from specdec_hal.models.triton_kernels.product import join, product, scaled


@triton.jit(do_not_specialize=["capacity"], do_not_specialize_on_alignment=["count"])
def gate_up(
    x, x_low, weight, scales, x_scales, out, count, partials, counters, capacity, N: tl.constexpr, K: tl.constexpr,
    GELU: tl.constexpr, PART: tl.constexpr, COUNTED: tl.constexpr, SPLIT: tl.constexpr, GROUP: tl.constexpr,
    STAGES: tl.constexpr, DESCRIBED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, SWAP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`x` [capacity, K], `weight` [2N, K], `out` [capacity, N]; rows from `count` on are left alone.

    Rows 2i and 2i + 1 of `weight` are gate and up of column i of `out`, so that one thread holds both. The activation
    is SiLU, or with `GELU` the tanh approximation of that. `x_low`, `scales`, `x_scales`: as in
    :func:`.linear.linear`. Grid: as in :func:`.product.product`.
    """
    rows = row_count(count, capacity, COUNTED)
    wait(PDL)
    row_tile = tl.program_id(0)
    if row_tile * BLOCK_M >= rows:
        return
    total = product(
        x, x_low, weight, scales, rows, 2 * N, K, PART, SPLIT, GROUP, STAGES, DESCRIBED, BLOCK_M, BLOCK_N,
        BLOCK_K, PRECISION, SWAP,
    )  # fmt: skip
    release(PDL)
    if SPLIT:
        total, complete = join(total, partials, counters, K, PART)
        if not complete:
            return
    total = scaled(total, scales, x_scales, rows, 2 * N, GROUP)
    HALF: tl.constexpr = BLOCK_N // 2
    row = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    gate, up = tl.split(tl.reshape(total, [BLOCK_M, HALF, 2]))
    # GELU by tanh (Hendrycks and Gimpel, arXiv:1606.08415) is x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
    slope = 1.5957691216057308 * gate * (1 + 0.044715 * gate * gate) if GELU else gate
    gated = gate / (1 + tl.exp(-slope)) * up
    n = tl.program_id(1) * HALF + tl.arange(0, HALF)
    at = out + row.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(at, gated.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (n < N)[None, :])
