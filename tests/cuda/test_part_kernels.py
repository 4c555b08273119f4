"""The kernels for parts of a vocabulary on a GPU: tokens of whole rows, in captured steps."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from specdec_hal.parallel.vocabulary import ShardedLogitsHead  # noqa: E402
from tests.parallel.part_rows import KINDS, TYPES, features_of, on_part, on_whole_rows, params_of, rows_of  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]


class Alone:
    """A group of one."""

    rank, size, capturable = 0, 1, True

    def gather(self, tensor: Any) -> Any:
        return tensor[None].clone()

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]


class Model:
    compute_logits_part_device = None


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("vocab", [31, 1023, 1024, 1025, 3000, 64_512])
def test_tokens(vocab: int, dtype: Any, cuda: Any) -> None:
    kinds, rows = list(KINDS), rows_of(max(vocab, 41))[:, :vocab]
    whole = torch.from_numpy(rows).to(dtype).repeat_interleave(len(kinds), 0)
    params = params_of(kinds, len(rows))
    found = on_part(ShardedLogitsHead(Alone(), vocab, cuda, Model()), whole.cuda(), kinds, params)  # type: ignore[arg-type]
    assert found.tolist() == on_whole_rows(whole.float().numpy(), params).tolist()


@pytest.mark.parametrize("rows", [1, 6, 384])
def test_as_many_rows_as_a_step_has(rows: int, cuda: Any) -> None:
    """In clusters of every size."""
    logits = torch.randn(rows, 64_512, generator=torch.Generator().manual_seed(rows)) * 3
    params = params_of(["unfiltered"], rows)
    found = on_part(ShardedLogitsHead(Alone(), 64_512, cuda, Model()), logits.cuda(), ["unfiltered"], params)  # type: ignore[arg-type]
    assert found.tolist() == on_whole_rows(logits.numpy(), params).tolist()


def test_captured(cuda: Any) -> None:
    """A graph that is replayed with other logits gives the tokens of whole rows."""
    vocab, kinds = 5000, list(KINDS)
    shapes = rows_of(vocab)
    params, count = params_of(kinds, len(shapes)), len(shapes) * len(kinds)
    given = {name: torch.from_numpy(array).cuda() for name, array in params.items()}
    part = ShardedLogitsHead(Alone(), vocab, cuda, Model())  # type: ignore[arg-type]
    logits, tokens = torch.zeros(count, vocab, device="cuda"), torch.full((count,), -7, device="cuda")

    def launch() -> None:
        part.sample_target(logits, features_of(part, kinds), target_tokens=tokens, **given)

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
        assert tokens.tolist() == on_whole_rows(whole, params).tolist()
