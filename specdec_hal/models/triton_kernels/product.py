"""x times a weight, in tiles: float32 sums over k in one order, whatever the tile.

K is cut into parts of `PART` elements. The sum of a part starts at 0 and takes its elements in ascending order; the
result is the sum of the parts in ascending order. One program may compute all parts of a tile, or each part a program
of its own, in which case the last one to finish adds them ("split-K"): the bits are the same.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
    x,
    weight,
    rows,
    columns,
    K: tl.constexpr,
    PART: tl.constexpr,
    SPLIT: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    SWAP: tl.constexpr,
):
    """The program's tile of x weight^T, float32 [BLOCK_M, BLOCK_N]; if `SPLIT` its part of it, for :func:`join`.

    `x` [rows, K] and `weight` [columns, K] are pointers to contiguous tensors, or with `DESCRIBED` tensor descriptors,
    whose tiles the tensor memory accelerator fetches (compute capability 9.0 and newer); `PART` is then a multiple of
    `BLOCK_K`. With `SWAP` the tensor cores compute weight x^T, so that `columns` take their 64 rows and `rows` may be
    few. What a tile has beyond `rows` and `columns` is undefined. Grid: (row tiles, column tiles, parts of K if
    `SPLIT`, else 1).
    """
    row, column, part = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N, tl.program_id(2)
    x_at, weight_at = x, weight
    if not DESCRIBED:
        k = tl.arange(0, BLOCK_K)[None, :]
        x_row = tl.minimum(row + tl.arange(0, BLOCK_M), rows - 1)
        weight_row = tl.minimum(column + tl.arange(0, BLOCK_N), columns - 1)
        x_at = x + x_row.to(tl.int64)[:, None] * K + k
        weight_at = weight + weight_row.to(tl.int64)[:, None] * K + k
    PARTS: tl.constexpr = (K + PART - 1) // PART
    if SPLIT or PARTS == 1:  # one accumulator: two of a large tile exceed the registers
        total = _part(
            x_at, weight_at, row, column, part, K, PART, DESCRIBED, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, SWAP
        )
    else:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for i in range(PARTS):
            total += _part(
                x_at, weight_at, row, column, i, K, PART, DESCRIBED, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, SWAP
            )
    return total


@triton.jit
def _part(
    x,
    weight,
    row,
    column,
    part,
    K: tl.constexpr,
    PART: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    SWAP: tl.constexpr,
):
    """The sum over one part of K. `x` and `weight`: descriptors, or pointers to the tile's first BLOCK_K columns."""
    total = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N], tl.float32)
    end = min((part + 1) * PART, K)
    for start in range(part * PART, end, BLOCK_K):
        if DESCRIBED:
            a = x.load([row, start])
            b = weight.load([column, start])
        elif K % BLOCK_K == 0 and PART % BLOCK_K == 0:
            a = tl.load(x + start)
            b = tl.load(weight + start)
        else:
            inside = (start + tl.arange(0, BLOCK_K) < end)[None, :]
            a = tl.load(x + start, mask=inside, other=0.0)
            b = tl.load(weight + start, mask=inside, other=0.0)
        if SWAP:
            total = tl.dot(b, tl.trans(a), total, input_precision=PRECISION)
        else:
            total = tl.dot(a, tl.trans(b), total, input_precision=PRECISION)
    return tl.trans(total) if SWAP else total


@triton.jit
def join(total, partials, counters, K: tl.constexpr, PART: tl.constexpr):
    """(sum of all parts, True) in the program that is the last of its tile to get here; (anything, False) in others.

    `total`: a program's part. `partials` float32 [tiles, parts, BLOCK_M, BLOCK_N]; `counters` int32 [tiles], 0 before
    and after.
    """
    PARTS: tl.constexpr = (K + PART - 1) // PART
    BLOCK_M: tl.constexpr = total.shape[0]
    BLOCK_N: tl.constexpr = total.shape[1]
    size: tl.constexpr = BLOCK_M * BLOCK_N
    tile = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    offset = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    at = partials + tile.to(tl.int64) * (PARTS * size) + offset
    tl.store(at + tl.program_id(2) * size, total)
    tl.debug_barrier()  # all stores precede the atomic
    last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == PARTS - 1
    if last:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for i in range(PARTS):
            total += tl.load(at + i * size, cache_modifier=".cg")
        tl.store(counters + tile, 0)
    return total, last
