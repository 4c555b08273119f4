"""The q, k and v projections of a layer, with rotary embeddings; k and v go straight into the paged KV cache.

Rotary embeddings pair dimension i of a head with i + head_dim/2 (Su et al., arXiv:2104.09864, in Hugging Face's order).
"""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import release, wait
from specdec_hal.models.triton_kernels.product import join, product


@triton.jit(do_not_specialize=["capacity", "slots", "positions", "table_width", "num_blocks"])
def qkv(
    x,
    weight,
    q,
    pool,
    cosine,
    sine,
    batch_id_per_token,
    cu_seqlens_q,
    seq_lens_decoder,
    block_tables,
    partials,
    counters,
    capacity,
    slots,
    positions,
    table_width,
    num_blocks,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    K: tl.constexpr,
    PART: tl.constexpr,
    SPLIT: tl.constexpr,
    DESCRIBED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    SWAP: tl.constexpr,
    PDL: tl.constexpr,
):
    """`x` [capacity, K], `weight` [(HEADS + 2 KV_HEADS) HEAD_DIM, K] (q, k, v), `q` [capacity, HEADS HEAD_DIM].

    `pool` [num_blocks, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM] (keys, values), `cosine` and `sine` float32 [positions,
    HEAD_DIM / 2], `block_tables` int32 [*, table_width], the others as in the step index of the ops' contract. The
    position of a token is `seq_lens_decoder` of its slot plus its place among the slot's tokens of this step. Keys and
    values whose block is not in the table or not in the pool are not written.

    Within each head, rows 2i and 2i + 1 of `weight` are dimensions i and i + HEAD_DIM / 2, so that one thread holds
    both numbers of a pair; `q` and `pool` have the dimensions in order. Grid: as in :func:`.product.product`.
    """
    wait(PDL)
    rows = min(capacity, tl.load(cu_seqlens_q + slots))
    row_tile = tl.program_id(0)
    if row_tile * BLOCK_M >= rows:
        return
    HALF_DIM: tl.constexpr = HEAD_DIM // 2
    PAIRS: tl.constexpr = (HEADS + 2 * KV_HEADS) * HALF_DIM
    row = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    here = row < rows
    slot = tl.load(batch_id_per_token + row, mask=here, other=-1)
    here = here & (slot >= 0) & (slot < slots)
    slot = tl.maximum(slot, 0)
    start = tl.load(cu_seqlens_q + slot, mask=here, other=0)
    position = tl.load(seq_lens_decoder + slot, mask=here, other=0) + row - start
    page = position // BLOCK_SIZE
    block = tl.load(
        block_tables + slot.to(tl.int64) * table_width + page,
        mask=here & (position >= 0) & (page < table_width),
        other=-1,
    )
    total = product(x, weight, rows, 2 * PAIRS, K, PART, SPLIT, DESCRIBED, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, SWAP)
    release(PDL)
    HALF: tl.constexpr = BLOCK_N // 2
    pair = tl.program_id(1) * HALF + tl.arange(0, HALF)
    head, dim = pair // HALF_DIM, pair % HALF_DIM
    angle = tl.minimum(tl.maximum(position, 0), positions - 1).to(tl.int64)[:, None] * HALF_DIM + dim[None, :]
    c, s = tl.load(cosine + angle), tl.load(sine + angle)
    if SPLIT:
        total, complete = join(total, partials, counters, K, PART)
        if not complete:
            return
    first, second = tl.split(tl.reshape(total, [BLOCK_M, HALF, 2]))
    rotated = (head < HEADS + KV_HEADS)[None, :]
    low = tl.where(rotated, first * c - second * s, first).to(q.dtype.element_ty)
    high = tl.where(rotated, second * c + first * s, second).to(q.dtype.element_ty)

    q_at = q + row.to(tl.int64)[:, None] * (HEADS * HEAD_DIM) + (head * HEAD_DIM + dim)[None, :]
    to_q = (row < rows)[:, None] & (head < HEADS)[None, :]
    tl.store(q_at, low, mask=to_q)
    tl.store(q_at + HALF_DIM, high, mask=to_q)

    here = here & (block >= 0) & (block < num_blocks)
    kv = head - HEADS
    which, kv_head = kv // KV_HEADS, kv % KV_HEADS
    line = (block.to(tl.int64)[:, None] * 2 + which[None, :]) * BLOCK_SIZE + (position % BLOCK_SIZE)[:, None]
    pool_at = pool + (line * KV_HEADS + kv_head[None, :]) * HEAD_DIM + dim[None, :]
    to_pool = here[:, None] & ((kv >= 0) & (pair < PAIRS))[None, :]
    tl.store(pool_at, low, mask=to_pool)
    tl.store(pool_at + HALF_DIM, high, mask=to_pool)
