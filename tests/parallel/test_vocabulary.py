"""Parts of a vocabulary give the tokens of whole rows: the kernels compiled for the CPU, ranks as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import ArgumentError
from specdec_hal.ops import Purpose
from specdec_hal.ops.parts import PART_OPS
from tests.parallel.ranks import Threads
from tests.support.cuda_on_host import ARCHS, CudaOnHost, why_not

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from specdec_hal.parallel.vocabulary import RowFeatures, ShardedLogitsHead  # noqa: E402
from specdec_hal.runner import SamplingParams  # noqa: E402
from tests.parallel.part_rows import KINDS, TYPES, features_of, on_part, on_whole_rows, params_of, rows_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.skipif(bool(why_not()), reason=why_not() or "never")]


class OneAtATime:
    """A backend and model of ranks that are threads. `ops`: those that ran."""

    compute_logits_part_device = None

    def __init__(self, arch: int = 900, seed: int = 0) -> None:
        self._backend, self._lock, self.ops = CudaOnHost(arch, seed), threading.Lock(), set[str]()

    def bind_part(self, op: str, **operands: Any) -> Callable[[], None]:
        with self._lock:
            self.ops.add(op)
            self._backend.bind_part(op, **operands)()
        return lambda: None


def parted(group: Any, vocab: int, kernels: Any) -> ShardedLogitsHead:
    return ShardedLogitsHead(group, vocab, kernels, kernels)


@pytest.mark.parametrize("number", range(4))
def test_tokens(number: int) -> None:
    """The last rank has one column or many, whole chunks or not."""
    ranks, vocab = [(2, 1025), (2, 2047), (2, 2048), (4, 3500)][number]
    kinds, dtype = list(KINDS), TYPES[number % len(TYPES)]
    rows = torch.from_numpy(rows_of(vocab)).to(dtype).repeat_interleave(len(kinds), 0)
    params = params_of(kinds, len(rows) // len(kinds))
    kernels, purpose = OneAtATime(ARCHS[number % 2], number), list(Purpose)[number % len(Purpose)]
    wanted = on_whole_rows(rows.float().numpy(), params, purpose)
    assert len(set(wanted.tolist())) > 40
    for found in Threads(ranks).run(
        lambda group: on_part(parted(group, vocab, kernels), rows, kinds, params, purpose=purpose)
    ):
        wrong = np.flatnonzero(found != wanted)
        assert not len(wrong), [(kinds[r % len(kinds)], r // len(kinds), found[r], wanted[r]) for r in wrong[:5]]
    assert kernels.ops == set(PART_OPS)


def test_more_chunks_than_a_warp_has_lanes() -> None:
    kinds, rng = ["unfiltered", "min_p", "top_k", "greedy"], np.random.default_rng(3)
    rows = torch.from_numpy(np.round(rng.normal(0, 2, (2, 80_000)), 2).astype(np.float32)).repeat_interleave(4, 0)
    params = params_of(kinds, 2)
    wanted = on_whole_rows(rows.numpy(), params)
    for arch in ARCHS:
        kernels = OneAtATime(arch, arch)

        def work(group: Any, kernels: Any = kernels) -> Any:
            return on_part(parted(group, 80_000, kernels), rows, kinds, params).tolist()

        assert Threads(2).run(work) == [wanted.tolist()] * 2


BYTES = {"greedy": (8, 1), "unfiltered": (24, 3), "tempered": (24, 3), "min_p": (24, 3), "top_k": (256, 1)}
BYTES |= {"top_k as listed": (256, 1), "all": (256, 1), "top_k all": (24, 3)}


class Counted:
    """A group that counts the bytes a rank sends."""

    def __init__(self, group: Any) -> None:
        self.rank, self.size, self._group, self.sent, self.rounds = group.rank, group.size, group, 0, 0

    def gather(self, tensor: Any) -> Any:
        self.sent += tensor.numel() * tensor.element_size()
        self.rounds += 1
        return self._group.gather(tensor)


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_that_a_rank_sends_for_a_row(kind: str) -> None:
    """The figures in the docs."""
    kernels, rows = OneAtATime(), torch.from_numpy(rows_of(5000)[:2])
    params = {name: array[1:3] for name, array in params_of([kind], 3).items()}

    def work(group: Any) -> Any:
        counted = Counted(group)
        tokens = on_part(parted(counted, 5000, kernels), rows, [kind], params)
        assert tokens.tolist() == on_whole_rows(rows.numpy(), params).tolist()
        return counted.sent / 2, counted.rounds

    assert Threads(2).run(work) == [BYTES[kind]] * 2


def test_what_rows_are_sampled_from_parts() -> None:
    part = parted(Threads(2).rank(0), 5000, OneAtATime())
    assert features_of(part, list(KINDS)) == RowFeatures(listed=True, drawn=True, kept=True)
    assert features_of(part, ["greedy", "top_k"]) == RowFeatures(listed=True)
    assert features_of(part, []) == RowFeatures()
    for whole in ({"top_p": 0.9}, {"top_k": 33}, {"top_k": 200, "min_p": 0.1}):
        assert part.features_of([SamplingParams(temperature=1), SamplingParams(temperature=1, **whole)]) is None
        assert part.features_of([SamplingParams(temperature=0, **whole)]) == RowFeatures()


def test_where_logits_are_gathered() -> None:
    class Model:
        config = type("Config", (), {"vocab_size": 2048})
        compute_logits_part_device = None

    backend = OneAtATime()
    assert ShardedLogitsHead.of(Threads(2).rank(1), backend, Model()) is not None
    assert ShardedLogitsHead.of(Threads(3).rank(0), backend, Model()) is None, "a rank has no column"
    assert ShardedLogitsHead.of(Threads(2).rank(0), object(), Model()) is None, "no kernels"


def test_a_captured_step_reads_nothing() -> None:
    """Fake tensors have shapes and no values: reading one fails."""

    class NoKernels:
        compute_logits_part_device = None

        def bind_part(self, op: str, **operands: Any) -> Callable[[], None]:
            return lambda: None

    class Twice:
        rank, size = 1, 2

        def gather(self, tensor: Any) -> Any:
            return torch.stack([tensor, tensor])

    kinds = list(KINDS)
    part, params = parted(Twice(), 5000, NoKernels()), params_of(kinds, 1)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        given = {name: mode.from_tensor(torch.from_numpy(array)) for name, array in params.items()}
        tokens = torch.zeros(len(kinds), dtype=torch.int64)
        part.sample_target(torch.zeros(len(kinds), part.width), features_of(part, kinds), target_tokens=tokens, **given)


def test_wrong_extents_are_refused() -> None:
    kernels, logits, position = CudaOnHost(), torch.zeros(2, 1500), torch.zeros(2, dtype=torch.int64)
    tops = torch.zeros(2, 1)
    with pytest.raises(ValueError, match="expected 2 chunks of rows of 1500, got 1;"):
        kernels.bind_part("part_chunks", logits=logits, position=position, chunk_tops=tops)()
    with pytest.raises(ArgumentError, match="position"):
        kernels.bind_part("part_chunks", logits=logits, position=position[:1], chunk_tops=tops)
