"""The kernels for parts of a vocabulary, compiled for the CPU: bits of PyTorch's operators, and of whole rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import ArgumentError
from specdec_hal.ops import LogprobMode, Purpose
from tests.parallel.ranks import Threads
from tests.support.cuda_on_host import ARCHS, CudaOnHost, why_not

torch = pytest.importorskip("torch")

from specdec_hal.parallel.kernels import KernelRows  # noqa: E402
from specdec_hal.parallel.local import Asked, Columns, LocalRows, Needed  # noqa: E402
from specdec_hal.parallel.sampling import VocabularyPart  # noqa: E402
from specdec_hal.parallel.work import Filters, RowParams, Work  # noqa: E402
from tests.parallel.test_vocabulary import (  # noqa: E402
    KINDS,
    VOCABULARIES,
    check,
    on_whole_rows,
    params_of,
    rows_of,
    tensors,
)

pytestmark = [pytest.mark.torch, pytest.mark.skipif(bool(why_not()), reason=why_not() or "never")]

PARTS = 3
"""Ranks, of which the second is looked at."""

TYPES = [torch.float32, torch.float16, torch.bfloat16]
WIDTHS = [1, 31, 1023, 1024, 1025, 3000]


class OneAtATime:
    """Kernels for ranks that are threads."""

    def __init__(self, arch: int, seed: int = 0) -> None:
        self._backend, self._lock = CudaOnHost(arch, seed), threading.Lock()
        self.ran: set[str] = set()

    def bind_part(self, op: str, **operands: Any) -> Callable[[], None]:
        with self._lock:
            self.ran.add(op)
            self._backend.bind_part(op, **operands)()
        return lambda: None


def rounded(logits: Any, dtype: Any) -> Any:
    """As a model with such logits has them, in float32 again."""
    return torch.from_numpy(logits).to(dtype).float().numpy()


@pytest.mark.parametrize("look", [True, False], ids=["looking", "not looking"])
@pytest.mark.parametrize("number, vocab", list(enumerate(VOCABULARIES)))
def test_tokens_and_logprobs(number: int, vocab: int, look: bool) -> None:
    """Of two ranks and of four, of which some have no columns and one a part of a chunk."""
    dtype, arch = TYPES[number], ARCHS[(number + look) % 2]
    mode = LogprobMode.PROCESSED if look else LogprobMode.RAW
    kinds, logits = list(KINDS), rounded(rows_of(vocab), dtype)
    params = params_of(kinds, len(logits), vocab)
    options = {"purpose": Purpose.DRAFT if mode else Purpose.SAMPLE, "logprob_mode": mode}
    logits = np.repeat(logits, len(kinds), 0)
    kernels = OneAtATime(arch, seed=number)

    def work(group: Any) -> dict[str, Any]:
        part, count, rows = VocabularyPart(group, vocab, kernels), len(logits), tensors(params)
        found = {
            "target_tokens": torch.full((count,), -7),
            "logprobs": torch.full((count,), 7.0),
            "ranks": torch.full((count,), -7),
        }
        mine = torch.from_numpy(logits[:, part.first : part.first + part.width]).to(dtype).contiguous()
        part.sample_target(mine, rows, **found, **options, work=None if look else Work.of(rows, vocab))
        return {name: tensor.numpy() for name, tensor in found.items()}

    check(Threads(4 if vocab == 5000 else 2).run(work), on_whole_rows(logits, params, **options), kinds)
    assert kernels.ran == {"part_chunks", "part_shares", "part_kept", "part_draw", "part_listed", "ln_totals"}


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


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_step(width: int, dtype: Any) -> None:
    number = WIDTHS.index(width) + TYPES.index(dtype)
    compare(OneAtATime(ARCHS[number % 2], number), width, dtype, (32, 1)[number // 2 % 2], number)


def test_a_wide_part_and_a_long_list() -> None:
    """More chunks than a warp has lanes, and more places than are found at once."""
    rng = np.random.default_rng(3)
    for arch in ARCHS:
        for width, count in ((40_000, 32), (2100, 99), (40, 99)):
            logits = torch.from_numpy(np.round(rng.normal(0, 2, (3, width)), 2).astype(np.float32))
            columns = Columns(5120, -(-width // 1024) * 1024, 128_000)
            kernels, wanted = KernelRows(OneAtATime(arch, count), logits, columns), LocalRows(logits, columns)
            places = [rows.first(count, Needed(raw=True)) for rows in (kernels, wanted)]
            same(*places, "first")
            [rows.meet(places[1][None]) for rows in (kernels, wanted)]
            same(kernels.raw_shares(), wanted.raw_shares(), "raw shares")


def test_logprobs_of_given_tokens() -> None:
    vocab, columns = 2500, 4
    logits = torch.from_numpy(rows_of(vocab))
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.integers(-1, len(logits) + 1, 30).astype(np.int32))
    tokens, offsets = torch.from_numpy(rng.integers(0, vocab, 30)), torch.tensor([0, 27], dtype=torch.int32)

    def outputs(kernels: Any) -> Any:
        def work(group: Any) -> Any:
            part = VocabularyPart(group, vocab, kernels)
            mine = logits[:, part.first : part.first + part.width].contiguous()
            shapes = {"ids": (30, columns), "logprobs": (30, columns), "ranks": (30,)}
            types = {"logprobs": torch.float32}
            found = {name: torch.full(shape, 7, dtype=types.get(name, torch.int64)) for name, shape in shapes.items()}
            part.token_logprobs(mine, rows, tokens, offsets, **found)
            return found

        return Threads(2).run(work)

    for found, wanted in zip(outputs(OneAtATime(ARCHS[0])), outputs(None), strict=True):
        for name in wanted:
            same(found[name], wanted[name], name)


def test_wrong_extents_are_refused() -> None:
    kernels, logits, position = CudaOnHost(), torch.zeros(2, 1500), torch.zeros(2, dtype=torch.int64)
    tops = torch.zeros(2, 1)
    with pytest.raises(ValueError, match="expected 2 chunks of rows of 1500, got 1;"):
        kernels.bind_part("part_chunks", logits=logits, position=position, chunk_tops=tops)()
    with pytest.raises(ArgumentError, match="position"):
        kernels.bind_part("part_chunks", logits=logits, position=position[:1], chunk_tops=tops)
