"""What only DFlash 2 computes: convolutions over the rows of a block, and the best tokens of rows of logits."""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import begin

CHUNK = 2048
"""Columns of a program."""
_LEAST = tl.constexpr(-(2**63))


@triton.jit(do_not_specialize=["columns", "count"])
def candidates(
    given,
    keys,
    ids,
    best,
    columns,
    count,
    KEPT: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program a row and part. The KEPT largest of each part of float32 `given` [rows, columns] go to int64 `keys`
    [rows, parts, KEPT]. Without `keys`, `given` are such keys, of one part, and the `count` largest become int64 `ids`
    and logits `best` [rows, count].

    A key has the logit's bits in the order of the numbers, then the id's complement: of equal logits the first wins.
    """
    begin(PDL)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    if keys is not None:
        logit = tl.load(given + row * columns + column, mask=column < columns, other=0.0)
        bits = tl.where(logit == 0.0, 0.0, logit).to(tl.int32, bitcast=True)  # -0.0 equals 0.0
        key = (_ordered(bits).to(tl.int64) << 32) | (0x7FFFFFFF - column)
        key = tl.where(column < columns, key, _LEAST)
    else:
        key = tl.load(given + row * columns + column, mask=column < columns, other=_LEAST)
    top, at = tl.topk(key, KEPT), tl.arange(0, KEPT)
    if keys is not None:
        tl.store(keys + (row * tl.num_programs(1) + part) * KEPT + at, top)
    else:
        tl.store(ids + row * count + at, 0x7FFFFFFF - (top & 0x7FFFFFFF), mask=at < count)
        value = _ordered((top >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
        tl.store(best + row * count + at, value, mask=at < count)


@triton.jit
def _ordered(bits):
    """Bits of float32 numbers as integers of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit(do_not_specialize=["line"])
def convolve(
    x,
    base,
    own,
    begins,
    residual,
    out,
    line,
    TAPS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    """`out` [rows, D] = sum over t of (base[t] + own[row, t, group]) x[row - t], + `residual`, if any, rounded once.

    Rows before int32 `begins` [rows] count as zeros. `base` [TAPS, D]; rows of `own` [TAPS, D / GROUP] follow each
    other every `line` elements.
    """
    begin(PDL)
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_D)
    inside, least = column < D, tl.load(begins + row)
    total = tl.zeros((BLOCK_D,), tl.float32)
    if residual is not None:
        total += tl.load(residual + row * D + column, mask=inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(TAPS):
        there = inside & (row - tap >= least)
        value = tl.load(x + (row - tap) * D + column, mask=there, other=0.0).to(tl.float32)
        kernel = tl.load(base + tap * D + column, mask=inside, other=0.0).to(tl.float32)
        kernel += tl.load(own + row * line + tap * (D // GROUP) + column // GROUP, mask=inside, other=0.0).to(
            tl.float32
        )
        total += value * kernel
    tl.store(out + row * D + column, total.to(out.dtype.element_ty), mask=inside)
