"""What only DFlash 2 computes: convolutions over the rows of a block, and what its drafts are drawn from."""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import begin, release, wait

FAN = 8
"""Numbers whose maximum stands for them in :func:`candidates`."""
MAXIMA = FAN**3 + FAN**2 + FAN + 1
"""Of a part of FAN^4 numbers."""
_FAN, _BLOCK, _MAXIMA = tl.constexpr(FAN), tl.constexpr(FAN**4), tl.constexpr(MAXIMA)
_LEAST = tl.constexpr(-(2**31))
_MOST = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=["columns"])
def maxima(logits, out, columns, PARTS: tl.constexpr, PDL: tl.constexpr):
    """int32 `out` [rows, PARTS (FAN^3 + FAN^2 + FAN + 1)]: of the numbers of float32 `logits` [rows, columns].

    First the maxima of each FAN, then of each FAN^2 numbers, and so on. Grid: (rows, PARTS), for FAN^4 logits each.
    """
    begin(PDL)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    value = _read(logits + row * columns, part * _BLOCK + tl.arange(0, _BLOCK), columns)
    out += row * (PARTS * _MAXIMA)
    value = _maxima(value, out, part)
    value = _maxima(value, out + PARTS * (_BLOCK // 8), part)
    value = _maxima(value, out + PARTS * (_BLOCK // 8 + _BLOCK // 64), part)
    _maxima(value, out + PARTS * (_BLOCK // 8 + _BLOCK // 64 + _BLOCK // 512), part)


@triton.jit(do_not_specialize=["columns", "tokens", "line", "count"])
def candidates(
    logits, eights, hidden, ids, starts, owners, path_logits, path_ids, path_hidden, anchor_tokens, columns, tokens,
    line, count, DRAFTS: tl.constexpr, KEPT: tl.constexpr, PARTS: tl.constexpr, BLOCK_P: tl.constexpr,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What a path keeps of `logits` [slots * DRAFTS, columns], by the slots' rows `owners`, which have `line` drafts.

    The `count` largest logits of a row, equal ones by their ids; its `hidden` [.., RANK]; and the id of each block's
    first row, of int64 `ids` [tokens] and int32 `starts`. A program a row goes down from the largest :func:`maxima`,
    `eights`: what is below others is not among the KEPT largest.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    logits += row * columns
    eights += row * (PARTS * _MAXIMA)
    squares = eights + PARTS * (_BLOCK // 8)
    cubes = squares + PARTS * (_BLOCK // 64)
    if PARTS > 16:  # else at most 128 maxima stand for all without these
        index = _among(cubes + PARTS * (_BLOCK // 512), tl.arange(0, BLOCK_P), PARTS, KEPT)
        index = _among(cubes, _children(index, KEPT), PARTS * (_BLOCK // 512), KEPT)
    elif PARTS > 2:
        index = _among(cubes, tl.arange(0, 128), PARTS * (_BLOCK // 512), KEPT)
    at = _children(index, KEPT) if PARTS > 2 else tl.arange(0, 128)
    index = _among(squares, at, PARTS * (_BLOCK // 64), KEPT)
    index = _among(eights, _children(index, KEPT), PARTS * (_BLOCK // 8), KEPT)
    column = _children(index, KEPT)
    value, index = _largest(_read(logits, column, columns), column, KEPT)
    slot, draft, at = row // DRAFTS, row % DRAFTS, tl.arange(0, KEPT)
    owner = tl.load(owners + slot)
    to = owner * line + draft
    tl.store(path_ids + to * count + at, index.to(tl.int64), mask=at < count)
    tl.store(path_logits + to * count + at, _ordered(value).to(tl.float32, bitcast=True), mask=at < count)
    at = tl.arange(0, BLOCK_R)
    tl.store(path_hidden + to * RANK + at, tl.load(hidden + row * RANK + at, mask=at < RANK), mask=at < RANK)
    if draft == 0:
        tl.store(anchor_tokens + owner, tl.load(ids + tl.minimum(tl.load(starts + slot), tokens - 1)))


@triton.jit
def _ordered(bits):
    """Bits of float32 numbers as integers of the same order, and back."""
    return bits ^ ((bits >> 31) & _MOST)


@triton.jit
def _read(logits, column, columns):
    logit = tl.load(logits + column, mask=column < columns, other=0.0)
    bits = tl.where(logit == 0.0, 0.0, logit).to(tl.int32, bitcast=True)  # -0.0 equals 0.0
    return tl.where(column < columns, _ordered(bits), _LEAST)


@triton.jit
def _maxima(value, out, part):
    """Those of each FAN numbers of a part, which go to `out` too."""
    SIZE: tl.constexpr = value.shape[0] // _FAN
    value = tl.max(tl.reshape(value, [SIZE, _FAN]), 1)
    tl.store(out + part * SIZE + tl.arange(0, SIZE), value)
    return value


@triton.jit
def _children(index, KEPT: tl.constexpr):
    return tl.reshape(index[:, None] * _FAN + tl.arange(0, _FAN)[None, :], [KEPT * _FAN])


@triton.jit
def _among(values, index, size, KEPT: tl.constexpr):
    """Indices of the KEPT largest `values` [size] at `index`."""
    value = tl.load(values + index, mask=index < size, other=_LEAST)
    return _largest(value, index, KEPT)[1]


@triton.jit
def _largest(value, index, KEPT: tl.constexpr):
    """The KEPT largest values and their indices, all different, in order: equal ones by these."""
    key = (value.to(tl.int64) << 32) | (index ^ _MOST).to(tl.int64)
    rank, at = tl.sum((key[None, :] > key[:, None]).to(tl.int32), 1), tl.arange(0, KEPT)
    top = tl.sum(tl.where(rank[:, None] == at[None, :], key[:, None], 0), 0)
    return (top >> 32).to(tl.int32), ((top & _MOST) ^ _MOST).to(tl.int32)


@triton.jit(do_not_specialize=["rows"])
def norm_convolve(
    x, norm, projection, base, owners, starts, out, kernels, rows, epsilon, TAPS: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`out` [rows, D] = the convolution before a sublayer, of the RMSNorm n of `x`; and `kernels` for that after it.

    A row has kernels `base` [2, TAPS, D] + its own by groups: n times `projection` [2, TAPS, D / GROUP, D], whose
    columns were multiplied by `norm` [D]. Those after the sublayer go to float32 `kernels` [rows, TAPS, D], 0 for rows
    before a row's block: block `owners` [rows] (-1: any) begins at `starts`. Tiles of rows overlap by TAPS - 1. Grid:
    (row tiles, tiles of BLOCK_G groups).
    """
    wait(PDL)
    GROUPS: tl.constexpr = D // GROUP
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    row = tl.program_id(0) * (BLOCK_M - TAPS + 1) + m
    n, group = tl.arange(0, BLOCK_T * BLOCK_G), tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    line = n // BLOCK_G * GROUPS + tl.program_id(1) * BLOCK_G + n % BLOCK_G
    there = (n // BLOCK_G < 2 * TAPS) & (tl.program_id(1) * BLOCK_G + n % BLOCK_G < GROUPS)
    first = tl.load(starts + tl.maximum(tl.load(owners + row, mask=row < rows, other=0), 0))
    x_at, line_at = x + row.to(tl.int64)[:, None] * D + k[None, :], projection + line[:, None] * D + k[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_T * BLOCK_G], tl.float32)
    squares = tl.zeros([BLOCK_M, BLOCK_M], tl.float32)
    for start in tl.range(0, D, BLOCK_K, num_stages=STAGES):
        inside = (start + k < D)[None, :]
        a = tl.load(x_at + start, mask=(row < rows)[:, None] & inside, other=0.0)
        b = tl.load(line_at + start, mask=there[:, None] & inside, other=0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision=PRECISION)
        squares = tl.dot(a, tl.trans(a), squares, input_precision=PRECISION)  # on the diagonal
    release(PDL)
    scale = tl.rsqrt(tl.sum(tl.where(m[:, None] == m[None, :], squares, 0.0), 1) / D + epsilon)
    own = tl.reshape(total * scale[:, None], [BLOCK_M, BLOCK_T, BLOCK_G])
    live = (row < rows) & ((m >= TAPS - 1) | (tl.program_id(0) == 0))
    tap, c = tl.arange(0, BLOCK_T)[None, :, None], tl.arange(0, BLOCK_C)
    channel = (group * GROUP)[None, :, None] + c[None, None, :]
    inside = (group < GROUPS)[None, :, None] & (c < GROUP)[None, None, :]
    weight = tl.load(norm + channel, mask=inside, other=0.0).to(tl.float32)
    added = tl.zeros([BLOCK_M, BLOCK_G, BLOCK_C], tl.float32)
    at = row.to(tl.int64)[:, None, None] * D + channel
    for i in tl.static_range(2 * TAPS):
        t = i % TAPS
        seen = (live & (row - t >= first))[:, None, None] & inside
        kernel = tl.load(base + i * D + channel, mask=inside, other=0.0).to(tl.float32)
        kernel += tl.sum(tl.where(tap == i, own, 0.0), 1)[:, :, None]
        if i < TAPS:
            value = tl.load(x + at - t * D, mask=seen, other=0.0).to(tl.float32)
            by = tl.sum(tl.where(m[None, :] == m[:, None] - t, scale[None, :], 0.0), 1)
            added += value * by[:, None, None] * weight * kernel
        else:
            to = kernels + row.to(tl.int64)[:, None, None] * (TAPS * D) + t * D + channel
            tl.store(to, tl.where(seen, kernel, 0.0), mask=live[:, None, None] & inside)
    tl.store(out + at, added.to(out.dtype.element_ty), mask=live[:, None, None] & inside)


@triton.jit
def convolved(y, kernels, row, column, inside, TAPS: tl.constexpr, D: tl.constexpr):
    """The sum over t of kernels[row, t] y[row - t], of a tile y of [rows, D]; `kernels`: of :func:`norm_convolve`."""
    at = kernels + row.to(tl.int64)[:, None] * (TAPS * D) + column[None, :]
    total = tl.zeros(y.shape, tl.float32)
    for t in tl.static_range(TAPS):
        m = tl.maximum(tl.arange(0, y.shape[0]) - t, 0)
        before = y if t == 0 else tl.gather(y, tl.broadcast_to(m[:, None], y.shape), 0)
        total += before * tl.load(at + t * D, mask=inside, other=0.0)
    return total
