"""What recurrences take, from what products and a convolution made of a token."""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import begin


@triton.jit(do_not_specialize=["line"])
def delta_inputs(
    mixed,
    a,
    b,
    rate,
    dt_bias,
    q,
    k,
    v,
    decay,
    beta,
    line,
    HEADS: tl.constexpr,
    EACH: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PDL: tl.constexpr,
):
    """A program a token and head. `mixed` [T, ..]: queries and keys of HEADS / EACH heads, then values of HEADS. `a`,
    `b` [T, HEADS], their tokens every `line` elements; `rate` = -exp(A_log) and `dt_bias` [HEADS], float32.

    `q`, `k` [T, HEADS / EACH, D_K]; `v` [T, HEADS, D_V]. float32 [T, HEADS]: `decay` =
    exp(rate * softplus(a + dt_bias)), `beta` = sigmoid(b), rounded as `b` is.
    """
    begin(PDL)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    keys = HEADS // EACH * D_K
    at = mixed + token * (2 * keys + HEADS * D_V)
    cell = token * HEADS + head
    column = tl.arange(0, BLOCK_K)
    inside, own = (column < D_K) & (head % EACH == 0), head // EACH * D_K + column
    tl.store(q + token * keys + own, tl.load(at + own, mask=inside), mask=inside)
    tl.store(k + token * keys + own, tl.load(at + keys + own, mask=inside), mask=inside)
    column = tl.arange(0, BLOCK_V)
    inside = column < D_V
    tl.store(v + cell * D_V + column, tl.load(at + 2 * keys + head * D_V + column, mask=inside), mask=inside)
    x = tl.load(a + token * line + head).to(tl.float32) + tl.load(dt_bias + head)
    tl.store(decay + cell, tl.exp(tl.load(rate + head) * _softplus(x)))
    share = 1.0 / (1.0 + tl.exp(-tl.load(b + token * line + head).to(tl.float32)))
    tl.store(beta + cell, share.to(b.dtype.element_ty).to(tl.float32))


@triton.jit(do_not_specialize=["line", "least", "most"])
def mamba2_gates(
    dt, a, dt_bias, decay, out, line, least, most, HEADS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """A program a token. float32 [T, HEADS]: `out` = softplus(dt + dt_bias) within `least` and `most`, `decay` =
    exp(out * a). `dt` [T, HEADS], its tokens every `line` elements; `a`, `dt_bias` [HEADS].
    """
    begin(PDL)
    token, head = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = head < HEADS
    x = tl.load(dt + token * line + head, mask=inside, other=0.0).to(tl.float32)
    if dt_bias is not None:
        x += tl.load(dt_bias + head, mask=inside, other=0.0).to(tl.float32)
    x = tl.minimum(tl.maximum(_softplus(x), least), most)
    tl.store(out + token * HEADS + head, x, mask=inside)
    factor = tl.load(a + head, mask=inside, other=0.0).to(tl.float32)
    tl.store(decay + token * HEADS + head, tl.exp(x * factor), mask=inside)


@triton.jit
def _softplus(x):
    grown = tl.exp(tl.minimum(x, 20.0))
    more = 1.0 + grown
    # What 1 + e rounds away of e, ln(1 + e) * e / ((1 + e) - 1) brings back.
    part = tl.where(more == 1.0, 1.0, more - 1.0)
    return tl.where(x > 20.0, x, tl.where(more == 1.0, grown, tl.log(more) * (grown / part)))
