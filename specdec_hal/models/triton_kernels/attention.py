"""Attention over a paged KV cache: for slots with few tokens in a step, for chunks of prompts, or for both in turn.

A tile is `BLOCK_M` rows: the heads of one KV head for consecutive tokens of one slot, so that keys and values are read
once for all of them. The context is cut into chunks at fixed positions. The online softmax (Milakov and Gimelshein,
arXiv:1805.02867; Dao, arXiv:2307.08691) folds the keys of a chunk in ascending order into a state (maximum, sum,
value); the states of four chunks are merged in ascending order, then those of all fours. Each chunk has a program of
its own, or each four, and the last one to finish merges ("Flash-Decoding", Dao et al. 2023). If the tiles of prompts
are enough to keep the GPU busy, one program goes through all chunks of a tile. All give the same bits, for any number
of tokens in a step.

Chunks grow. The first 4 have `CHUNK` positions, so that a short context keeps several programs busy. The next 32 have
2 `CHUNK`, since each program has a fixed cost. All others have 4 `CHUNK`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import release, wait

MASKED = tl.constexpr(-1.0e30)  # finite: the difference of two such maxima is 0, not NaN
LOG2E = tl.constexpr(1.4426950408889634)
_SHORT, _MIDDLE = tl.constexpr(4), tl.constexpr(32)  # chunks of the two first lengths
FOUR = tl.constexpr(4)  # chunks whose states are merged first; divides both


@triton.jit
def chunk_start(chunk, CHUNK: tl.constexpr):
    """The first position of a chunk."""
    first = min(chunk, _SHORT)
    second = min(max(chunk - _SHORT, 0), _MIDDLE)
    third = max(chunk - _SHORT - _MIDDLE, 0)
    return CHUNK * (first + 2 * second + 4 * third)


@triton.jit
def chunk_count(context, CHUNK: tl.constexpr):
    """How many chunks `context` positions take."""
    first = min(context, _SHORT * CHUNK)
    second = min(max(context - _SHORT * CHUNK, 0), _MIDDLE * 2 * CHUNK)
    third = max(context - (_SHORT + 2 * _MIDDLE) * CHUNK, 0)
    return (
        (first + CHUNK - 1) // CHUNK + (second + 2 * CHUNK - 1) // (2 * CHUNK) + (third + 4 * CHUNK - 1) // (4 * CHUNK)
    )


@triton.jit
def _merge(maximum, total, value, other_maximum, other_total, other_value):
    """The state of two stretches of keys from theirs; a stretch without visible keys changes no bit of the other."""
    joint = tl.maximum(maximum, other_maximum)
    ours, theirs = tl.exp2(maximum - joint), tl.exp2(other_maximum - joint)
    value = value * ours[:, None] + other_value * theirs[:, None]
    return joint, total * ours + other_total * theirs, value


@triton.jit
def _row_sum(x, COLUMNS: tl.constexpr):
    """Sum of each row by the tensor cores, in the one order that they have: tl.sum would choose by the tile's size."""
    sums = tl.dot(x, tl.full([COLUMNS, 16], 1.0, tl.float32), input_precision="tf32x3")
    return tl.max(sums, 1)


@triton.jit(do_not_specialize=["capacity", "slots", "slot_tiles", "splits", "table_width", "num_blocks", "biased"])
def paged_attention(
    q,
    out,
    pool,
    block_tables,
    cu_seqlens_q,
    seq_lens_decoder,
    values,
    statistics,
    counters,
    capacity,
    slots,
    slot_tiles,
    splits,
    table_width,
    num_blocks,
    scale,
    sinks,
    bias,
    biased,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLIT: tl.constexpr,
    EACH: tl.constexpr,
    MIXED: tl.constexpr,
    PROMPTS: tl.constexpr,
    FEW: tl.constexpr,
    CAUSAL: tl.constexpr,
    ANCHORED: tl.constexpr,
    CHUNKED: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
    BESIDE: tl.constexpr,
):
    """`q` and `out` [capacity, HEADS HEAD_DIM], `pool` and `block_tables` as in :func:`.qkv.qkv`.

    `scale` includes log2(e), and so does `SOFTCAP`: scores become SOFTCAP * tanh(score / SOFTCAP), unless it is 0. With
    `WINDOW` a token sees its own position and WINDOW - 1 before it. `sinks` [HEADS], or None: see Launcher.attention;
    so `bias` float32 [HEADS, biased].
    `CAUSAL`: to its own position; else to the last of its slot. `ANCHORED`, `CHUNKED`: see Launcher.attention.
    Each program folds `EACH` chunks (1, 4, or 0 for all), whose state is in `values` float32 [tiles, KV_HEADS, splits,
    BLOCK_M, BLOCK_D], `statistics` float32 [.., 2, BLOCK_M] (maximum, sum) and `counters` int32 [tiles, KV_HEADS], 0
    before and after. Grid: (KV_HEADS, tiles, splits), for contexts of up to `splits * EACH` chunks; `SPLIT` says that
    `splits` is not 1. Each slot has `slot_tiles` tiles. `MIXED`: a launch for slots with more than `FEW` tokens
    (`PROMPTS`), then one for the others; a slot has the tiles that its tokens take, in one of them. `BESIDE`: the two
    run at the same time.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    kv_head, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if MIXED:
        b = tl.arange(0, BLOCK_B)
        length = tl.minimum(tl.load(cu_seqlens_q + b + 1, mask=b < slots, other=0), capacity)
        length -= tl.minimum(tl.load(cu_seqlens_q + b, mask=b < slots, other=0), capacity)
        own = tl.where((length > FEW) == PROMPTS, (length + TOKENS - 1) // TOKENS, 0)
        slot = tl.sum((tl.cumsum(own, 0) <= tile).to(tl.int32), 0)
        local = tile - tl.sum(tl.where(b < slot, own, 0), 0)
    else:
        slot, local = tile // slot_tiles, tile % slot_tiles
    exists = slot < slots
    start = tl.load(cu_seqlens_q + slot, mask=exists, other=0)
    tokens = min(tl.load(cu_seqlens_q + slot + 1, mask=exists, other=0), capacity) - start
    before = tl.load(seq_lens_decoder + slot, mask=exists, other=0)
    if BESIDE and not PROMPTS:  # the launch before this one writes nothing that it reads
        if (kv_head == KV_HEADS - 1) & (tile == tl.num_programs(1) - 1) & (split == splits - 1):
            wait(True)  # but ends before it, for the kernel after both
    else:
        wait(PDL)  # not before: the kernel before writes queries, keys and values, but none of the above
    release(PDL or BESIDE)
    if local * TOKENS >= tokens:
        return
    context = before + (min((local + 1) * TOKENS, tokens) if CAUSAL else tokens)
    chunks = chunk_count(context, CHUNK)
    states, first_chunk, last_chunk = 1, 0, chunks
    if EACH > 0:
        chunks = min(chunks, splits * EACH)
        states, first_chunk = (chunks + EACH - 1) // EACH, split * EACH
        last_chunk = min(first_chunk + EACH, chunks)
    if split >= states:
        return

    m = tl.arange(0, BLOCK_M)
    token, head = local * TOKENS + m // GROUP, kv_head * GROUP + m % GROUP
    live = (m < TOKENS * GROUP) & (token < tokens)
    position = tl.where(live, before + token, -1)
    last = position if CAUSAL else tl.where(live, before + tokens - 1, -1)
    d = tl.arange(0, BLOCK_D)
    q_at = (start + token).to(tl.int64)[:, None] * (HEADS * HEAD_DIM) + (head * HEAD_DIM)[:, None] + d[None, :]
    q_inside = live[:, None] & (d < HEAD_DIM)[None, :]
    queries = tl.load(q + q_at, mask=q_inside, other=0.0)

    if bias is not None:
        own = tl.load(bias + head * biased + position, mask=live, other=0.0)
    maximum = tl.full([BLOCK_M], MASKED, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    value = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    table = block_tables + slot.to(tl.int64) * table_width
    LINE: tl.constexpr = KV_HEADS * HEAD_DIM
    for four in range(first_chunk // FOUR, (last_chunk + FOUR - 1) // FOUR):
        four_maximum = tl.full([BLOCK_M], MASKED, tl.float32)
        four_total = tl.zeros([BLOCK_M], tl.float32)
        four_value = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for chunk in range(max(first_chunk, four * FOUR), min(last_chunk, four * FOUR + FOUR)):
            chunk_maximum = tl.full([BLOCK_M], MASKED, tl.float32)
            weights = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            chunk_value = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
            begin_at, end = chunk_start(chunk, CHUNK), min(chunk_start(chunk + 1, CHUNK), context)
            if WINDOW > 0:  # keys hidden from the tile do not change its bits
                lowest = before + (0 if ANCHORED else local * TOKENS + 1) - WINDOW
                if CHUNKED:
                    lowest = (before + local * TOKENS) // WINDOW * WINDOW
                hidden = max(lowest - begin_at, 0)
                begin_at += hidden // BLOCK_N * BLOCK_N
            for first in range(begin_at, end, BLOCK_N):
                key = first + tl.arange(0, BLOCK_N)
                page = key // BLOCK_SIZE
                there = (key < end) & (page < table_width)
                block = tl.load(table + page, mask=there, other=0)
                block = tl.minimum(tl.maximum(block, 0), num_blocks - 1).to(tl.int64)
                at = (block * (2 * BLOCK_SIZE) + key % BLOCK_SIZE) * LINE + kv_head * HEAD_DIM
                inside = there[:, None] & (d < HEAD_DIM)[None, :]
                kv_at = pool + at[:, None] + d[None, :]
                keys = tl.load(kv_at, mask=inside, other=0.0)
                vals = tl.load(kv_at + BLOCK_SIZE * LINE, mask=inside, other=0.0)  # loaded beside the scores
                scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
                if SOFTCAP > 0:
                    fall = tl.exp2(
                        tl.abs(scores) * (-2 * LOG2E / SOFTCAP)
                    )  # tanh by an exponential that cannot overflow
                    scores = tl.where(scores < 0, -SOFTCAP, SOFTCAP) * ((1 - fall) / (1 + fall))
                if bias is not None:
                    ahead = tl.load(bias + head[:, None] * biased + key[None, :], mask=live[:, None] & there, other=0.0)
                    scores += (ahead - own[:, None]) * LOG2E
                visible = there[None, :] & (key[None, :] <= last[:, None])
                if WINDOW > 0:
                    if ANCHORED:
                        visible &= key[None, :] >= before - WINDOW
                    elif CHUNKED:
                        visible &= key[None, :] >= position[:, None] // WINDOW * WINDOW
                    else:
                        visible &= key[None, :] > position[:, None] - WINDOW
                        if not CAUSAL:
                            visible &= key[None, :] < position[:, None] + WINDOW
                scores = tl.where(visible, scores, MASKED)
                joint = tl.maximum(chunk_maximum, tl.max(scores, 1))
                fade = tl.exp2(chunk_maximum - joint)
                weight = tl.where(visible, tl.exp2(scores - joint[:, None]), 0.0)
                weights = weights * fade[:, None] + weight
                chunk_value = chunk_value * fade[:, None]
                chunk_value = tl.dot(weight.to(vals.dtype), vals, chunk_value, input_precision=PRECISION)
                chunk_maximum = joint
            chunk_total = _row_sum(weights, BLOCK_N)
            four_maximum, four_total, four_value = _merge(
                four_maximum, four_total, four_value, chunk_maximum, chunk_total, chunk_value
            )
        maximum, total, value = _merge(maximum, total, value, four_maximum, four_total, four_value)

    if SPLIT:  # noqa: SIM102  (this one is decided when the kernel is compiled)
        if states > 1:
            group = (tile * KV_HEADS + kv_head).to(tl.int64)
            value_at = values + group * splits * (BLOCK_M * BLOCK_D) + m[:, None] * BLOCK_D + d[None, :]
            statistics_at = statistics + group * splits * (2 * BLOCK_M) + m
            tl.store(value_at + split * (BLOCK_M * BLOCK_D), value)
            tl.store(statistics_at + split * (2 * BLOCK_M), maximum)
            tl.store(statistics_at + split * (2 * BLOCK_M) + BLOCK_M, total)
            tl.debug_barrier()  # all stores precede the atomic
            if tl.atomic_add(counters + group, 1, sem="acq_rel") != states - 1:
                return
            maximum = tl.full([BLOCK_M], MASKED, tl.float32)
            total = tl.zeros([BLOCK_M], tl.float32)
            value = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
            for first in range(0, states, FOUR):
                four_maximum = tl.full([BLOCK_M], MASKED, tl.float32)
                four_total = tl.zeros([BLOCK_M], tl.float32)
                four_value = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
                for i in tl.static_range(FOUR):  # load four states at once
                    state = first + i
                    other_maximum = tl.load(
                        statistics_at + state * (2 * BLOCK_M), mask=state < states, other=MASKED, cache_modifier=".cg"
                    )
                    other_total = tl.load(
                        statistics_at + state * (2 * BLOCK_M) + BLOCK_M,
                        mask=state < states,
                        other=0.0,
                        cache_modifier=".cg",
                    )
                    other_value = tl.load(
                        value_at + state * (BLOCK_M * BLOCK_D), mask=state < states, other=0.0, cache_modifier=".cg"
                    )
                    if EACH == 1:
                        four_maximum, four_total, four_value = _merge(
                            four_maximum, four_total, four_value, other_maximum, other_total, other_value
                        )
                    else:
                        maximum, total, value = _merge(maximum, total, value, other_maximum, other_total, other_value)
                if EACH == 1:
                    maximum, total, value = _merge(maximum, total, value, four_maximum, four_total, four_value)
            tl.store(counters + group, 0)
    if sinks is not None:
        sink = tl.load(sinks + head, mask=live, other=0.0).to(tl.float32) * LOG2E
        joint = tl.maximum(maximum, sink)
        fade = tl.exp2(maximum - joint)
        total = total * fade + tl.exp2(sink - joint)
        value = value * fade[:, None]
    result = value / tl.where(live, total, 1.0)[:, None]
    tl.store(out + q_at, result.to(out.dtype.element_ty), mask=q_inside)
