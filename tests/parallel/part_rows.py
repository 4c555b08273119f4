"""Rows of a part of a vocabulary, and a comparison of all that kernels and operators find in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from specdec_hal.ops import Purpose
from specdec_hal.parallel.kernels import KernelRows
from specdec_hal.parallel.local import Asked, Columns, LocalRows, Needed
from specdec_hal.parallel.work import Filters, RowParams, Work
from tests.parallel.ranks import Threads
from tests.parallel.test_vocabulary import KINDS, params_of, rows_of, tensors

PARTS = 3
"""Ranks, of which the second is looked at."""

TYPES = [torch.float32, torch.float16, torch.bfloat16]
WIDTHS = [1, 31, 1023, 1024, 1025, 3000]


class Guarded(KernelRows):
    """Outputs hold anything before, and nothing is written beside them."""

    MARGIN = 40

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._buffers: list[Any] = []

    def _empty(self, *shape: int, dtype: Any = torch.int64) -> Any:
        extents = (self._rows, *shape)
        count, each = int(np.prod(extents)), torch.empty(0, dtype=dtype).element_size()
        bytes_ = torch.full(
            (count * each + 2 * self.MARGIN * each,), 0x5A, dtype=torch.uint8, device=self._logits.device
        )
        self._buffers.append((bytes_, self.MARGIN * each))
        return bytes_[self.MARGIN * each : -self.MARGIN * each].view(dtype).view(extents)

    def check_margins(self) -> None:
        for bytes_, margin in self._buffers:
            assert (bytes_[:margin] == 0x5A).all() and (bytes_[-margin:] == 0x5A).all()


def part_rows(width: int, rank: int) -> Any:
    """Logits of a part [rows, width]: maxima that are equal, at the ends of chunks and in other ranks' parts."""
    rows = rows_of(PARTS * max(width, 32))[:, rank * width : (rank + 1) * width]
    tied = np.tile(np.float32([1, 1, 0, -np.inf]), width // 4 + 1)[:width]
    ends = np.full(width, -9, np.float32)
    ends[0::1024] = ends[1023::1024] = 4
    ends[-1] = 4
    empty = np.full(width, -np.inf, np.float32)
    chunks = rows[0].copy()
    chunks[1024:2048] = -np.inf
    few = empty.copy()
    few[:: max(width // 7, 1)] = -2
    nan = rows[0].copy()
    nan[-1] = np.nan
    return np.float32([*rows, tied, ends, empty, chunks, few, nan])


def unaligned(array: Any, dtype: Any, offset: int) -> Any:
    """As a tensor that begins `offset` elements behind an aligned address."""
    flat = torch.zeros(array.size + offset + 16, dtype=dtype)
    mine = flat[offset : offset + array.size].view(array.shape)
    mine.copy_(torch.from_numpy(array))
    return mine


def same(found: Any, wanted: Any, context: object) -> None:
    assert found.dtype == wanted.dtype, context
    torch.testing.assert_close(
        found.cpu(), wanted.cpu(), rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{context}: {m}"
    )


def compare(kernels: Any, width: int, dtype: Any, count: int, number: int = 0, device: str = "cpu") -> None:
    """Every step of a draw by the second of three ranks, by kernels and by operators, over all kinds of rows."""
    span = -(-width // 1024) * 1024
    vocab, kinds = PARTS * span, list(KINDS)[number % 2 :: 2]
    arrays = [part_rows(width, rank) for rank in range(PARTS)]
    offset, each = number % 4, len(arrays[0])
    params = params_of(kinds, each, vocab)
    params["position"][4] = -1
    asked = tensors(params)
    asked = RowParams(*(tensor.to(device) for tensor in asked))
    drawing = Asked(asked, Filters.of(asked, vocab), Purpose.SAMPLE)
    logits = [unaligned(np.repeat(array, len(kinds), 0), dtype, offset).to(device) for array in arrays]
    if device != "cpu" and offset:
        logits[1] = torch.cat([logits[1].new_zeros(offset), logits[1].flatten()])[offset:].view(logits[1].shape)
    columns = [Columns(rank * span, span, vocab) for rank in range(PARTS)]
    needed = Needed(shares=True, raw=True, kept=True)
    others = [LocalRows(logits[rank], columns[rank], drawing) for rank in range(PARTS)]
    told = [rows.first(count, needed) for rows in others]
    mine, wanted = Guarded(kernels, logits[1], columns[1], drawing), others[1]

    used, nan = asked.position >= 0, torch.isnan(logits[1].float()).any(1)
    first = mine.first(count, needed)
    same(first[used & ~nan], told[1][used & ~nan], "first")
    assert (first[~used] == -(1 << 63)).all()
    lists = torch.stack(told)
    mine.meet(lists), [rows.meet(lists) for rows in others]
    defined = used & wanted.defined
    shares = [rows.shares() for rows in others]
    same(mine.shares()[defined], shares[1][defined], "shares")
    same(mine.raw_shares()[defined], wanted.raw_shares()[defined], "raw shares")
    sampled = defined & drawing.filters.sampled

    totals = torch.stack(shares).sum(0)
    (found, settled), (draw, known) = mine.draw_listed(totals), wanted.draw_listed(totals)
    same(settled[used], known[used], "settled")
    same(found.place[known & defined], draw.place[known & defined], "listed")
    same(found.total[known & defined], draw.total[known & defined], "total of the listed")

    work = Work.of(asked, vocab)
    if work.by_count or work.by_mass:
        for rows in (mine, wanted):
            ranks = [others[0], rows, others[2]]
            cut = Threads(PARTS).run(lambda group, ranks=ranks: ranks[group.rank].last_kept(group, work, totals))[1]
            kept = rows.keep(cut)
            if rows is mine:
                found = kept
        searched = sampled & drawing.filters.cut & ~settled
        same(found[searched], kept[searched], "kept behind a search")

    rng = np.random.default_rng(width)
    cuts = torch.from_numpy(rng.integers(0, width, len(used))).to(device)[:, None]
    last = wanted.places()[:, :width].sort(1, descending=True).values.gather(1, cuts)[:, 0]
    last[::5] = (1 << 63) - 1  # nothing is kept here
    for rank, rows in enumerate(others):  # what the others keep is not cut
        shares[rank] = torch.where(drawing.filters.unfiltered, shares[rank], rows.keep(last if rank == 1 else None))
    kept = mine.keep(last)
    same(kept[sampled], shares[1][sampled], "kept")
    sums = torch.stack(shares)
    same(mine.draw(sums, 1)[sampled], wanted.draw(sums, 1)[sampled], "drawn")
    same(mine.logarithms(sums.sum(0))[sampled], wanted.logarithms(sums.sum(0))[sampled], "logarithms")
    mine.check_margins()
