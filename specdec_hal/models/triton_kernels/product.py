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
    row,
    column,
    first_part,
    last_part,
    K: tl.constexpr,
    PART: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum of parts [first_part, last_part) of x[row] weight[column]^T: float32 [BLOCK_M, BLOCK_N].

    `x` [*, K] and `weight` [*, K] are contiguous; `row` int [BLOCK_M] and `column` int [BLOCK_N] lie inside them.
    """
    k = tl.arange(0, BLOCK_K)
    x_at = x + row.to(tl.int64)[:, None] * K + k[None, :]
    weight_at = weight + column.to(tl.int64)[:, None] * K + k[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for part in range(first_part, last_part):
        partial = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        end = min((part + 1) * PART, K)
        for start in range(part * PART, end, BLOCK_K):
            if K % BLOCK_K == 0 and PART % BLOCK_K == 0:
                a = tl.load(x_at + start)
                b = tl.load(weight_at + start)
            else:
                inside = (start + k < end)[None, :]
                a = tl.load(x_at + start, mask=inside, other=0.0)
                b = tl.load(weight_at + start, mask=inside, other=0.0)
            partial = tl.dot(a, tl.trans(b), partial, input_precision=PRECISION)
        total += partial
    return total


@triton.jit
def join_parts(
    partial,
    partials,
    counters,
    tile,
    part,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """(sum of all parts, True) in the program that is the last of its tile to get here; (anything, False) in others.

    `partials` float32 [tiles, PARTS, BLOCK_M, BLOCK_N]; `counters` int32 [tiles], 0 before and after.
    """
    size: tl.constexpr = BLOCK_M * BLOCK_N
    place = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    at = partials + tile.to(tl.int64) * (PARTS * size) + place
    tl.store(at + part * size, partial)
    tl.debug_barrier()  # every thread's stores come before the one thread's atomic
    last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == PARTS - 1
    total = partial
    if last:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for i in range(PARTS):
            total += tl.load(at + i * size, cache_modifier=".cg")
        tl.store(counters + tile, 0)
    return total, last
