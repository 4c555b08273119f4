"""The kernels for parts of a vocabulary on a GPU: bits of PyTorch's operators, and of whole rows in captured steps."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from specdec_hal.ops import LogprobMode, Purpose  # noqa: E402
from specdec_hal.parallel.kernels import KernelRows  # noqa: E402
from specdec_hal.parallel.local import Columns, LocalRows, Needed  # noqa: E402
from specdec_hal.parallel.sampling import VocabularyPart  # noqa: E402
from specdec_hal.parallel.work import RowParams, Work  # noqa: E402
from tests.parallel.part_rows import TYPES, WIDTHS, compare, same  # noqa: E402
from tests.parallel.test_vocabulary import KINDS, check, on_whole_rows, params_of, rows_of, tensors  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [*WIDTHS, 64_512])
@pytest.mark.parametrize("count", [1, 32])
def test_every_step(count: int, width: int, dtype: Any, cuda: Any) -> None:
    compare(cuda, width, dtype, count, WIDTHS.index(width) if width in WIDTHS else 0, "cuda")


def test_a_search_whose_elements_are_too_many_to_be_listed(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_hal.parallel.kernels._ROOM", 100)
    for number, dtype in enumerate(TYPES):
        compare(cuda, 64_512, dtype, 32, number, "cuda")


@pytest.mark.parametrize("rows", [1, 6, 384])
def test_as_many_rows_as_a_step_has(rows: int, cuda: Any) -> None:
    """In clusters of every size."""
    logits = (torch.randn(rows, 64_512, generator=torch.Generator().manual_seed(rows)) * 3).cuda()
    columns = Columns(64_512, 64_512, 128_256)
    both = KernelRows(cuda, logits, columns), LocalRows(logits, columns)
    places = [one.first(32, Needed(raw=True)) for one in both]
    same(*places, "first")
    for one in both:
        one.meet(places[1][None])
    same(both[0].raw_shares(), both[1].raw_shares(), "raw shares")


class Alone:
    """A group of one."""

    rank, size, capturable = 0, 1, True

    def gather(self, tensor: Any) -> Any:
        return tensor[None].clone()

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]


@pytest.mark.parametrize("mode", list(LogprobMode))
def test_captured(mode: LogprobMode, cuda: Any) -> None:
    """A graph that is replayed with other logits gives the tokens of whole rows."""
    vocab, kinds = 5000, list(KINDS)
    shapes = rows_of(vocab)
    params = params_of(kinds, len(shapes), vocab)
    rows = RowParams(*(tensor.cuda() for tensor in tensors(params)))
    count, part = len(rows.seed), VocabularyPart(Alone(), vocab, cuda)
    logits = torch.zeros(count, vocab, device="cuda")
    token, rank = torch.full((2, count), -7, device="cuda")
    logprob, work = torch.full((count,), 7.0, device="cuda"), Work.of(rows, vocab)

    def launch() -> None:
        part.sample_target(logits, rows, token, logprob, rank, logprob_mode=mode, work=work)

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        launch()
    for turn in (1, -1):
        whole = shapes[::turn].repeat(len(kinds), 0)
        logits.copy_(torch.from_numpy(whole))
        graph.replay()
        torch.cuda.synchronize()
        found = {"target_tokens": token, "logprobs": logprob, "ranks": rank}
        wanted = on_whole_rows(whole, params, logprob_mode=mode, purpose=Purpose.SAMPLE)
        check([{name: tensor.cpu().numpy() for name, tensor in found.items()}], wanted, kinds)
