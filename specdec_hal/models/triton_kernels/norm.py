"""RMSNorm: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv:1910.07467), a program a row."""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import begin
from specdec_hal.models.triton_kernels.quantise import store_rows
from specdec_hal.models.triton_kernels.ranks import meet, part_of


@triton.jit(do_not_specialize=["capacity"], do_not_specialize_on_alignment=["count"])
def rms_norm(
    x, weight, out, values, low, scales, count, capacity, epsilon, line, GROUP: tl.constexpr, LARGEST: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`out` [capacity, D], `weight` [D]; computed in float32. Rows from int32 `count` [1], if any, on are left alone.

    `values`, `low`, `scales`: the rows of `out` in FP8, as of :func:`.quantise.quantise_rows`, or None.

    Of `x`, `GROUP` rows follow each other every `line` elements: heads beside what else a product made of a token.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    if count is not None:
        capacity = min(capacity, tl.load(count))
    if row >= capacity:
        return
    column = tl.arange(0, BLOCK_D)
    at = x + row // GROUP * line + row % GROUP * D + column
    normed = _normalise(tl.load(at, mask=column < D, other=0.0), weight, out + row * D, epsilon, D, BLOCK_D)
    if values is not None:
        store_rows(normed.to(tl.float32), row, values, low, scales, LARGEST, D, BLOCK_D)


@triton.jit(do_not_specialize=["capacity"], do_not_specialize_on_alignment=["count"])
def sum_norm(
    parts, cells, residual, total, weight, out, count, capacity, epsilon, RANK: tl.constexpr, RANKS: tl.constexpr,
    MOST: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`total` = the sum of the ranks' parts in their order + `residual`, if any, rounded once; `out` = its norm.

    `parts` [RANKS, capacity, D], or SHARED the addresses of what each rank has, with the cells of :func:`.ranks.meet`.
    Without `weight` nothing is normed. Rows from int32 `count` [1], if any, on are left alone.
    """
    rows = capacity
    if count is not None:
        rows = min(capacity, tl.load(count))
    begin(PDL)  # not before: the kernel before writes this rank's part, but not the count
    if tl.program_id(0) >= max(rows, 1):  # ranks meet without rows too, before they write again
        return
    if SHARED:
        meet(cells, RANK, RANKS, MOST)
    column = tl.arange(0, BLOCK_D)
    inside = column < D
    for at in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.cast(at, tl.int64)
        added = tl.zeros((BLOCK_D,), tl.float32)
        for rank in tl.static_range(RANKS):
            x = part_of(parts, rank, total) + row * D if SHARED else parts + (rank * capacity + row) * D
            x = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
            added = x if rank == 0 else added + x
        if residual is not None:
            added += tl.load(residual + row * D + column, mask=inside, other=0.0).to(tl.float32)
        x = added.to(total.dtype.element_ty)
        tl.store(total + row * D + column, x, mask=inside)
        if weight is not None:
            _normalise(x, weight, out + row * D, epsilon, D, BLOCK_D)


@triton.jit(do_not_specialize=["rows"])
def row_sum(x, out, rows, D: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr):
    """`out` [rows] = sums of the rows of `x` [rows, D], in float32."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    values = tl.load(x + row * D + column, mask=column < D, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(values, 0).to(out.dtype.element_ty))


@triton.jit
def _normalise(x, weight, out, epsilon, D: tl.constexpr, BLOCK_D: tl.constexpr):
    column = tl.arange(0, BLOCK_D)
    inside = column < D
    x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / D + epsilon)
    scaled = x * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    normed = scaled.to(out.dtype.element_ty)
    tl.store(out + column, normed, mask=inside)
    return normed


@triton.jit(do_not_specialize=["x_line", "gate_line"])
def gated_norm(
    x, gate, weight, out, epsilon, x_line, gate_line, GROUP: tl.constexpr, WEIGHTS: tl.constexpr,
    GATE_FIRST: tl.constexpr, SIGMOID: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`out` [rows, D] = RMSNorm(x) * act(gate), or with GATE_FIRST RMSNorm(x * act(gate)); act: SILU or the sigmoid.

    Of `x` and `gate`, `GROUP` rows follow each other every so many elements, their `line`. `weight` [WEIGHTS] is of one
    row, or of `GROUP` rows. Computed in float32 and rounded where `transformers` rounds: its norms, before the gate.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    inside = column < D
    values = tl.load(x + row // GROUP * x_line + row % GROUP * D + column, mask=inside, other=0.0).to(tl.float32)
    gates = tl.load(gate + row // GROUP * gate_line + row % GROUP * D + column, mask=inside, other=0.0).to(tl.float32)
    act = 1.0 / (1.0 + tl.exp(-gates))
    if not SIGMOID:
        act = gates * act
    if GATE_FIRST:
        values = values * act
    scale = tl.rsqrt(tl.sum(values * values, 0) / D + epsilon)
    factors = tl.load(weight + row % GROUP * D % WEIGHTS + column, mask=inside, other=0.0).to(tl.float32)
    values = (values * scale).to(out.dtype.element_ty).to(tl.float32) * factors
    if not GATE_FIRST:
        values = values.to(out.dtype.element_ty).to(tl.float32) * act
    tl.store(out + row * D + column, values.to(out.dtype.element_ty), mask=inside)
