"""Ranks' kernels read each other's results from memory (symmetric memory, P2P)."""

from __future__ import annotations

import triton
import triton.language as tl

from specdec_hal.models.triton_kernels.launch import begin, row_count

PROGRAMS = 128
"""Most programs of a kernel that waits for other ranks: all must be resident."""


def meeting_cells(ranks: int) -> int:
    """int32 cells of :func:`meet` per rank; the last one ends all waiting."""
    return PROGRAMS * (ranks + 1) + 1


@triton.jit
def meet(cells, RANK: tl.constexpr, RANKS: tl.constexpr, MOST: tl.constexpr):
    """Waits until this program has started on all ranks, so that earlier results on their streams are visible.

    `cells`: int64 [RANKS], addresses of the ranks' cells: per program the turn of each rank and of itself, and a
    nonzero cell to end all waiting. Turns are compared by difference.
    """
    at = tl.program_id(0) * (RANKS + 1)
    first = tl.load(cells + RANK).to(tl.pointer_type(tl.int32))
    turn = tl.load(first + at + RANKS) + 1
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            theirs = tl.load(cells + rank).to(tl.pointer_type(tl.int32)) + at + RANK
            tl.atomic_xchg(theirs, turn, sem="release", scope="sys")
    stop = first + MOST * (RANKS + 1)
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            waits = True
            while waits:
                come = tl.atomic_add(first + at + rank, 0, sem="acquire", scope="sys")
                waits = (come - turn < 0) & (tl.load(stop, volatile=True) == 0)
    tl.store(first + at + RANKS, turn)
    tl.debug_barrier()


@triton.jit
def barrier(cells, RANK: tl.constexpr, RANKS: tl.constexpr, MOST: tl.constexpr, PDL: tl.constexpr):
    """One program: ends once all ranks have reached it, and so have ended what they launched before."""
    begin(PDL)
    meet(cells, RANK, RANKS, MOST)


@triton.jit
def part_of(parts, rank, like):
    """The memory of a rank's part, of the dtype that `like` has, from the addresses int64 `parts` [RANKS]."""
    return tl.multiple_of(tl.load(parts + rank).to(tl.pointer_type(like.dtype.element_ty)), 16)


@triton.jit(do_not_specialize=["capacity"], do_not_specialize_on_alignment=["count"])
def gather_columns(
    parts,
    cells,
    out,
    count,
    capacity,
    width,
    columns,
    stride,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    MOST: tl.constexpr,
    COUNTED: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """`out` [capacity, columns], rows `stride` apart: the ranks' parts [capacity, width] side by side.

    Rows from int32 `count` [1] on are left alone. Ends once all ranks have read their parts.
    """
    begin(PDL)
    rows = row_count(count, capacity, COUNTED)
    if rows <= 0:
        return
    meet(cells, RANK, RANKS, MOST)
    blocks = tl.cdiv(width, BLOCK)
    for tile in range(tl.program_id(0), rows * RANKS * blocks, tl.num_programs(0)):
        row, rank = (tile // (RANKS * blocks)).to(tl.int64), tile // blocks % RANKS
        column = tile % blocks * BLOCK + tl.arange(0, BLOCK)
        inside = (column < width) & (rank * width + column < columns)
        x = tl.load(part_of(parts, rank, out) + row * width + column, mask=inside)
        tl.store(out + row * stride + rank * width + column, x, mask=inside)
    tl.debug_barrier()  # all loads precede the meeting
    meet(cells, RANK, RANKS, MOST)
