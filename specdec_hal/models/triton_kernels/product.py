"""x times a weight, in tiles: float32 sums over k in one order, whatever the tile.

K is cut into parts of `PART` elements. The sum of a part starts at 0 and takes its elements in ascending order; the
result is the sum of the parts in ascending order. One program may compute all parts of a tile, or each part a program
of its own, in which case the last one to finish adds them ("split-K"): the bits are the same.

Weights in FP8 (e4m3) are multiplied with rows in FP8, or with rows that are sums of two such numbers, `x` and a
sixteenth of `x_low` (:mod:`.quantise`), each with a sum of its own. For other rows they are widened exactly. Scales of
rows of the weight multiply the result. Scales of groups of K multiply the sum of each group, which starts at 0. Tensor
cores of compute capability 9.0 add products of FP8 with some 14 bits (DeepSeek-AI, arXiv:2412.19437, section 3.3.2),
which is more than the weights have.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
    x, x_low, weight, scales, rows, columns, K: tl.constexpr, PART: tl.constexpr, SPLIT: tl.constexpr,
    GROUP: tl.constexpr, STAGES: tl.constexpr, DESCRIBED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, SWAP: tl.constexpr, OVERLAP: tl.constexpr = 0,
):  # fmt: skip
    """The program's tile of x weight^T, or of (x + x_low / 16) weight^T, float32 [BLOCK_M, BLOCK_N].

    If `SPLIT` its part of it, for :func:`join`. `x` and `x_low` [rows, K] and `weight` [columns, K] are pointers to
    contiguous tensors, or with `DESCRIBED` tensor descriptors, whose tiles the tensor memory accelerator fetches
    (compute capability 9.0 and newer); `PART` is then a multiple of `BLOCK_K`. With `SWAP` the tensor cores compute
    weight x^T, so that `columns` take their 64 rows and `rows` may be few. A tile of rows begins with the last
    `OVERLAP` rows of the previous one. What a tile has beyond `rows` and `columns` is undefined. With `GROUP`, a
    multiple of `BLOCK_K` and divisor of `PART`, `scales` are float32 [K / GROUP, columns], and multiply sums of so many
    elements of K; `STAGES` are those of the pipeline, then, else None. Grid: (row tiles, column tiles, parts of K if
    `SPLIT`, else 1).
    """
    row, column, part = tl.program_id(0) * (BLOCK_M - OVERLAP), tl.program_id(1) * BLOCK_N, tl.program_id(2)
    scales_at = scales
    if GROUP:
        scales_at = scales + tl.minimum(column + tl.arange(0, BLOCK_N), columns - 1)
    x_at, low_at, weight_at = x, x_low, weight
    if not DESCRIBED:
        k = tl.arange(0, BLOCK_K)[None, :]
        x_row = tl.minimum(row + tl.arange(0, BLOCK_M), rows - 1)
        weight_row = tl.minimum(column + tl.arange(0, BLOCK_N), columns - 1)
        x_at = x + x_row.to(tl.int64)[:, None] * K + k
        if x_low is not None:
            low_at = x_low + x_row.to(tl.int64)[:, None] * K + k
        weight_at = weight + weight_row.to(tl.int64)[:, None] * K + k
    PARTS: tl.constexpr = (K + PART - 1) // PART
    if SPLIT or PARTS == 1:  # one accumulator: two of a large tile exceed the registers
        total = part_sum(
            x_at, low_at, weight_at, scales_at, row, column, columns, part, K, PART, GROUP, STAGES, DESCRIBED,
            BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, SWAP,
        )  # fmt: skip
    else:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for i in range(PARTS):
            total += part_sum(
                x_at, low_at, weight_at, scales_at, row, column, columns, i, K, PART, GROUP, STAGES, DESCRIBED,
                BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, SWAP,
            )  # fmt: skip
    return total


@triton.jit
def part_sum(
    x, x_low, weight, scales, row, column, columns, part, K: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr,
    STAGES: tl.constexpr, DESCRIBED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """The sum over one part of K. `x`, `x_low` and `weight`: descriptors, or pointers to the tile's first BLOCK_K
    columns; `scales`: pointers to those of the first group."""
    total = tl.zeros([BLOCK_N, BLOCK_M] if SWAP else [BLOCK_M, BLOCK_N], tl.float32)
    rest = total
    end = min((part + 1) * PART, K)
    # With a number of stages all loads are pipelined, not only those of tensor cores.
    for start in tl.range(part * PART, end, BLOCK_K, num_stages=STAGES):
        a = _tile(x, row, start, end, K, PART, DESCRIBED, BLOCK_K)
        b = _tile(weight, column, start, end, K, PART, DESCRIBED, BLOCK_K)
        if b.dtype != a.dtype:
            b = b.to(a.dtype)
        if x_low is not None:
            c = _tile(x_low, row, start, end, K, PART, DESCRIBED, BLOCK_K)
        if GROUP:
            added = _dot(a, b, None, PRECISION, SWAP)
            if x_low is not None:
                added += _dot(c, b, None, PRECISION, SWAP) * 0.0625
            scale = tl.load(scales + start // GROUP * columns)
            total += added * (scale[:, None] if SWAP else scale[None, :])
        else:
            total = _dot(a, b, total, PRECISION, SWAP)
            if x_low is not None:
                rest = _dot(c, b, rest, PRECISION, SWAP)
    if x_low is not None and not GROUP:
        total += rest * 0.0625
    return tl.trans(total) if SWAP else total


@triton.jit
def _tile(x, row, start, end, K: tl.constexpr, PART: tl.constexpr, DESCRIBED: tl.constexpr, BLOCK_K: tl.constexpr):
    """Columns from `start` on of an operand of :func:`part_sum`."""
    if DESCRIBED:
        tile = x.load([row, start])
    elif K % BLOCK_K == 0 and PART % BLOCK_K == 0:
        tile = tl.load(x + start)
    else:
        tile = tl.load(x + start, mask=(start + tl.arange(0, BLOCK_K) < end)[None, :], other=0.0)
    return tile


@triton.jit
def _dot(a, b, total, PRECISION: tl.constexpr, SWAP: tl.constexpr):
    """a b^T, or with `SWAP` b a^T, added to `total` unless that is None."""
    if SWAP:
        product = tl.dot(b, tl.trans(a), total, input_precision=PRECISION)
    else:
        product = tl.dot(a, tl.trans(b), total, input_precision=PRECISION)
    return product


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


@triton.jit
def scaled(total, scales, x_scales, rows, columns, GROUP: tl.constexpr):
    """The program's tile of a product times `scales` [columns], unless these are of groups, and `x_scales` [rows], if
    they are not None."""
    BLOCK_M: tl.constexpr = total.shape[0]
    BLOCK_N: tl.constexpr = total.shape[1]
    if scales is not None and not GROUP:
        column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        total *= tl.load(scales + column, mask=column < columns, other=0.0)[None, :]
    if x_scales is not None:
        row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
        total *= tl.load(x_scales + row, mask=row < rows, other=0.0)[:, None]
    return total
