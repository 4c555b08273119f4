"""What only DFlash 2 computes: convolutions over the rows of a block, and what its drafts are drawn from."""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import begin, release, wait

FAN = 8
"""Numbers whose maximum stands for them in :func:`candidates`."""
_FAN = tl.constexpr(FAN)
_LEAST = tl.constexpr(-(2**31))
_MOST = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=["columns", "tokens", "line", "count"])
def candidates(
    logits, hidden, ids, starts, owners, path_logits, path_ids, path_hidden, anchor_tokens, maxima, counters, columns,
    tokens, line, count, DRAFTS: tl.constexpr, KEPT: tl.constexpr, PARTS: tl.constexpr, BLOCK_P: tl.constexpr,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """What a path keeps of `logits` [slots * DRAFTS, columns], by the slots' rows `owners`, which have `line` drafts.

    The `count` largest logits of a row, equal ones by their ids; its `hidden` [.., RANK]; and the id of each block's
    first row, of int64 `ids` [tokens] and int32 `starts`. Grid: (rows, PARTS), for parts of FAN^4 logits. A part's
    maxima of FAN, FAN^2, .. numbers go to int32 `maxima`. The last part of a row, by int32 `counters` [rows], 0 before
    and after, goes down from the largest maxima: what is below others is not among the KEPT largest.
    """
    begin(PDL)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    BLOCK: tl.constexpr = _FAN * _FAN * _FAN * _FAN
    logits += row * columns
    eights = maxima + row * (PARTS * (BLOCK // 8 + BLOCK // 64 + BLOCK // 512 + 1))
    squares = eights + PARTS * (BLOCK // 8)
    cubes = squares + PARTS * (BLOCK // 64)
    tops = cubes + PARTS * (BLOCK // 512)
    column = part * BLOCK + tl.arange(0, BLOCK)
    value = _maxima(_read(logits, column, columns), eights, part)
    _maxima(_maxima(_maxima(value, squares, part), cubes, part), tops, part)
    tl.debug_barrier()  # all stores precede the atomic
    if tl.atomic_add(counters + row, 1, sem="acq_rel") != PARTS - 1:
        return
    tl.store(counters + row, 0)
    index = tl.arange(0, BLOCK_P)
    value = tl.load(tops + index, mask=index < PARTS, other=_LEAST, cache_modifier=".cg")
    value, index = _largest(value, index, KEPT)
    value, index = _below(cubes, index, PARTS * (BLOCK // 512), KEPT)
    value, index = _below(squares, index, PARTS * (BLOCK // 64), KEPT)
    value, index = _below(eights, index, PARTS * (BLOCK // 8), KEPT)
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
def _below(maxima, index, size, KEPT: tl.constexpr):
    """The KEPT largest of the `maxima` [size] that those at `index` stand for."""
    child = _children(index, KEPT)
    return _largest(tl.load(maxima + child, mask=child < size, other=_LEAST, cache_modifier=".cg"), child, KEPT)


@triton.jit
def _largest(value, index, KEPT: tl.constexpr):
    """The KEPT largest values and their indices, all different, in order: equal ones by these."""
    key = (value.to(tl.int64) << 32) | (index ^ _MOST).to(tl.int64)
    rank, at = tl.sum((key[None, :] > key[:, None]).to(tl.int32), 1), tl.arange(0, KEPT)
    top = tl.sum(tl.where(rank[:, None] == at[None, :], key[:, None], 0), 0)
    return (top >> 32).to(tl.int32), ((top & _MOST) ^ _MOST).to(tl.int32)


@triton.jit(do_not_specialize=["rows"])
def norm_convolve(
    x, norm, projection, base, owners, starts, out, own, rows, epsilon, TAPS: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`out` [rows, D] = the convolution before a sublayer, of the RMSNorm n of `x`; `own`: kernels for that after it.

    n times `projection` [2, TAPS, D / GROUP, D], whose columns were multiplied by `norm` [D], are a row's own kernels
    before and after; the latter go to float32 `own` [rows, TAPS, D / GROUP]. `base` [TAPS, D], `owners`, `starts`: see
    :func:`convolved`. Tiles of rows overlap by TAPS - 1. Grid: (row tiles, tiles of BLOCK_G groups).
    """
    wait(PDL)
    GROUPS: tl.constexpr = D // GROUP
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    row = tl.program_id(0) * (BLOCK_M - TAPS + 1) + m
    n, group = tl.arange(0, BLOCK_T * BLOCK_G), tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    line = n // BLOCK_G * GROUPS + tl.program_id(1) * BLOCK_G + n % BLOCK_G
    there = (n // BLOCK_G < 2 * TAPS) & (tl.program_id(1) * BLOCK_G + n % BLOCK_G < GROUPS)
    x_at, line_at = x + row.to(tl.int64)[:, None] * D + k[None, :], projection + line[:, None] * D + k[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_T * BLOCK_G], tl.float32)
    squares = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
    for start in tl.range(0, D, BLOCK_K, num_stages=STAGES):
        inside = (start + k < D)[None, :]
        a = tl.load(x_at + start, mask=(row < rows)[:, None] & inside, other=0.0)
        b = tl.load(line_at + start, mask=there[:, None] & inside, other=0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision=PRECISION)
        squares += a.to(tl.float32) * a.to(tl.float32)
    release(PDL)
    scale = tl.rsqrt(tl.sum(squares, 1) / D + epsilon)
    kernels = tl.reshape(total * scale[:, None], [BLOCK_M, BLOCK_T, BLOCK_G])
    live = (row < rows) & ((m >= TAPS - 1) | (tl.program_id(0) == 0))
    tap = tl.arange(0, BLOCK_T)[None, :, None]
    at = own + (row.to(tl.int64)[:, None, None] * TAPS + tap - TAPS) * GROUPS + group[None, None, :]
    after = (tap >= TAPS) & (tap < 2 * TAPS) & (group < GROUPS)[None, None, :]
    tl.store(at, kernels, mask=live[:, None, None] & after)
    first, c = _first(owners, starts, row, rows), tl.arange(0, BLOCK_C)
    channel = (group * GROUP)[None, :, None] + c[None, None, :]
    inside = (group < GROUPS)[None, :, None] & (c < GROUP)[None, None, :]
    weight = tl.load(norm + channel, mask=inside, other=0.0).to(tl.float32)
    added = tl.zeros([BLOCK_M, BLOCK_G, BLOCK_C], tl.float32)
    for t in tl.static_range(TAPS):
        seen = (live & (row - t >= first))[:, None, None] & inside
        value = tl.load(x + (row - t).to(tl.int64)[:, None, None] * D + channel, mask=seen, other=0.0).to(tl.float32)
        by = tl.sum(tl.where(m[None, :] == m[:, None] - t, scale[None, :], 0.0), 1)
        kernel = tl.load(base + t * D + channel, mask=inside, other=0.0).to(tl.float32)
        kernel += tl.sum(tl.where(tap == t, kernels, 0.0), 1)[:, :, None]
        added += value * by[:, None, None] * weight * kernel
    at = out + row.to(tl.int64)[:, None, None] * D + channel
    tl.store(at, added.to(out.dtype.element_ty), mask=live[:, None, None] & inside)


@triton.jit
def _first(owners, starts, row, rows):
    """The first row of each row's block."""
    slot = tl.load(owners + row, mask=row < rows, other=0)
    return tl.load(starts + tl.maximum(slot, 0))


@triton.jit
def convolved(
    y, row, column, own, base, owners, starts, rows, TAPS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr
):
    """The sum over t of (base[t] + own[row, t, group]) y[row - t], of a tile y of [rows, D] and the rows before it.

    Rows before those of a row's block count as zeros: block `owners` [rows] (-1: any) begins at `starts`. `base`
    [TAPS, D], float32 `own` [rows, TAPS, D / GROUP].
    """
    BLOCK_M: tl.constexpr = y.shape[0]
    first, m = _first(owners, starts, row, rows), tl.arange(0, BLOCK_M)
    inside = (row < rows)[:, None] & (column < D)[None, :]
    total = tl.zeros([BLOCK_M, y.shape[1]], tl.float32)
    for t in tl.static_range(TAPS):
        at = own + (row.to(tl.int64)[:, None] * TAPS + t) * (D // GROUP) + column[None, :] // GROUP
        kernel = tl.load(base + t * D + column, mask=column < D, other=0.0).to(tl.float32)[None, :]
        kernel += tl.load(at, mask=inside, other=0.0)
        before = y if t == 0 else tl.gather(y, tl.broadcast_to(tl.maximum(m - t, 0)[:, None], y.shape), 0)
        total += tl.where((row - t >= first)[:, None], before * kernel, 0.0)
    return total
