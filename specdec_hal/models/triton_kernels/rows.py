"""Small kernels over a step's rows: cache positions, rotary embeddings, and writes to the cache."""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import begin


@triton.jit(do_not_specialize=["rows", "slots", "table_width", "num_blocks", "max_seq_len", "vocab_size"])
def places(
    token_ids, batch_id_per_token, cu_seqlens_q, seq_lens_decoder, block_tables, ids, positions, lines, rows, slots,
    table_width, num_blocks, max_seq_len, vocab_size, BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Per row int64: id (0 if outside the vocabulary), position, and cache line of its key.

    The cache is [num_blocks + 1, 2, BLOCK_SIZE, ..]; rows of the tail, or without a block, get position 0 and a line of
    the last block.
    """
    begin(PDL)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    token = tl.load(token_ids + row, mask=inside, other=0).to(tl.int64)
    tl.store(ids + row, tl.where((token >= 0) & (token < vocab_size), token, 0), mask=inside)
    slot = tl.load(batch_id_per_token + row, mask=inside, other=-1)
    real = (slot >= 0) & (slot < slots)
    before = tl.load(seq_lens_decoder + slot, mask=real, other=0)
    position = before + row - tl.load(cu_seqlens_q + slot, mask=real, other=0)
    page = position // BLOCK_SIZE
    real &= (position >= 0) & (position < max_seq_len) & (page < table_width)
    block = tl.load(block_tables + slot.to(tl.int64) * table_width + page, mask=real, other=-1)
    real &= (block >= 0) & (block < num_blocks)
    position = tl.where(real, position, 0)
    block = tl.where(real, block, num_blocks).to(tl.int64)
    tl.store(positions + row, position.to(tl.int64), mask=inside)
    tl.store(lines + row, block * (2 * BLOCK_SIZE) + position % BLOCK_SIZE, mask=inside)


@triton.jit(do_not_specialize=["angles"])
def rotate(
    q, k, value, cos, sin, positions, angles, q_weight, k_weight, q_out, k_out, lines, q_line, q_head, k_line, k_head,
    value_line, value_head, angle_line, epsilon, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    HALF: tl.constexpr, SECOND: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_REST: tl.constexpr, BLOCK_V: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotary embeddings (Su et al., arXiv:2104.09864) of dimensions i and HALF + i, computed in float32.

    `q` [rows, HEADS, DIM], with rows every `q_line` and heads every `q_head` elements, and `k` likewise; `q_out`
    contiguous. Dimensions from 2 HALF on are not rotated. `q_weight` and `k_weight` [DIM], or None: of RMSNorms of the
    heads before. `cos` and `sin` [rows, HALF + SECOND], every `angle_line`: those of the second dimensions begin at
    SECOND. With `positions` int64 [rows] they are [angles, HALF + SECOND], by position. Without `lines`, `k_out` is
    contiguous too, and the grid (rows, 2). With `lines` it is the cache, to which values go as well, as in
    :func:`store`; grid (rows, 3).
    """
    begin(PDL)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    q_at, k_at = q_out + row * (HEADS * DIM), k_out
    if lines is None:
        k_at += row * (KV_HEADS * DIM)
    else:
        k_at += tl.load(lines + row) * (KV_HEADS * DIM)
    angle = row
    if positions is not None:
        angle = tl.minimum(tl.load(positions + row), angles - 1)
    cos_at, sin_at = cos + angle * angle_line, sin + angle * angle_line
    if part == 0:
        x = q + row * q_line
        _rotate(
            x, q_head, q_weight, q_at, cos_at, sin_at, epsilon, HEADS, DIM, HALF, SECOND, BLOCK_H, BLOCK_D, BLOCK_REST
        )
    elif part == 1:
        x = k + row * k_line
        _rotate(
            x, k_head, k_weight, k_at, cos_at, sin_at, epsilon, KV_HEADS, DIM, HALF, SECOND, BLOCK_H, BLOCK_D,
            BLOCK_REST,
        )  # fmt: skip
    else:
        to = k_at + BLOCK_SIZE * (KV_HEADS * DIM)
        _copy(value + row * value_line, value_head, to, KV_HEADS, DIM, VALUE_DIM, BLOCK_H, BLOCK_V)


@triton.jit
def _rotate(
    x, stride, weight, out, cos, sin, epsilon, HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    SECOND: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    head, d = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_D)[None, :]
    inside, within = (head < HEADS) & (d < HALF), d < HALF
    first = tl.load(x + head * stride + d, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + head * stride + HALF + d, mask=inside, other=0.0).to(tl.float32)
    if DIM > 2 * HALF:
        far = 2 * HALF + tl.arange(0, BLOCK_REST)[None, :]
        there = (head < HEADS) & (far < DIM)
        rest = tl.load(x + head * stride + far, mask=there, other=0.0).to(tl.float32)
    if weight is not None:
        total = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if DIM > 2 * HALF:
            total += tl.sum(rest * rest, 1)
        scale = tl.rsqrt(total / DIM + epsilon)[:, None]
        first *= scale * tl.load(weight + d, mask=within, other=0.0).to(tl.float32)
        second *= scale * tl.load(weight + HALF + d, mask=within, other=0.0).to(tl.float32)
        if DIM > 2 * HALF:
            rest *= scale * tl.load(weight + far, mask=far < DIM, other=0.0).to(tl.float32)
    a = tl.load(cos + d, mask=within, other=0.0).to(tl.float32)
    b = tl.load(sin + d, mask=within, other=0.0).to(tl.float32)
    c = tl.load(cos + d + SECOND, mask=within, other=0.0).to(tl.float32)
    e = tl.load(sin + d + SECOND, mask=within, other=0.0).to(tl.float32)
    at = out + head * DIM + d
    tl.store(at, (first * a - second * b).to(out.dtype.element_ty), mask=inside)
    tl.store(at + HALF, (second * c + first * e).to(out.dtype.element_ty), mask=inside)
    if DIM > 2 * HALF:
        tl.store(out + head * DIM + far, rest.to(out.dtype.element_ty), mask=there)


@triton.jit
def _copy(
    x, stride, out, HEADS: tl.constexpr, DIM: tl.constexpr, X_DIM: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Heads of X_DIM to heads of DIM, filled up with zeros."""
    head, d = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_D)[None, :]
    values = tl.load(x + head * stride + d, mask=(head < HEADS) & (d < X_DIM), other=0.0)
    tl.store(out + head * DIM + d, values.to(out.dtype.element_ty), mask=(head < HEADS) & (d < DIM))


@triton.jit
def store(
    key, value, pool, lines, key_line, key_head, value_line, value_head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each row's key and value, strided as in :func:`rotate`, to its line of the cache [.., KV_HEADS, HEAD_DIM].

    Values of VALUE_DIM < HEAD_DIM are filled up with zeros.
    """
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = pool + tl.load(lines + row) * (KV_HEADS * HEAD_DIM)
    _copy(key + row * key_line, key_head, at, KV_HEADS, HEAD_DIM, HEAD_DIM, BLOCK_H, BLOCK_D)
    at += BLOCK_SIZE * (KV_HEADS * HEAD_DIM)
    _copy(value + row * value_line, value_head, at, KV_HEADS, HEAD_DIM, VALUE_DIM, BLOCK_H, BLOCK_D)
