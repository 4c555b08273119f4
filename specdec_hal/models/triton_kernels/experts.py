"""Products of a mixture of experts: each row with the weights of the experts that it chose, without copying any."""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import begin
from specdec_hal.models.triton_kernels.product import part_sum


@triton.jit(do_not_specialize=["pairs"])
def expert_linear(
    x,
    x_low,
    weight,
    scales,
    x_scales,
    bias,
    out,
    order,
    starts,
    pairs,
    expert_stride,
    column_stride,
    depth_stride,
    EXPERTS: tl.constexpr,
    SHARE: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """`out` [pairs, N] = x weight[e]^T + bias[e] of each pair (row, expert e); the sum over K is in ascending order.

    `x` [pairs / SHARE, K]: SHARE pairs have one row. `weight` [EXPERTS, N, K] by its strides, `bias` [EXPERTS, N] or
    None. `order` int64 [pairs]: pairs by their expert, and `starts` int32 [EXPERTS + 1]: where each expert's begin; of
    pairs from the last on nothing is written. `scales` of a weight in FP8, [EXPERTS, N] or [EXPERTS, K / GROUP, N], and
    `x_low`, `x_scales`, `STAGES`: see :mod:`.product`, or None; such a weight is contiguous, and tensor cores compute
    weight x^T. Grid: (min(pairs, pairs // BLOCK_M + EXPERTS), column tiles).
    """
    begin(PDL)
    tile, column = tl.program_id(0), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    e = tl.arange(0, BLOCK_E)
    start = tl.load(starts + e, mask=e < EXPERTS, other=0)
    tiles = tl.cdiv(tl.load(starts + e + 1, mask=e < EXPERTS, other=0) - start, BLOCK_M)
    before = tl.cumsum(tiles, 0) - tiles
    if tile >= tl.sum(tiles, 0):
        return
    mine = (before <= tile) & (tile < before + tiles)
    expert = tl.sum(tl.where(mine, e, 0), 0)
    place = tl.sum(tl.where(mine, start + (tile - before) * BLOCK_M, 0), 0) + tl.arange(0, BLOCK_M)
    live = place < tl.load(starts + expert + 1)
    pair = tl.load(order + place, mask=live, other=0)
    k = tl.arange(0, BLOCK_K)
    within = column < N
    x_at = (pair // SHARE)[:, None] * K + k[None, :]
    weight_at = weight + expert.to(tl.int64) * expert_stride
    if scales is None:
        weight_at += column.to(tl.int64)[None, :] * column_stride + k.to(tl.int64)[:, None] * depth_stride
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for begin_at in range(0, K, BLOCK_K):
            inside = begin_at + k < K
            a = tl.load(x + x_at + begin_at, mask=live[:, None] & inside[None, :], other=0.0)
            b = tl.load(weight_at + begin_at * depth_stride, mask=inside[:, None] & within[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    else:
        known = tl.minimum(column, N - 1)
        weight_at += known.to(tl.int64)[:, None] * K + k[None, :]
        scales_at = scales + expert * (((K + GROUP - 1) // GROUP if GROUP else 1) * N) + known
        low_at = x_low
        if x_low is not None:
            low_at = x_low + x_at
        total = part_sum(
            x + x_at, low_at, weight_at, scales_at, 0, 0, N, 0, K, K, GROUP, STAGES, False, BLOCK_M, BLOCK_N, BLOCK_K,
            PRECISION, True,
        )  # fmt: skip
        if not GROUP:
            total *= tl.load(scales_at)[None, :]
        if x_scales is not None:
            total *= tl.load(x_scales + pair // SHARE)[:, None]
    if bias is not None:
        total += tl.load(bias + expert * N + column, mask=within, other=0.0).to(tl.float32)[None, :]
    at = out + pair[:, None] * N + column[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=live[:, None] & within[None, :])


@triton.jit
def combine(
    x, weight, out, chosen, EXPERTS: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """`out` [rows, D] = the sum of `x` [rows, SHARE, D] times `weight` [rows, SHARE], in ascending order.

    What is not `chosen` [rows, SHARE] of the EXPERTS counts as zero. Grid: (rows, tiles of D).
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(SHARE):
        pair = row * SHARE + i
        known = tl.load(chosen + pair) < EXPERTS
        part = tl.load(x + pair * D + d, mask=(d < D) & known, other=0.0).to(tl.float32)
        total += part * tl.load(weight + pair).to(tl.float32)
    tl.store(out + row * D + d, total.to(out.dtype.element_ty), mask=d < D)
