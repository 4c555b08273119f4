"""The kernels for parts of a vocabulary, compiled for the CPU: bits of PyTorch's operators, and of whole rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import ArgumentError
from specdec_hal.ops import LogprobMode, Purpose
from specdec_hal.ops.parts import PART_OPS
from tests.parallel.ranks import Threads
from tests.support.cuda_on_host import ARCHS, CudaOnHost, why_not

torch = pytest.importorskip("torch")

from specdec_hal.parallel.kernels import KernelRows  # noqa: E402
from specdec_hal.parallel.local import Columns, LocalRows, Needed  # noqa: E402
from specdec_hal.parallel.sampling import VocabularyPart  # noqa: E402
from specdec_hal.parallel.work import Work  # noqa: E402
from tests.parallel.part_rows import TYPES, WIDTHS, compare, same  # noqa: E402
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
    assert kernels.ran == set(PART_OPS)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_step(width: int, dtype: Any) -> None:
    number = WIDTHS.index(width) + TYPES.index(dtype)
    compare(OneAtATime(ARCHS[number % 2], number), width, dtype, (32, 1)[number // 2 % 2], number)


@pytest.mark.parametrize("room", [1, 40])
def test_a_search_whose_elements_are_too_many_to_be_listed(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_hal.parallel.kernels._ROOM", room)
    for number, dtype in enumerate(TYPES):
        compare(OneAtATime(ARCHS[number % 2], number), 1025, dtype, 32, number)


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
